/* The wait handle: ending one wait from outside, from a thread or a signal handler, before it begins or later. */

#include "check.h"
#include "memcached_text.h"
#include "queue.h"

#include <signal.h>

static memlock_client *client;

static memlock_wait *handle(void) {
    memlock_wait *wait = NULL;
    ANSWERS(MEMLOCK_OK, memlock_wait_open(client, &wait));
    CHECK(wait != NULL);
    return wait;
}

static memlock_lock *locked(const char *name) {
    memlock_lock *lock = NULL;
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, name, 600000, 0, &lock));
    return lock;
}

/* A thread that waits for ever, and its result. */
struct waiter {
    struct queue_thread self;
    const char *name;
    memlock_wait *wait;
    int answer;
    _Atomic bool ended;
};

static void *wait_for_ever(void *argument) {
    struct waiter *waiter = argument;
    memlock_lock *lock = NULL;
    queue_here(&waiter->self);
    waiter->answer = memlock_mutex_lock_wait(client, waiter->name, 30000, -1, waiter->wait, &lock);
    CHECK((waiter->answer == MEMLOCK_OK) == (lock != NULL));
    if (lock != NULL) ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    waiter->ended = true;
    return NULL;
}

static void start(struct waiter *waiter, const char *name, memlock_wait *wait) {
    *waiter = (struct waiter){.name = name, .wait = wait};
    waiter->self.thread = check_start(wait_for_ever, waiter);
}

static void starts_waiting(struct waiter *waiter, const char *name, memlock_wait *wait) {
    start(waiter, name, wait);
    EVENTUALLY(queue_sleeps(&waiter->self));
}

static void ends_with(int answer, struct waiter *waiter) {
    EVENTUALLY(waiter->ended);
    check_join(waiter->self.thread);
    ANSWERS(answer, waiter->answer);
}

static void is_cancelled_at_once(struct waiter *waiter) {
    struct check_watch watch;
    check_watch_start(&watch);
    ANSWERS(MEMLOCK_OK, memlock_wait_cancel(waiter->wait));
    ends_with(MEMLOCK_INTERRUPTED, waiter);
    CHECK(check_watch_end_ms(&watch) < TOLD_MS);
}

static void another_thread_ends_a_wait(void) {
    struct waiter waiter;
    memlock_wait *wait = handle();
    memlock_lock *lock = locked("ended");
    starts_waiting(&waiter, "ended", wait);
    QUEUE_BECOMES(1, "ended");
    is_cancelled_at_once(&waiter);
    CHECK(queue_length("ended") == 0);
    /* There is no waiter to get it. */
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    CHECK(!plain_has("lock:ended"));
    memlock_wait_close(wait);
}

static void a_wait_behind_a_plain_client_can_be_ended(void) {
    struct waiter waiter;
    memlock_wait *wait = handle();
    CHECK(plain_add("lock:plain", 60));
    starts_waiting(&waiter, "plain", wait);
    QUEUE_BECOMES(1, "plain");
    is_cancelled_at_once(&waiter);
    CHECK(queue_length("plain") == 0 && plain_delete("lock:plain"));
    memlock_wait_close(wait);
}

static void a_handle_that_was_cancelled_ends_every_later_wait_at_once(void) {
    const int64_t waits[] = {-1, 0, 1, 10000};
    memlock_wait *wait = handle();
    memlock_lock *held = locked("later"), *lock = held;
    for (int twice = 0; twice < 2; twice++) {
        ANSWERS(MEMLOCK_OK, memlock_wait_cancel(wait));
        for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) {
            struct check_watch watch;
            check_watch_start(&watch);
            lock = held;
            ANSWERS(MEMLOCK_INTERRUPTED, memlock_mutex_lock_wait(client, "later", 30000, waits[i], wait, &lock));
            CHECK(lock == NULL);
            /* A free lock is not taken either. */
            ANSWERS(MEMLOCK_INTERRUPTED, memlock_mutex_lock_wait(client, "free", 30000, waits[i], wait, &lock));
            CHECK(check_watch_end_ms(&watch) < TOLD_MS);
            CHECK(lock == NULL);
        }
    }
    CHECK(queue_length("later") == 0 && !plain_has("lock:free"));
    /* An error of the call is reported all the same. */
    ANSWERS(MEMLOCK_INVALID, memlock_mutex_lock_wait(client, "", 30000, -1, wait, &lock));
    ANSWERS(MEMLOCK_INVALID, memlock_mutex_lock_wait(client, "later", 1, -1, wait, &lock));
    ANSWERS(MEMLOCK_INVALID, memlock_mutex_lock_wait(client, "later", 30000, -2, wait, &lock));
    ANSWERS(MEMLOCK_OK, memlock_unlock(held));
    memlock_wait_close(wait);
}

static void a_handle_that_is_not_cancelled_changes_nothing(void) {
    memlock_wait *wait = handle();
    memlock_lock *lock, *second;
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock_wait(client, "calm", 30000, -1, wait, &lock));
    ANSWERS(MEMLOCK_BUSY, memlock_mutex_lock_wait(client, "calm", 30000, 0, wait, &second));
    const long long began = check_now_ms();
    ANSWERS(MEMLOCK_TIMED_OUT, memlock_mutex_lock_wait(client, "calm", 30000, 50, wait, &second));
    CHECK(second == NULL && check_now_ms() - began >= 49);
    /* A lock that was got is not the handle's any more. */
    ANSWERS(MEMLOCK_OK, memlock_wait_cancel(wait));
    memlock_wait_close(wait);
    ANSWERS(MEMLOCK_OK, memlock_lock_extend(lock, 30000));
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
}

/* The first in line takes the place of all in the queue on the server: it must pass it on. */
static void the_other_waits_go_on(void) {
    enum { WAITERS = 4 };
    for (int cancelled = 0; cancelled < WAITERS; cancelled++) {
        struct waiter waiters[WAITERS];
        memlock_wait *waits[WAITERS];
        memlock_lock *lock = locked("others");
        for (int i = 0; i < WAITERS; i++) {
            waits[i] = i == (cancelled + 1) % WAITERS ? NULL : handle();
            starts_waiting(&waiters[i], "others", waits[i]);
        }
        QUEUE_BECOMES(1, "others");
        is_cancelled_at_once(&waiters[cancelled]);
        for (int i = 0; i < WAITERS; i++) CHECK(i == cancelled || !waiters[i].ended);
        QUEUE_BECOMES(1, "others");
        ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
        for (int i = 0; i < WAITERS; i++) {
            if (i != cancelled) ends_with(MEMLOCK_OK, &waiters[i]);
            memlock_wait_close(waits[i]);
        }
        CHECK(queue_length("others") == 0 && !plain_has("lock:others"));
    }
}

static void one_handle_ends_all_waits_that_share_it(void) {
    enum { WAITERS = 6 };
    const char *const names[] = {"shared-a", "shared-b"};
    struct waiter waiters[WAITERS], other;
    memlock_wait *wait = handle();
    memlock_lock *locks[] = {locked(names[0]), locked(names[1])};
    for (int i = 0; i < WAITERS; i++) starts_waiting(&waiters[i], names[i % 2], wait);
    starts_waiting(&other, names[0], NULL);
    struct check_watch watch;
    check_watch_start(&watch);
    ANSWERS(MEMLOCK_OK, memlock_wait_cancel(wait));
    for (int i = 0; i < WAITERS; i++) ends_with(MEMLOCK_INTERRUPTED, &waiters[i]);
    CHECK(check_watch_end_ms(&watch) < TOLD_MS);
    CHECK(!other.ended);
    QUEUE_BECOMES(1, names[0]);
    QUEUE_BECOMES(0, names[1]);
    for (int i = 0; i < 2; i++) ANSWERS(MEMLOCK_OK, memlock_unlock(locks[i]));
    ends_with(MEMLOCK_OK, &other);
    memlock_wait_close(wait);
}

/* Whether the wait has not begun, is trying, entering the queue, about to sleep or asleep. */
static void a_wait_can_be_ended_at_any_moment(void) {
    struct waiter head, waiter;
    memlock_lock *lock = locked("moment");
    memlock_wait *first = handle();
    for (int in_line = 0; in_line < 2; in_line++) {
        if (in_line) starts_waiting(&head, "moment", first);
        for (int i = 0; i < 200; i++) {
            memlock_wait *wait = handle();
            start(&waiter, "moment", wait);
            while (queue_id(&waiter.self) == 0) continue;
            const struct timespec pause = {0, i * 2000L};
            nanosleep(&pause, NULL);
            is_cancelled_at_once(&waiter);
            memlock_wait_close(wait);
        }
        CHECK(queue_length("moment") == in_line);
    }
    is_cancelled_at_once(&head);
    CHECK(queue_length("moment") == 0);
    memlock_wait_close(first);
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
}

static memlock_wait *of_the_handler;

static void cancel_from_the_handler(int signal_number) {
    (void)signal_number;
    memlock_wait_cancel(of_the_handler);
}

static void a_signal_handler_ends_a_wait(void) {
    const int flags[] = {0, SA_RESTART};
    memlock_lock *lock = locked("signal");
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        /* The handler may run in the thread that waits, or in any other. */
        for (int in_waiter = 0; in_waiter < 2; in_waiter++) {
            struct sigaction action, before;
            struct waiter waiter;
            memset(&action, 0, sizeof action);
            action.sa_handler = cancel_from_the_handler;
            action.sa_flags = flags[i];
            CHECK(sigaction(SIGUSR1, &action, &before) == 0);
            of_the_handler = handle();
            starts_waiting(&waiter, "signal", of_the_handler);
            QUEUE_BECOMES(1, "signal");
            struct check_watch watch;
            check_watch_start(&watch);
            CHECK(pthread_kill(in_waiter ? waiter.self.thread : pthread_self(), SIGUSR1) == 0);
            ends_with(MEMLOCK_INTERRUPTED, &waiter);
            CHECK(check_watch_end_ms(&watch) < TOLD_MS);
            CHECK(queue_length("signal") == 0);
            memlock_wait_close(of_the_handler);
            CHECK(sigaction(SIGUSR1, &before, NULL) == 0);
        }
    }
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
}

static void a_handle_of_another_client_is_refused(void) {
    memlock_client *other, *later;
    memlock_wait *wait;
    memlock_lock *lock = NULL;
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &other));
    ANSWERS(MEMLOCK_OK, memlock_wait_open(other, &wait));
    ANSWERS(MEMLOCK_INVALID, memlock_mutex_lock_wait(client, "whose", 30000, 0, wait, &lock));
    SAYS("another client");
    CHECK(lock == NULL && !plain_has("lock:whose"));
    /* Not even one that was opened in the place of the first. */
    memlock_client_close(other);
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &later));
    ANSWERS(MEMLOCK_INVALID, memlock_mutex_lock_wait(later, "whose", 30000, 0, wait, &lock));
    /* It outlives its client. */
    ANSWERS(MEMLOCK_OK, memlock_wait_cancel(wait));
    memlock_wait_close(wait);
    memlock_client_close(later);
}

static void cancelling_all_waits_of_the_client_ends_those_with_a_handle_too(void) {
    struct waiter waiter;
    memlock_wait *wait = handle();
    memlock_lock *lock = locked("all"), *second;
    starts_waiting(&waiter, "all", wait);
    ANSWERS(MEMLOCK_OK, memlock_client_cancel_waits(client));
    ends_with(MEMLOCK_INTERRUPTED, &waiter);
    /* The handle itself was not cancelled. */
    ANSWERS(MEMLOCK_TIMED_OUT, memlock_mutex_lock_wait(client, "all", 30000, 1, wait, &second));
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    memlock_wait_close(wait);
}

int main(void) {
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &client));
    RUN(another_thread_ends_a_wait);
    RUN(a_wait_behind_a_plain_client_can_be_ended);
    RUN(a_handle_that_was_cancelled_ends_every_later_wait_at_once);
    RUN(a_handle_that_is_not_cancelled_changes_nothing);
    RUN(the_other_waits_go_on);
    RUN(one_handle_ends_all_waits_that_share_it);
    RUN(a_wait_can_be_ended_at_any_moment);
    RUN(a_signal_handler_ends_a_wait);
    RUN(a_handle_of_another_client_is_refused);
    RUN(cancelling_all_waits_of_the_client_ends_those_with_a_handle_too);
    memlock_client_close(client);
    return 0;
}
