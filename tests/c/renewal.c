/* Renewal: its arguments, and the callbacks that are told of its end and may use the handle. What all languages share is
 * in tests/conformance. */

#include "renewal.h"

static void what_cannot_be_renewed_is_left_as_it_is(void) {
    memlock_lock *lock = locked("plain", LEASE_MS);
    int why = 77;
    ANSWERS(MEMLOCK_INVALID, memlock_lock_renew(NULL, -1, NULL, NULL));
    ANSWERS(MEMLOCK_INVALID, memlock_lock_renew(lock, 0, NULL, NULL));
    ANSWERS(MEMLOCK_INVALID, memlock_lock_renew(lock, -2, NULL, NULL));
    SAYS("max_hold_ms");
    ANSWERS(MEMLOCK_INVALID, memlock_lock_wait_lost(lock, -2, &why));
    CHECK(memlock_lock_is_held(NULL) == 0 && memlock_permit_is_held(NULL) == 0 && why == 77);
    ANSWERS(MEMLOCK_LOST, memlock_lock_wait_lost(lock, -1, &why));
    CHECK(why == MEMLOCK_LOST_EXPIRED && memlock_lock_is_held(lock) == 0);
    ANSWERS(MEMLOCK_LOST, memlock_lock_check(lock));
    ANSWERS(MEMLOCK_LOST, memlock_lock_renew(lock, -1, NULL, NULL));
    CHECK(renewers() == 0);
    memlock_unlock(lock);
}

static void what_is_renewed_is_not_renewed_twice_nor_extended(void) {
    memlock_lock *lock = renewed("twice", 600000, NULL);
    memlock_semaphore *semaphore;
    memlock_permit *permit;
    int why = 77;
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(client, "twice", 1, 600000, &semaphore));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire(semaphore, 1, 0, &permit));
    ANSWERS(MEMLOCK_OK, memlock_permit_renew(permit, 3600000, NULL, NULL));
    ANSWERS(MEMLOCK_INVALID, memlock_lock_renew(lock, -1, NULL, NULL));
    SAYS("already");
    ANSWERS(MEMLOCK_INVALID, memlock_permit_renew(permit, -1, NULL, NULL));
    SAYS("already");
    ANSWERS(MEMLOCK_INVALID, memlock_lock_extend(lock, 5000));
    SAYS("renewed");
    ANSWERS(MEMLOCK_INVALID, memlock_permit_extend(permit, 5000));
    SAYS("renewed");
    CHECK(memlock_lock_is_held(lock) == 1 && memlock_permit_is_held(permit) == 1);
    ANSWERS(MEMLOCK_OK, memlock_lock_check(lock));
    ANSWERS(MEMLOCK_OK, memlock_permit_check(permit));
    ANSWERS(MEMLOCK_OK, memlock_lock_lost(lock, &why));
    ANSWERS(MEMLOCK_OK, memlock_permit_lost(permit, &why));
    ANSWERS(MEMLOCK_TIMED_OUT, memlock_lock_wait_lost(lock, 10, &why));
    ANSWERS(MEMLOCK_TIMED_OUT, memlock_permit_wait_lost(permit, 10, &why));
    CHECK(why == 77);
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    ANSWERS(MEMLOCK_OK, memlock_permit_release(permit));
    memlock_semaphore_close(semaphore);
}

static struct watcher {
    struct queue_thread self;
    memlock_lock *lock;
    int why;
} watcher;

static void *wait_for_the_loss(void *arg) {
    (void)arg;
    queue_here(&watcher.self);
    return (void *)(intptr_t)memlock_lock_wait_lost(watcher.lock, -1, &watcher.why);
}

static void give_back(int what, int64_t left_ms, void *arg) {
    struct notices *notices = arg;
    if (notices->lock == NULL) FAIL("notice of a handle that was given back: %d", what);
    CHECK(what != MEMLOCK_LEASE_AT_RISK || left_ms > 0);
    if (what == MEMLOCK_LEASE_AT_RISK) EVENTUALLY(queue_is_in(SYS_futex, &watcher.self));
    CHECK(memlock_lock_is_held(notices->lock) == (what == MEMLOCK_LEASE_AT_RISK));
    memlock_lock *lock = notices->lock;
    notices->lock = NULL;
    notices->answer = memlock_unlock(lock);
    notices->count++;
}

/* Also while other threads look at it. */
static void a_callback_may_give_back_what_it_is_told_of(void) {
    struct notices at_risk = {.answer = -100}, loss = {.answer = -100};
    watcher = (struct watcher){.lock = at_risk.lock = locked("callback", 600000)};
    ANSWERS(MEMLOCK_OK, memlock_lock_renew(at_risk.lock, 1, give_back, &at_risk));
    watcher.self.thread = check_start(wait_for_the_loss, NULL);
    EVENTUALLY(at_risk.count == 1);
    ANSWERS(MEMLOCK_OK, (int)at_risk.answer);
    ANSWERS(MEMLOCK_NOT_HELD, (int)(intptr_t)check_join(watcher.self.thread));
    CHECK(!plain_has("lock:callback"));

    watcher = (struct watcher){.lock = loss.lock = locked("callback", 600000)};
    ANSWERS(MEMLOCK_OK, memlock_lock_renew(loss.lock, -1, give_back, &loss));
    watcher.self.thread = check_start(wait_for_the_loss, NULL);
    EVENTUALLY(queue_is_in(SYS_futex, &watcher.self));
    CHECK(plain_delete("lock:callback"));
    ANSWERS(MEMLOCK_LOST, memlock_lock_check(watcher.lock));
    EVENTUALLY(loss.count == 1);
    ANSWERS(MEMLOCK_LOST, (int)loss.answer);
    ANSWERS(MEMLOCK_LOST, (int)(intptr_t)check_join(watcher.self.thread));
    CHECK(watcher.why == MEMLOCK_LOST_GONE);
}

static void unlock_when_told(int what, int64_t left_ms, void *arg) {
    struct notices *notices = arg;
    (void)left_ms;
    CHECK(what == MEMLOCK_LEASE_AT_RISK);
    notices->inside = true;
    while (!notices->go_on) check_pause_ms(1);
    notices->answer = memlock_unlock(notices->lock);
    notices->count++;
}

static void *check_it(void *arg) {
    (void)arg;
    queue_here(&watcher.self);
    return (void *)(intptr_t)memlock_lock_check(watcher.lock);
}

static void what_is_given_back_while_it_is_asked_for_is_not_called_lost(void) {
    struct notices notices = {.answer = -100};
    watcher = (struct watcher){.lock = NULL};
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, "given back", 600000, 0, &watcher.lock));
    notices.lock = watcher.lock;
    ANSWERS(MEMLOCK_OK, memlock_lock_renew(notices.lock, 1, unlock_when_told, &notices));
    EVENTUALLY(notices.inside);
    freeze();
    watcher.self.thread = check_start(check_it, NULL);
    EVENTUALLY(queue_is_in(SYS_recvfrom, &watcher.self));
    notices.go_on = true;
    EVENTUALLY(renewers_in(SYS_recvfrom) > 0);
    thaw();
    ANSWERS(MEMLOCK_NOT_HELD, (int)(intptr_t)check_join(watcher.self.thread));
    EVENTUALLY(notices.count == 1);
    ANSWERS(MEMLOCK_OK, (int)notices.answer);
}

static void one_thread_keeps_all_and_goes_with_the_last(void) {
    memlock_lock *locks[20];
    EVENTUALLY(renewers() == 0);
    for (int i = 0; i < 20; i++) {
        char name[32];
        snprintf(name, sizeof name, "one of many %d", i);
        locks[i] = renewed(name, 600000, NULL);
    }
    EVENTUALLY(renewers() == 1);
    for (int i = 0; i < 19; i++) ANSWERS(MEMLOCK_OK, memlock_unlock(locks[i]));
    CHECK(renewers() == 1);
    ANSWERS(MEMLOCK_OK, memlock_unlock(locks[19]));
    EVENTUALLY(renewers() == 0);
    /* And comes again. */
    memlock_lock *again = renewed("again", 600000, NULL);
    EVENTUALLY(renewers() == 1);
    ANSWERS(MEMLOCK_OK, memlock_unlock(again));
    EVENTUALLY(renewers() == 0);
}

int main(void) {
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &client));
    RUN(what_cannot_be_renewed_is_left_as_it_is);
    RUN(what_is_renewed_is_not_renewed_twice_nor_extended);
    RUN(a_callback_may_give_back_what_it_is_told_of);
    RUN(what_is_given_back_while_it_is_asked_for_is_not_called_lost);
    RUN(one_thread_keeps_all_and_goes_with_the_last);
    memlock_client_close(client);
    return 0;
}
