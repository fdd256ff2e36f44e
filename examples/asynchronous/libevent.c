/* Many acquisitions in flight on one thread, with libevent: see epoll.c, which does the same.
 *
 *     libevent URL [TASKS]
 */

#include <memlock.h>

#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>

enum { LEASE_MS = 30000, TIMEOUT_MS = 60000, HOLD_MS = 3 };

struct task {
    struct event *timer; /* NULL before the lock was granted */
    int shares;
    memlock_lock *lock;
};

static struct event_base *base;
static int held, inside, most, left;

static void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void must(int answer, const char *what) {
    if (answer != MEMLOCK_OK) fail(what, memlock_last_error());
}

static void held_long_enough(evutil_socket_t fd, short what, void *arg) {
    struct task *task = arg;
    memlock_pending *release;
    (void)fd, (void)what;
    if (task->shares) inside--;
    /* The handle of the lock is taken over. */
    must(memlock_release_start(task->lock, task, &release), "memlock_release_start");
    task->lock = NULL;
}

/* The lock is the task's: it is released when the timer expires. */
static void granted(struct task *task) {
    const struct timeval hold = {.tv_usec = HOLD_MS * 1000};
    held++;
    if (task->shares && ++inside > most) most = inside;
    task->timer = evtimer_new(base, held_long_enough, task);
    if (task->timer == NULL || evtimer_add(task->timer, &hold) != 0) fail("libevent", "no timer");
}

/* The client's descriptor is readable: calls have ended. */
static void calls_have_ended(evutil_socket_t fd, short what, void *arg) {
    memlock_pending *call;
    (void)fd, (void)what;
    while ((call = memlock_client_next_ended(arg)) != NULL) {
        struct task *task = memlock_pending_arg(call);
        if (task->timer == NULL) {
            must(memlock_pending_take_lock(call, &task->lock), "acquiring");
            granted(task);
        } else {
            must(memlock_pending_poll(call), "releasing");
            event_free(task->timer);
            if (--left == 0) event_base_loopbreak(base);
        }
        memlock_pending_close(call);
    }
}

int main(int count, char **arguments) {
    memlock_client *client;
    memlock_pending *call;
    const int tasks = count > 2 ? atoi(arguments[2]) : 100;
    if (count < 2 || tasks < 1) fail("usage", "libevent URL [TASKS]");
    struct task *all = calloc((size_t)tasks, sizeof *all);
    base = event_base_new();
    if (all == NULL || base == NULL) fail("libevent", "out of memory or descriptors");

    must(memlock_client_open(arguments[1], &client), "memlock_client_open");
    const int fd = memlock_client_event_fd(client);
    if (fd < 0) fail("memlock_client_event_fd", memlock_last_error());
    struct event *ended = event_new(base, fd, EV_READ | EV_PERSIST, calls_have_ended, client);
    if (ended == NULL || event_add(ended, NULL) != 0) fail("libevent", "the descriptor is not watched");

    left = tasks;
    for (int i = 0; i < tasks; i++) {
        char name[64] = "shared";
        all[i] = (struct task){.timer = NULL, .shares = i % 2 == 0};
        if (!all[i].shares) snprintf(name, sizeof name, "own-%d", i);
        must(memlock_acquire_start(client, name, LEASE_MS, TIMEOUT_MS, &all[i], &call), name);
    }
    if (event_base_dispatch(base) != 0) fail("libevent", "the loop failed");

    /* The loop must forget the descriptor before the client is closed. */
    event_free(ended);
    memlock_client_close(client);
    event_base_free(base);
    free(all);
    printf("%d tasks held their locks, at most %d the shared one.\n", held, most);
    return 0;
}
