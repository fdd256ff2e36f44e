/* Many acquisitions in flight on one thread, with epoll and nothing else.
 *
 *     epoll URL [TASKS]
 *
 * Half of the tasks want one lock, and each of the others has a lock of its own. A task holds its lock for a few
 * milliseconds, by a timer, and releases it without blocking. The last line says how many tasks held their locks,
 * and how many held the shared one at the same time at most.
 */

#include <memlock.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { LEASE_MS = 30000, TIMEOUT_MS = 60000, HOLD_MS = 3, EVENTS = 64 };

struct task {
    int timer; /* -1 before the lock was granted */
    int shares;
    memlock_lock *lock;
};

static int loop, held, inside, most, left;

static void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void must(int answer, const char *what) {
    if (answer != MEMLOCK_OK) fail(what, memlock_last_error());
}

/* Watches a descriptor; `data` comes with its events. */
static void watch(int fd, void *data) {
    struct epoll_event event = {.events = EPOLLIN, .data = {.ptr = data}};
    if (epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event) != 0) fail("epoll_ctl", "no watch");
}

/* The lock is the task's: it is released when the timer expires. */
static void granted(struct task *task) {
    const struct itimerspec hold = {.it_value = {.tv_nsec = HOLD_MS * 1000000L}};
    held++;
    if (task->shares && ++inside > most) most = inside;
    task->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (task->timer < 0 || timerfd_settime(task->timer, 0, &hold, NULL) != 0) fail("timerfd", "no timer");
    watch(task->timer, task);
}

static void held_long_enough(struct task *task) {
    memlock_pending *release;
    close(task->timer);
    if (task->shares) inside--;
    /* The handle of the lock is taken over. */
    must(memlock_release_start(task->lock, task, &release), "memlock_release_start");
    task->lock = NULL;
}

/* A call of this task has ended: first the acquisition, and later the release. */
static void ended(memlock_pending *call) {
    struct task *task = memlock_pending_arg(call);
    if (task->timer < 0) {
        must(memlock_pending_take_lock(call, &task->lock), "acquiring");
        granted(task);
    } else {
        must(memlock_pending_poll(call), "releasing");
        left--;
    }
    memlock_pending_close(call);
}

int main(int count, char **arguments) {
    memlock_client *client;
    memlock_pending *call;
    const int tasks = count > 2 ? atoi(arguments[2]) : 100;
    if (count < 2 || tasks < 1) fail("usage", "epoll URL [TASKS]");
    struct task *all = calloc((size_t)tasks, sizeof *all);
    loop = epoll_create1(EPOLL_CLOEXEC);
    if (all == NULL || loop < 0) fail("epoll", "out of memory or descriptors");

    must(memlock_client_open(arguments[1], &client), "memlock_client_open");
    const int fd = memlock_client_event_fd(client);
    if (fd < 0) fail("memlock_client_event_fd", memlock_last_error());
    watch(fd, NULL);

    for (int i = 0; i < tasks; i++) {
        char name[64] = "shared";
        all[i] = (struct task){.timer = -1, .shares = i % 2 == 0};
        if (!all[i].shares) snprintf(name, sizeof name, "own-%d", i);
        must(memlock_acquire_start(client, name, LEASE_MS, TIMEOUT_MS, &all[i], &call), name);
    }

    for (left = tasks; left > 0;) {
        struct epoll_event events[EVENTS];
        const int ready = epoll_wait(loop, events, EVENTS, -1);
        if (ready < 0 && errno != EINTR) fail("epoll_wait", "no events");
        for (int i = 0; i < ready; i++) {
            if (events[i].data.ptr != NULL) {
                held_long_enough(events[i].data.ptr);
                continue;
            }
            while ((call = memlock_client_next_ended(client)) != NULL) ended(call);
        }
    }

    close(loop);
    memlock_client_close(client);
    free(all);
    printf("%d tasks held their locks, at most %d the shared one.\n", held, most);
    return 0;
}
