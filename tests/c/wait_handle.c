/* The wait handle: ending one wait from outside, from a thread or a signal handler, before it begins or later; and
 * signals that end no wait. That a waiter is woken for it, and does not only look in time, is in tests/core/waiting. */

#include "check.h"
#include "server.h"

#include <sys/time.h>

static memlock_client *client;

static memlock_wait *handle(void) {
    memlock_wait *wait = NULL;
    ANSWERS(MEMLOCK_OK, memlock_wait_open(client, &wait));
    CHECK(wait != NULL);
    return wait;
}

/* What is waited for by the four functions that take a handle. */
enum kind { MUTEX, PERMIT, PARKED, RETRYING, KINDS };
static const char *const keys[] = {"lock:", "semaphore:", "counter", "counter"};

/* Another one holds it. */
struct held {
    memlock_lock *lock;
    memlock_semaphore *semaphore;
    memlock_permit *permit;
};

static struct held hold(enum kind kind, const char *name) {
    struct held held = {NULL, NULL, NULL};
    char key[128];
    snprintf(key, sizeof key, "%s%s", keys[kind], name);
    if (kind == MUTEX) {
        ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, name, 600000, 0, &held.lock));
    } else if (kind == PERMIT) {
        ANSWERS(MEMLOCK_OK, memlock_semaphore_open(client, name, 1, 600000, &held.semaphore));
        ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire(held.semaphore, 1, 0, &held.permit));
    } else {
        ANSWERS(MEMLOCK_OK, memlock_counter_set_up(client, key, 0));
    }
    return held;
}

static void let_go(enum kind kind, const char *name, struct held held) {
    char key[128];
    snprintf(key, sizeof key, "%s%s", keys[kind], name);
    if (kind == MUTEX) ANSWERS(MEMLOCK_OK, memlock_unlock(held.lock));
    else if (kind == PERMIT) ANSWERS(MEMLOCK_OK, memlock_permit_release(held.permit));
    else ANSWERS(MEMLOCK_OK, memlock_counter_release(client, key));
    if (kind == PERMIT) memlock_semaphore_close(held.semaphore);
}

/* Waits for it, and gives it back; the answer of the wait. */
static int attempt(enum kind kind, const char *name, int64_t timeout_ms, const memlock_wait *wait) {
    char key[128];
    memlock_lock *lock = (memlock_lock *)key;
    memlock_semaphore *semaphore;
    memlock_permit *permit = (memlock_permit *)key;
    int answer = MEMLOCK_OK;
    snprintf(key, sizeof key, "%s%s", keys[kind], name);
    switch (kind) {
        case MUTEX:
            answer = memlock_mutex_lock_wait(client, name, 30000, timeout_ms, wait, &lock);
            CHECK((answer == MEMLOCK_OK) == (lock != NULL));
            if (lock != NULL) ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
            break;
        case PERMIT:
            ANSWERS(MEMLOCK_OK, memlock_semaphore_open(client, name, 1, 30000, &semaphore));
            answer = memlock_semaphore_acquire_wait(semaphore, NULL, timeout_ms, wait, &permit);
            CHECK((answer == MEMLOCK_OK) == (permit != NULL));
            if (permit != NULL) ANSWERS(MEMLOCK_OK, memlock_permit_release(permit));
            memlock_semaphore_close(semaphore);
            break;
        case PARKED:
        case RETRYING:
            answer = kind == PARKED ? memlock_counter_park(client, key, 0, timeout_ms, wait)
                                    : memlock_counter_retry(client, key, timeout_ms, wait);
            if (answer == MEMLOCK_OK) ANSWERS(MEMLOCK_OK, memlock_counter_release(client, key));
            break;
        case KINDS: break;
    }
    return answer;
}

/* A thread that waits for ever, and its result. */
struct waiter {
    struct queue_thread self;
    enum kind kind;
    const char *name;
    memlock_wait *wait;
    int answer;
    _Atomic bool ended;
};

static void *wait_for_ever(void *argument) {
    struct waiter *waiter = argument;
    queue_here(&waiter->self);
    waiter->answer = attempt(waiter->kind, waiter->name, -1, waiter->wait);
    waiter->ended = true;
    return NULL;
}

static void start(struct waiter *waiter, const char *name, memlock_wait *wait) {
    waiter->name = name;
    waiter->wait = wait;
    waiter->self.id = 0;
    waiter->ended = false;
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

static void is_cancelled(struct waiter *waiter) {
    ANSWERS(MEMLOCK_OK, memlock_wait_cancel(waiter->wait));
    ends_with(MEMLOCK_INTERRUPTED, waiter);
}

static void a_wait_ends_alone_with_its_handle(void) {
    for (enum kind kind = MUTEX; kind < KINDS; kind++) {
        struct waiter ended = {.kind = kind}, goes_on = {.kind = kind};
        char name[16], key[32];
        snprintf(name, sizeof name, "ended-%d", (int)kind);
        snprintf(key, sizeof key, "%s%s", keys[kind], name);
        memlock_wait *wait = handle();
        const struct held held = hold(kind, name);
        start(&ended, name, wait);
        if (kind != RETRYING) QUEUE_AT_BECOMES(1, key);
        start(&goes_on, name, NULL);
        /* Threads of one client share a place. */
        if (kind != RETRYING) EVENTUALLY(queue_sleeps(&goes_on.self));
        is_cancelled(&ended);
        CHECK(!goes_on.ended);
        if (kind != RETRYING) QUEUE_AT_BECOMES(1, key);
        let_go(kind, name, held);
        ends_with(MEMLOCK_OK, &goes_on);
        CHECK(queue_length_at(key) == 0);
        memlock_wait_close(wait);
    }
    CHECK(!plain_has("lock:ended-0"));
}

static void a_handle_that_was_cancelled_ends_every_later_wait(void) {
    const int64_t waits[] = {-1, 0, 1, INT64_MAX};
    memlock_wait *wait = handle();
    memlock_lock *lock;
    for (enum kind kind = MUTEX; kind < RETRYING; kind++) {
        const struct held held = hold(kind, "later");
        if (kind == PARKED) ANSWERS(MEMLOCK_OK, memlock_counter_set_up(client, "counterfree", 1));
        for (size_t i = 0; i < 2 * sizeof waits / sizeof *waits; i++) {
            ANSWERS(MEMLOCK_OK, memlock_wait_cancel(wait));
            ANSWERS(MEMLOCK_INTERRUPTED, attempt(kind, "later", waits[i / 2], wait));
            /* What is free is not taken either. */
            ANSWERS(MEMLOCK_INTERRUPTED, attempt(kind, "free", waits[i / 2], wait));
            if (kind == PARKED) ANSWERS(MEMLOCK_INTERRUPTED, attempt(RETRYING, "later", waits[i / 2], wait));
        }
        let_go(kind, "later", held);
    }
    CHECK(queue_length("later") == 0 && !plain_has("lock:free"));
    /* An error of the call is reported all the same. */
    ANSWERS(MEMLOCK_INVALID, memlock_mutex_lock_wait(client, "", 30000, -1, wait, &lock));
    ANSWERS(MEMLOCK_INVALID, memlock_mutex_lock_wait(client, "later", 1, -1, wait, &lock));
    ANSWERS(MEMLOCK_INVALID, memlock_mutex_lock_wait(client, "later", 30000, -2, wait, &lock));
    memlock_wait_close(wait);
}

/* What the signal handler cancels: this wait, or all of the client. */
static memlock_wait *of_the_handler;

static void cancel_from_the_handler(int signal_number) {
    (void)signal_number;
    if (of_the_handler != NULL) (void)memlock_wait_cancel(of_the_handler);
    else (void)memlock_client_cancel_waits(client);
}

/* As Ctrl-C would; with SA_RESTART too, which hides the signal from system calls. */
static void a_signal_handler_ends_a_wait(void) {
    const int flags[] = {0, SA_RESTART};
    const struct held held = hold(MUTEX, "signal");
    for (int turn = 0; turn < 8; turn++) {
        /* The handler may run in the thread that waits, or in any other. */
        const bool in_waiter = turn & 1, ends_all = turn & 2;
        struct sigaction action, before;
        struct waiter waiter = {.kind = MUTEX};
        memset(&action, 0, sizeof action);
        action.sa_handler = cancel_from_the_handler;
        action.sa_flags = flags[turn / 4];
        CHECK(sigaction(SIGUSR1, &action, &before) == 0);
        of_the_handler = ends_all ? NULL : handle();
        starts_waiting(&waiter, "signal", of_the_handler);
        QUEUE_BECOMES(1, "signal");
        CHECK(pthread_kill(in_waiter ? waiter.self.thread : pthread_self(), SIGUSR1) == 0);
        ends_with(MEMLOCK_INTERRUPTED, &waiter);
        CHECK(queue_length("signal") == 0);
        memlock_wait_close(of_the_handler);
        CHECK(sigaction(SIGUSR1, &before, NULL) == 0);
    }
    let_go(MUTEX, "signal", held);
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
    const struct held held = hold(MUTEX, "storm");
    const long long began = check_now_ms();
    ANSWERS(MEMLOCK_TIMED_OUT, attempt(MUTEX, "storm", 200, NULL));
    CHECK(check_now_ms() - began >= 199);
    let_go(MUTEX, "storm", held);
    for (int i = 0; i < 100; i++) ANSWERS(MEMLOCK_OK, attempt(MUTEX, "storm", -1, NULL));
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    CHECK(sigaction(SIGALRM, &before, NULL) == 0);
}

static void a_handle_of_another_client_is_refused(void) {
    memlock_client *other, *later;
    memlock_wait *wait;
    memlock_lock *lock = NULL;
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &other));
    ANSWERS(MEMLOCK_OK, memlock_wait_open(other, &wait));
    for (enum kind kind = MUTEX; kind < KINDS; kind++) {
        ANSWERS(MEMLOCK_INVALID, attempt(kind, "whose", 0, wait));
        SAYS("another client");
    }
    CHECK(!plain_has("lock:whose"));
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
    struct waiter waiter = {.kind = MUTEX};
    memlock_wait *wait = handle();
    const struct held held = hold(MUTEX, "all");
    starts_waiting(&waiter, "all", wait);
    ANSWERS(MEMLOCK_OK, memlock_client_cancel_waits(client));
    ends_with(MEMLOCK_INTERRUPTED, &waiter);
    /* The handle itself was not cancelled. */
    ANSWERS(MEMLOCK_TIMED_OUT, attempt(MUTEX, "all", 1, wait));
    let_go(MUTEX, "all", held);
    memlock_wait_close(wait);
}

int main(void) {
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &client));
    RUN(a_wait_ends_alone_with_its_handle);
    RUN(a_handle_that_was_cancelled_ends_every_later_wait);
    RUN(a_signal_handler_ends_a_wait);
    RUN(other_signals_end_no_wait_and_no_call);
    RUN(a_handle_of_another_client_is_refused);
    RUN(cancelling_all_waits_of_the_client_ends_those_with_a_handle_too);
    memlock_client_close(client);
    return 0;
}
