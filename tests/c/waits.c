/* Waiting by handle: how long, and what ends a wait. */

#include "check.h"
#include "memcached_text.h"
#include "queue.h"

#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

static memlock_client *client;

static int lock_it(const char *name, int64_t wait_ms, memlock_lock **lock) {
    return memlock_mutex_lock(client, name, 30000, wait_ms, lock);
}

static void a_wait_of_zero_tries_once(void) {
    memlock_lock *lock;
    CHECK(plain_add("lock:busy", 60));
    struct check_watch watch;
    check_watch_start(&watch);
    ANSWERS(MEMLOCK_BUSY, lock_it("busy", 0, &lock));
    CHECK(check_watch_end_ms(&watch) < 2000);
    CHECK(lock == NULL);
    CHECK(plain_delete("lock:busy"));
}

static void a_wait_lasts_as_long_as_it_was_told(void) {
    const int64_t limits[] = {1, 50, 400};
    CHECK(plain_add("lock:limit", 60));
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        memlock_lock *lock;
        struct check_watch watch;
        check_watch_start(&watch);
        const long long began = check_now_ms();
        ANSWERS(MEMLOCK_TIMED_OUT, lock_it("limit", limits[i], &lock));
        /* A clock of whole milliseconds may show one less. */
        CHECK(lock == NULL && check_now_ms() - began >= limits[i] - 1);
        CHECK(check_watch_end_ms(&watch) < limits[i] + 500);
        CHECK(queue_length("limit") == 0);
    }
    CHECK(plain_delete("lock:limit"));
}

static void the_longest_wait_takes_a_free_lock_at_once(void) {
    const int64_t waits[] = {-1, INT64_MAX};
    for (size_t i = 0; i < 2; i++) {
        memlock_lock *lock;
        ANSWERS(MEMLOCK_OK, lock_it("free", waits[i], &lock));
        ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    }
}

static _Atomic bool given_back;

static void *wait_for_ever(void *name) {
    memlock_lock *lock;
    ANSWERS(MEMLOCK_OK, lock_it((const char *)name, -1, &lock));
    CHECK(given_back);
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    return NULL;
}

static void a_wait_for_ever_ends_when_the_lock_is_free(void) {
    static char name[] = "handed over";
    memlock_lock *lock;
    ANSWERS(MEMLOCK_OK, lock_it(name, 0, &lock));
    const pthread_t waiter = check_start(wait_for_ever, name);
    QUEUE_BECOMES(1, "handed%20over");
    given_back = true;
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    check_join(waiter);
}

static void a_wait_outlasts_a_dead_holders_lease(void) {
    memlock_lock *lock;
    CHECK(plain_add("lock:dead", 1));
    struct check_watch watch;
    check_watch_start(&watch);
    ANSWERS(MEMLOCK_OK, lock_it("dead", 10000, &lock));
    CHECK(check_watch_end_ms(&watch) < 4000);
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
}

static void *wait_until_cancelled(void *name) {
    memlock_lock *lock;
    ANSWERS(MEMLOCK_INTERRUPTED, lock_it((const char *)name, -1, &lock));
    CHECK(lock == NULL);
    return NULL;
}

static void another_thread_can_cancel_all_waits(void) {
    enum { WAITERS = 3 };
    static char names[WAITERS][16] = {"cancelled-a", "cancelled-b", "cancelled-c"};
    char keys[WAITERS][32];
    pthread_t waiters[WAITERS];
    for (int i = 0; i < WAITERS; i++) {
        snprintf(keys[i], sizeof keys[i], "lock:%s", names[i]);
        CHECK(plain_add(keys[i], 60));
        waiters[i] = check_start(wait_until_cancelled, names[i]);
        QUEUE_BECOMES(1, names[i]);
    }
    struct check_watch watch;
    check_watch_start(&watch);
    ANSWERS(MEMLOCK_OK, memlock_client_cancel_waits(client));
    for (int i = 0; i < WAITERS; i++) check_join(waiters[i]);
    CHECK(check_watch_end_ms(&watch) < TOLD_MS);
    for (int i = 0; i < WAITERS; i++) {
        CHECK(queue_length(names[i]) == 0);
        CHECK(plain_delete(keys[i]));
    }
}

static void cancelling_does_not_touch_later_waits_or_other_clients(void) {
    memlock_client *other;
    memlock_lock *lock;
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &other));
    CHECK(plain_add("lock:later", 60));
    ANSWERS(MEMLOCK_OK, memlock_client_cancel_waits(client));
    ANSWERS(MEMLOCK_TIMED_OUT, lock_it("later", 50, &lock));
    ANSWERS(MEMLOCK_OK, memlock_client_cancel_waits(other));
    ANSWERS(MEMLOCK_TIMED_OUT, lock_it("later", 50, &lock));
    CHECK(plain_delete("lock:later"));
    memlock_client_close(other);
}

static void cancel_from_the_handler(int signal_number) {
    (void)signal_number;
    memlock_client_cancel_waits(client);
}

/* As Ctrl-C would; with SA_RESTART too, which hides the signal from system calls. */
static void a_signal_handler_can_cancel_a_wait(void) {
    const int flags[] = {0, SA_RESTART};
    CHECK(plain_add("lock:signal", 60));
    for (size_t i = 0; i < 2; i++) {
        struct sigaction action, before;
        memset(&action, 0, sizeof action);
        action.sa_handler = cancel_from_the_handler;
        action.sa_flags = flags[i];
        CHECK(sigaction(SIGALRM, &action, &before) == 0);
        /* Again and again, as the first may come before the wait has begun. */
        const struct itimerval often = {{0, 50000}, {0, 100000}}, never = {{0, 0}, {0, 0}};
        CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
        memlock_lock *lock;
        struct check_watch watch;
        check_watch_start(&watch);
        ANSWERS(MEMLOCK_INTERRUPTED, lock_it("signal", -1, &lock));
        CHECK(check_watch_end_ms(&watch) < 2000);
        CHECK(lock == NULL);
        CHECK(queue_length("signal") == 0);
        CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
        CHECK(sigaction(SIGALRM, &before, NULL) == 0);
    }
    CHECK(plain_delete("lock:signal"));
}

static void ignore_it(int signal_number) { (void)signal_number; }

/* A signal that has nothing to do with us makes system calls fail with EINTR: no wait and no call may end. */
static void other_signals_end_no_wait_and_no_call(void) {
    struct sigaction action, before;
    memset(&action, 0, sizeof action);
    action.sa_handler = ignore_it;
    CHECK(sigaction(SIGALRM, &action, &before) == 0);
    const struct itimerval often = {{0, 2000}, {0, 2000}}, never = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    memlock_lock *lock, *taken;
    ANSWERS(MEMLOCK_OK, lock_it("storm", 0, &taken));
    const long long began = check_now_ms();
    ANSWERS(MEMLOCK_TIMED_OUT, lock_it("storm", 200, &lock));
    CHECK(check_now_ms() - began >= 199);
    ANSWERS(MEMLOCK_OK, memlock_unlock(taken));
    for (int i = 0; i < 200; i++) {
        ANSWERS(MEMLOCK_OK, lock_it("storm", -1, &lock));
        ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    }
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    CHECK(sigaction(SIGALRM, &before, NULL) == 0);
}

int main(void) {
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &client));
    RUN(a_wait_of_zero_tries_once);
    RUN(a_wait_lasts_as_long_as_it_was_told);
    RUN(the_longest_wait_takes_a_free_lock_at_once);
    RUN(a_wait_for_ever_ends_when_the_lock_is_free);
    RUN(a_wait_outlasts_a_dead_holders_lease);
    RUN(another_thread_can_cancel_all_waits);
    RUN(cancelling_does_not_touch_later_waits_or_other_clients);
    RUN(a_signal_handler_can_cancel_a_wait);
    RUN(other_signals_end_no_wait_and_no_call);
    memlock_client_close(client);
    return 0;
}
