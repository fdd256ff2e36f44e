/* Forking with calls that were started: the child has none of them, and starts its own. */

#include "asynchronous.h"

#include <sys/wait.h>

static memlock_pending *waits, *ended, *releases;
static memlock_lock *held;

static void the_parents_calls_are_not_the_childs(void) {
    memlock_lock *lock = held;
    CHECK(memlock_client_next_ended(client) == NULL);
    CHECK(memlock_pending_arg(waits) == &waits);
    ANSWERS(MEMLOCK_INTERRUPTED, memlock_pending_take_lock(waits, &lock));
    SAYS("fork");
    CHECK(lock == NULL);
    ANSWERS(MEMLOCK_INTERRUPTED, memlock_pending_poll(ended));
    ANSWERS(MEMLOCK_NOT_HELD, memlock_pending_poll(releases));
    ANSWERS(MEMLOCK_OK, memlock_pending_cancel(waits));
    memlock_pending_close(waits);
    memlock_pending_close(ended);
    memlock_pending_close(releases);
    CHECK(plain_has("lock:fork-ended"));
}

static void the_child_has_a_descriptor_and_calls_of_its_own(int parents) {
    memlock_pending *pending;
    CHECK(memlock_client_event_fd(client) != parents && !readable(client));
    release(granted(acquire("childs", -1, NULL)));
    /* The parent's lock, as a call of the child's. */
    pending = acquire("fork-held", 0, NULL);
    ends_with(MEMLOCK_BUSY, pending);
    ANSWERS(MEMLOCK_OK, memlock_release_start(held, NULL, &pending));
    ends_with(MEMLOCK_NOT_HELD, pending);
}

static void every_process_has_its_own_calls(void) {
    memlock_lock *lock;
    const int fd = memlock_client_event_fd(client);
    held = lock_of(client, "fork-held");
    waits = acquire("fork-held", -1, &waits);
    ended = acquire("fork-ended", -1, NULL);
    EVENTUALLY(memlock_pending_poll(ended) == MEMLOCK_OK);
    ANSWERS(MEMLOCK_OK, memlock_release_start(lock_of(client, "fork-released"), NULL, &releases));
    const pid_t child = fork();
    if (child == 0) {
        the_parents_calls_are_not_the_childs();
        the_child_has_a_descriptor_and_calls_of_its_own(fd);
        memlock_client_close(client);
        _exit(0);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    /* Nothing of it has changed here. */
    EVENTUALLY(memlock_pending_poll(releases) == MEMLOCK_OK);
    memlock_pending_close(releases);
    ANSWERS(MEMLOCK_PENDING, memlock_pending_poll(waits));
    ANSWERS(MEMLOCK_OK, memlock_pending_take_lock(ended, &lock));
    memlock_pending_close(ended);
    release(lock);
    ANSWERS(MEMLOCK_OK, memlock_unlock(held));
    release(granted(waits));
    CHECK(memlock_client_event_fd(client) == fd && !readable(client));
    becomes_free("fork-held");
    becomes_free("fork-ended");
    becomes_free("childs");
}

static _Atomic bool stop;

/* In the middle of all kinds of calls when the fork comes. */
static void *work(void *unused) {
    (void)unused;
    while (!stop) {
        memlock_pending *pending, *left;
        memlock_lock *lock;
        int answer;
        ANSWERS(MEMLOCK_OK, memlock_acquire_start(client, "contended", 30000, -1, NULL, &pending));
        ANSWERS(MEMLOCK_OK, memlock_acquire_start(client, "contended", 30000, -1, NULL, &left));
        while ((answer = memlock_pending_take_lock(pending, &lock)) == MEMLOCK_PENDING) check_pause_ms(1);
        ANSWERS(MEMLOCK_OK, answer);
        memlock_pending_close(pending);
        ANSWERS(MEMLOCK_OK, memlock_release_start(lock, NULL, NULL));
        memlock_pending_close(left);
        (void)memlock_client_next_ended(client);
    }
    return NULL;
}

static int forks = 50;

static void a_child_works_whatever_its_parents_threads_were_doing(void) {
    pthread_t workers[3];
    for (int i = 0; i < 3; i++) workers[i] = check_start(work, NULL);
    for (int i = 0; i < forks; i++) {
        const pid_t child = fork();
        if (child == 0) {
            alarm(60);
            release(granted(acquire("in-child", -1, NULL)));
            _exit(0);
        }
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        check_pause_ms(i % 7);
    }
    stop = true;
    for (int i = 0; i < 3; i++) check_join(workers[i]);
    becomes_free("contended");
}

int main(int count, char **arguments) {
    if (count > 1) forks = atoi(arguments[1]);
    open_both();
    RUN(every_process_has_its_own_calls);
    RUN(a_child_works_whatever_its_parents_threads_were_doing);
    memlock_client_close(client);
    memlock_client_close(other);
    return 0;
}
