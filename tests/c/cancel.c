/* Threads that are cancelled by pthread_cancel() while they are in a call: the call goes through, the process lives, and
 * what was acquired is there for a cleanup handler to give back. */

#include "renewal.h"

/* A thread that is cancelled while it is in a call. */
struct victim {
    struct queue_thread self;
    const char *name;
    int (*call)(struct victim *victim);
    memlock_wait *wait;
    memlock_semaphore *semaphore;
    memlock_lock *lock;
    memlock_permit *permit;
    _Atomic int answer;
    _Atomic bool returned;
    /* Whether it is cancelled has been decided. */
    _Atomic bool decided;
};

enum { NO_ANSWER = 99 };

static int locks(struct victim *victim) {
    return memlock_mutex_lock_wait(client, victim->name, 30000, -1, victim->wait, &victim->lock);
}

static int locks_by_name(struct victim *victim) { return mutex_lock(victim->name, 30); }

static int acquires(struct victim *victim) {
    return memlock_semaphore_acquire_wait(victim->semaphore, NULL, -1, victim->wait, &victim->permit);
}

static int acquires_by_name(struct victim *victim) { return semaphore_acquire(victim->name, 30); }

static void clean_up(void *argument) {
    struct victim *victim = argument;
    if (victim->lock != NULL) ANSWERS(MEMLOCK_OK, memlock_unlock(victim->lock));
    if (victim->permit != NULL) ANSWERS(MEMLOCK_OK, memlock_permit_release(victim->permit));
    if (victim->call == locks_by_name && victim->answer == MEMLOCK_OK) {
        ANSWERS(MEMLOCK_OK, mutex_unlock(victim->name));
    }
    if (victim->call == acquires_by_name && victim->answer == MEMLOCK_OK) {
        ANSWERS(MEMLOCK_OK, semaphore_release(victim->name));
    }
}

static void *suffer(void *argument) {
    struct victim *victim = argument;
    pthread_cleanup_push(clean_up, victim);
    queue_here(&victim->self);
    victim->answer = victim->call(victim);
    victim->returned = true;
    while (!victim->decided) check_pause_ms(1);
    pthread_testcancel();
    pthread_cleanup_pop(1);
    return NULL;
}

static void start(struct victim *victim) {
    victim->answer = NO_ANSWER;
    victim->self.thread = check_start(suffer, victim);
}

static void cancel(struct victim *victim) {
    if (pthread_cancel(victim->self.thread) != 0) FAIL("no cancellation");
    victim->decided = true;
}

static void is_cancelled(struct victim *victim, int answer) {
    CHECK(check_join(victim->self.thread) == PTHREAD_CANCELED);
    ANSWERS(answer, victim->answer);
}

/* Nothing of ours is on the server. */
static void is_free(const char *name) {
    char key[128];
    snprintf(key, sizeof key, "lock:%s", name);
    QUEUE_BECOMES(0, name);
    CHECK(!plain_has(key));
}

static void a_cancelled_thread_goes_through_with_its_wait(void) {
    int (*const calls[])(struct victim *) = {locks, locks_by_name, acquires, acquires_by_name};
    memlock_semaphore *semaphore;
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(client, "through", 1, 600000, &semaphore));
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        struct victim victim = {.name = "through", .call = calls[i], .semaphore = semaphore};
        memlock_lock *held;
        memlock_permit *held_permit;
        uint32_t available = 0;
        ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, "through", 600000, 0, &held));
        ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire(semaphore, 1, 0, &held_permit));
        start(&victim);
        EVENTUALLY(queue_sleeps(&victim.self));
        cancel(&victim);
        QUEUE_AT_BECOMES(1, i < 2 ? "lock:through" : "semaphore:through");
        CHECK(!victim.returned);
        ANSWERS(MEMLOCK_OK, memlock_unlock(held));
        ANSWERS(MEMLOCK_OK, memlock_permit_release(held_permit));
        is_cancelled(&victim, MEMLOCK_OK);
        is_free("through");
        ANSWERS(MEMLOCK_OK, memlock_semaphore_available(semaphore, &available));
        CHECK(available == 1);
    }
    memlock_semaphore_close(semaphore);
}

static void a_cancelled_wait_can_be_ended(void) {
    memlock_lock *held;
    struct victim victim = {.name = "ended", .call = locks};
    ANSWERS(MEMLOCK_OK, memlock_wait_open(client, &victim.wait));
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, "ended", 600000, 0, &held));
    start(&victim);
    EVENTUALLY(queue_sleeps(&victim.self));
    cancel(&victim);
    ANSWERS(MEMLOCK_OK, memlock_wait_cancel(victim.wait));
    is_cancelled(&victim, MEMLOCK_INTERRUPTED);
    QUEUE_BECOMES(0, "ended");
    memlock_wait_close(victim.wait);
    ANSWERS(MEMLOCK_OK, memlock_unlock(held));
    is_free("ended");
}

/* The first of them stands in the server's queue for all. */
static void the_other_waiters_of_the_client_go_on(void) {
    enum { WAITERS = 4 };
    for (int cancelled = 0; cancelled < WAITERS; cancelled++) {
        struct victim victims[WAITERS];
        memlock_lock *held;
        ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, "others", 600000, 0, &held));
        for (int i = 0; i < WAITERS; i++) {
            victims[i] = (struct victim){.name = "others", .call = locks};
            start(&victims[i]);
            EVENTUALLY(queue_sleeps(&victims[i].self));
        }
        cancel(&victims[cancelled]);
        ANSWERS(MEMLOCK_OK, memlock_unlock(held));
        for (int i = 0; i < WAITERS; i++) {
            if (i == cancelled) {
                is_cancelled(&victims[i], MEMLOCK_OK);
            } else {
                victims[i].decided = true;
                CHECK(check_join(victims[i].self.thread) == NULL);
                ANSWERS(MEMLOCK_OK, victims[i].answer);
            }
        }
        is_free("others");
    }
}

static int is_cancelled_and_locks(struct victim *victim) {
    pthread_cancel(pthread_self());
    victim->decided = true;
    return locks(victim);
}

static void a_call_with_a_cancellation_pending_is_made(void) {
    struct victim victim = {.name = "pending", .call = is_cancelled_and_locks};
    start(&victim);
    is_cancelled(&victim, MEMLOCK_OK);
    is_free("pending");
}

/* What requests without a reply have left, or still leave, is removed at the client's next contact. A
 * busy server may not answer within the timeout. */
static bool is_left_free(const char *name) {
    char key[128];
    memlock_lock *lock;
    snprintf(key, sizeof key, "lock:%s", name);
    if (memlock_mutex_lock(client, name, 30000, 60000, &lock) != MEMLOCK_OK) return false;
    return memlock_unlock(lock) == MEMLOCK_OK && !plain_has(key);
}

static _Atomic int notices;

static void tell_slowly(int level, const char *part, const char *message, void *arg) {
    (void)level, (void)part, (void)message, (void)arg;
    pthread_testcancel();
    check_pause_ms(1);
    notices++;
}

/* In the middle of a request, whose reply does not come; nor is a callback for messages cancelled. */
static void a_thread_that_waits_for_a_silent_server_can_be_cancelled(void) {
    char url[256];
    memlock_client *before = client;
    struct victim victim = {.name = "silent", .call = locks};
    snprintf(url, sizeof url, "memcached://127.0.0.1:%d?io_timeout=1s&outage=1s", plain_port());
    ANSWERS(MEMLOCK_OK, memlock_client_open(url, &client));
    EVENTUALLY(is_left_free("silent"));
    ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_TRACE, tell_slowly, NULL));
    freeze();
    start(&victim);
    EVENTUALLY(queue_is_in(SYS_recvfrom, &victim.self));
    cancel(&victim);
    CHECK(check_join(victim.self.thread) == PTHREAD_CANCELED && notices > 0);
    thaw();
    ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_OFF, NULL, NULL));
    EVENTUALLY(is_left_free("silent"));
    memlock_client_close(client);
    client = before;
}

static _Atomic bool in_danger;

static void cancel_the_renewer(int what, int64_t left_ms, void *arg) {
    (void)left_ms, (void)arg;
    if (what == MEMLOCK_LEASE_AT_RISK) {
        pthread_cancel(pthread_self());
        in_danger = true;
    }
}

static void the_thread_that_renews_leases_cannot_be_cancelled(void) {
    memlock_lock *at_risk = locked("at risk", 600000), *lock = renewed("renewed", SAFE_LEASE_MS, NULL);
    ANSWERS(MEMLOCK_OK, memlock_lock_renew(at_risk, 1, cancel_the_renewer, NULL));
    EVENTUALLY(in_danger);
    is_renewed(lock);
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    ANSWERS(MEMLOCK_OK, memlock_unlock(at_risk));
}

int main(void) {
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &client));
    RUN(a_cancelled_thread_goes_through_with_its_wait);
    RUN(a_cancelled_wait_can_be_ended);
    RUN(the_other_waiters_of_the_client_go_on);
    RUN(a_call_with_a_cancellation_pending_is_made);
    RUN(a_thread_that_waits_for_a_silent_server_can_be_cancelled);
    RUN(the_thread_that_renews_leases_cannot_be_cancelled);
    memlock_client_close(client);
    return 0;
}
