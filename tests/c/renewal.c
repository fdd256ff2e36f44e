/* Renewal: for as long as it is wanted and never longer; and the holder is notified when it ends. */

#include "renewal.h"

#include "freeze.h"
#include "memcached_text.h"
#include "queue.h"

static void a_lock_is_kept_beyond_its_lease(void) {
    struct notices notices = {0};
    memlock_lock *lock = renewed("renewed", LEASE_MS, &notices), *other;
    uint64_t fence, later;
    int64_t left;
    int why = -1;
    ANSWERS(MEMLOCK_OK, memlock_lock_fence(lock, &fence));
    ANSWERS(MEMLOCK_TIMED_OUT, memlock_mutex_lock(client, "renewed", LEASE_MS, LEASE_MS + 3500, &other));
    CHECK(memlock_lock_is_held(lock) == 1);
    ANSWERS(MEMLOCK_OK, memlock_lock_check(lock));
    ANSWERS(MEMLOCK_OK, memlock_lock_lost(lock, &why));
    ANSWERS(MEMLOCK_TIMED_OUT, memlock_lock_wait_lost(lock, 10, &why));
    ANSWERS(MEMLOCK_OK, memlock_lock_remaining_ms(lock, &left));
    ANSWERS(MEMLOCK_OK, memlock_lock_fence(lock, &later));
    CHECK(left > 0 && left <= LEASE_MS && later == fence && why == -1);
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    CHECK(!plain_has("lock:renewed"));
    check_nothing_was_lost(&notices);
}

static void permits_are_kept(void) {
    memlock_semaphore *semaphore;
    memlock_permit *two, *three, *other;
    struct notices notices = {0};
    uint32_t count;
    int why;
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(client, "renewed", 5, LEASE_MS, &semaphore));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire(semaphore, 2, 0, &two));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire(semaphore, 3, 0, &three));
    ANSWERS(MEMLOCK_OK, memlock_permit_renew(two, -1, note, &notices));
    ANSWERS(MEMLOCK_OK, memlock_permit_renew(three, 3600000, NULL, NULL));
    ANSWERS(MEMLOCK_TIMED_OUT, memlock_semaphore_acquire(semaphore, 1, LEASE_MS + 3500, &other));
    CHECK(memlock_permit_is_held(two) == 1 && memlock_permit_is_held(three) == 1);
    ANSWERS(MEMLOCK_OK, memlock_permit_check(two));
    ANSWERS(MEMLOCK_OK, memlock_permit_count(three, &count));
    CHECK(count == 3);
    ANSWERS(MEMLOCK_INVALID, memlock_permit_extend(two, LEASE_MS));
    ANSWERS(MEMLOCK_OK, memlock_permit_release(three));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_available(semaphore, &count));
    CHECK(count == 3);
    check_nothing_was_lost(&notices);
    /* And found gone by the renewer. */
    CHECK(plain_delete("semaphore:renewed"));
    ANSWERS(MEMLOCK_LOST, memlock_permit_wait_lost(two, 20000, &why));
    CHECK(why == MEMLOCK_LOST_GONE && memlock_permit_is_held(two) == 0);
    EVENTUALLY(was_told(&notices, MEMLOCK_LOST_GONE));
    ANSWERS(MEMLOCK_LOST, memlock_permit_lost(two, &why));
    ANSWERS(MEMLOCK_LOST, memlock_permit_release(two));
    memlock_semaphore_close(semaphore);
}

static void what_cannot_be_kept_is_left_as_it_is(void) {
    memlock_lock *lock = locked("plain", LEASE_MS);
    int why;
    ANSWERS(MEMLOCK_INVALID, memlock_lock_renew(NULL, -1, NULL, NULL));
    ANSWERS(MEMLOCK_INVALID, memlock_lock_renew(lock, 0, NULL, NULL));
    ANSWERS(MEMLOCK_INVALID, memlock_lock_renew(lock, -2, NULL, NULL));
    SAYS("max_hold_ms");
    CHECK(memlock_lock_is_held(lock) == 1 && memlock_lock_is_held(NULL) == 0);
    ANSWERS(MEMLOCK_OK, memlock_lock_check(lock));
    ANSWERS(MEMLOCK_OK, memlock_lock_lost(lock, &why));
    ANSWERS(MEMLOCK_INVALID, memlock_lock_wait_lost(lock, -2, &why));
    ANSWERS(MEMLOCK_LOST, memlock_lock_wait_lost(lock, -1, &why));
    CHECK(why == MEMLOCK_LOST_EXPIRED && memlock_lock_is_held(lock) == 0);
    ANSWERS(MEMLOCK_LOST, memlock_lock_check(lock));
    ANSWERS(MEMLOCK_LOST, memlock_lock_renew(lock, -1, NULL, NULL));
    CHECK(renewers() == 0);
    memlock_unlock(lock);

    lock = renewed("twice", LEASE_MS, NULL);
    ANSWERS(MEMLOCK_INVALID, memlock_lock_renew(lock, -1, NULL, NULL));
    SAYS("already");
    ANSWERS(MEMLOCK_INVALID, memlock_lock_extend(lock, 5000));
    SAYS("renewed");
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
}

static void what_was_taken_away_is_told_and_not_taken_back(void) {
    struct notices notices = {0};
    int why = 0;
    memlock_lock *by_look = renewed("look", 30000, &notices);
    CHECK(plain_delete("lock:look") && plain_add("lock:look", 0));
    CHECK(memlock_lock_is_held(by_look) == 1);
    ANSWERS(MEMLOCK_LOST, memlock_lock_check(by_look));
    CHECK(memlock_lock_is_held(by_look) == 0);
    ANSWERS(MEMLOCK_LOST, memlock_lock_lost(by_look, &why));
    CHECK(why == MEMLOCK_LOST_GONE);
    EVENTUALLY(notices.count == 1);
    /* By the renewer, whichever thread has found it. */
    CHECK(notices.what[0] == MEMLOCK_LOST_GONE && notices.left_ms[0] == 0 && notices.thread[0] != notice_thread());
    ANSWERS(MEMLOCK_LOST, memlock_unlock(by_look));
    CHECK(notices.count == 1 && plain_has("lock:look"));

    struct notices renewal = {0};
    memlock_lock *by_renewal = renewed("renewal", LEASE_MS, &renewal);
    CHECK(plain_delete("lock:renewal") && plain_add("lock:renewal", 0));
    EVENTUALLY(renewal.count == 1);
    CHECK(renewal.what[0] == MEMLOCK_LOST_GONE);
    ANSWERS(MEMLOCK_LOST, memlock_unlock(by_renewal));
    CHECK(plain_delete("lock:renewal") && plain_delete("lock:look"));
}

static void a_program_that_hangs_does_not_hold_it_for_ever(void) {
    struct notices notices = {0};
    struct check_watch watch;
    check_watch_start(&watch);
    const long long began = check_now_ms();
    memlock_lock *lock = locked("longest", LEASE_MS);
    ANSWERS(MEMLOCK_OK, memlock_lock_renew(lock, 2000, note, &notices));
    EVENTUALLY(notices.count == 2);
    CHECK(notices.what[0] == MEMLOCK_LEASE_AT_RISK && notices.left_ms[0] > 0 && notices.left_ms[0] <= LEASE_MS);
    CHECK(notices.what[1] == MEMLOCK_LOST_MAX_HOLD);
    CHECK(check_now_ms() - began >= 1900);
    CHECK(check_watch_end_ms(&watch) <= 2000 + LEASE_MS + 900);
    ANSWERS(MEMLOCK_LOST, memlock_unlock(lock));
}

/* Its clock stood still, too, and goes on with its next tick: what it is given before that, it forgets too soon. */
static bool is_on_time(void) {
    const char *said = strstr(plain_until("stats\r\n", "END\r\n"), "STAT time ");
    return said != NULL && atoll(said + strlen("STAT time ")) >= (long long)time(NULL) - 1;
}

static memlock_client *opened(const char *parameter) {
    char url[128];
    memlock_client *another;
    snprintf(url, sizeof url, "%s?%s", check_url(), parameter);
    ANSWERS(MEMLOCK_OK, memlock_client_open(url, &another));
    return another;
}

/* The server stands still for longer than the lease. */
static void danger_comes_before_the_loss_and_each_once(void) {
    struct notices notices = {0};
    int why = 0;
    memlock_client *impatient = opened("io_timeout=1s");
    memlock_lock *lock;
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(impatient, "frozen", 6000, 0, &lock));
    ANSWERS(MEMLOCK_OK, memlock_lock_renew(lock, -1, note, &notices));
    freeze();
    EVENTUALLY(notices.count == 1);
    CHECK(notices.what[0] == MEMLOCK_LEASE_AT_RISK && notices.left_ms[0] > 0 && notices.left_ms[0] <= 3000);
    CHECK(memlock_lock_is_held(lock) == 1);
    ANSWERS(MEMLOCK_LOST, memlock_lock_wait_lost(lock, 20000, &why));
    CHECK(why == MEMLOCK_LOST_EXPIRED && memlock_lock_is_held(lock) == 0);
    EVENTUALLY(notices.count == 2);
    CHECK(notices.what[1] == MEMLOCK_LOST_EXPIRED);
    thaw();
    EVENTUALLY(is_on_time());
    ANSWERS(MEMLOCK_LOST, memlock_unlock(lock));
    CHECK(notices.count == 2);
    memlock_client_close(impatient);
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
    notices->what[0] = what;
    notices->left_ms[0] = left_ms;
    notices->answer = memlock_unlock(lock);
    notices->count++;
}

/* Also while other threads look at it. */
static void a_callback_may_give_back_what_it_is_told_of(void) {
    struct notices at_risk = {.answer = -100}, loss = {.answer = -100};
    watcher = (struct watcher){.lock = at_risk.lock = locked("callback", LEASE_MS)};
    ANSWERS(MEMLOCK_OK, memlock_lock_renew(at_risk.lock, 1, give_back, &at_risk));
    watcher.self.thread = check_start(wait_for_the_loss, NULL);
    EVENTUALLY(at_risk.count == 1);
    ANSWERS(MEMLOCK_OK, (int)at_risk.answer);
    ANSWERS(MEMLOCK_NOT_HELD, (int)(intptr_t)check_join(watcher.self.thread));
    CHECK(!plain_has("lock:callback"));

    watcher = (struct watcher){.lock = loss.lock = locked("callback", 30000)};
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
    memlock_client *patient = opened("io_timeout=10s");
    watcher = (struct watcher){.lock = NULL};
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(patient, "given back", 8000, 0, &watcher.lock));
    notices.lock = watcher.lock;
    ANSWERS(MEMLOCK_OK, memlock_lock_renew(notices.lock, 1, unlock_when_told, &notices));
    EVENTUALLY(notices.inside);
    freeze();
    watcher.self.thread = check_start(check_it, NULL);
    EVENTUALLY(queue_is_in(SYS_recvfrom, &watcher.self));
    notices.go_on = true;
    EVENTUALLY(keeper_waits_for_an_answer());
    thaw();
    ANSWERS(MEMLOCK_NOT_HELD, (int)(intptr_t)check_join(watcher.self.thread));
    EVENTUALLY(notices.count == 1);
    ANSWERS(MEMLOCK_OK, (int)notices.answer);
    memlock_client_close(patient);
}

static void take_time(int what, int64_t left_ms, void *arg) {
    struct notices *notices = arg;
    (void)what, (void)left_ms;
    notices->inside = true;
    while (!notices->go_on) check_pause_ms(1);
    check_pause_ms(100);
    notices->left = true;
    notices->count++;
}

static void nobody_is_told_once_it_is_given_back(void) {
    struct notices *notices = calloc(1, sizeof *notices);
    memlock_lock *lock = locked("slow callback", LEASE_MS);
    ANSWERS(MEMLOCK_OK, memlock_lock_renew(lock, 1, take_time, notices));
    EVENTUALLY(notices->inside);
    notices->go_on = true;
    const int answer = memlock_unlock(lock);
    CHECK(notices->left && notices->count == 1);
    CHECK(answer == MEMLOCK_OK || answer == MEMLOCK_LOST);
    memset(notices, 0xff, sizeof *notices);
    free(notices);
}

static void one_thread_keeps_all_and_goes_with_the_last(void) {
    memlock_lock *locks[20];
    EVENTUALLY(renewers() == 0);
    for (int i = 0; i < 20; i++) {
        char name[32];
        snprintf(name, sizeof name, "one of many %d", i);
        locks[i] = renewed(name, LEASE_MS, NULL);
    }
    EVENTUALLY(renewers() == 1);
    for (int i = 0; i < 19; i++) ANSWERS(MEMLOCK_OK, memlock_unlock(locks[i]));
    CHECK(renewers() == 1);
    ANSWERS(MEMLOCK_OK, memlock_unlock(locks[19]));
    EVENTUALLY(renewers() == 0);
    /* And comes again. */
    memlock_lock *again = renewed("again", LEASE_MS, NULL);
    EVENTUALLY(renewers() == 1);
    ANSWERS(MEMLOCK_OK, memlock_unlock(again));
    EVENTUALLY(renewers() == 0);
}

static void *unlock(void *lock) { return (void *)(intptr_t)memlock_unlock(lock); }

/* The renewal waits for a server that stands still; so does the unlocking then, and both are answered in one moment. */
static void unlocking_while_a_renewal_is_under_way_unlocks(void) {
    memlock_client *patient = opened("io_timeout=10s");
    EVENTUALLY(renewers() == 0);
    for (int turn = 0; turn < 3; turn++) {
        struct notices notices = {0};
        memlock_lock *lock;
        ANSWERS(MEMLOCK_OK, memlock_mutex_lock(patient, "renewing", 6000, -1, &lock));
        ANSWERS(MEMLOCK_OK, memlock_lock_renew(lock, -1, note, &notices));
        freeze();
        EVENTUALLY(keeper_waits_for_an_answer());
        if (turn == 1) {
            /* The other way round: unlocking begins when the renewal's answer is there. */
            thaw();
            ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
        } else {
            const pthread_t thread = check_start(unlock, lock);
            check_pause_ms(100);
            thaw();
            CHECK((int)(intptr_t)check_join(thread) == MEMLOCK_OK);
        }
        CHECK(!plain_has("lock:renewing"));
        check_pause_ms(100);
        CHECK(!plain_has("lock:renewing"));
        check_nothing_was_lost(&notices);
    }
    memlock_client_close(patient);
}

/* The last one: there is no server afterwards. */
static void a_server_that_dies_is_told(void) {
    struct notices notices = {0};
    int why = 0;
    memlock_lock *lock = renewed("killed", LEASE_MS, &notices), *released = renewed("released", 30000, &notices);
    CHECK(kill(check_server(), SIGKILL) == 0);
    ANSWERS(MEMLOCK_LOST, memlock_lock_wait_lost(lock, 20000, &why));
    CHECK(why == MEMLOCK_LOST_EXPIRED);
    EVENTUALLY(notices.count == 2);
    CHECK(notices.what[0] == MEMLOCK_LEASE_AT_RISK && notices.what[1] == MEMLOCK_LOST_EXPIRED);
    /* The renewer has reported the loss, and then cleans up. Until then, unlocking would ask the server. */
    EVENTUALLY(keeper_is_idle());
    ANSWERS(MEMLOCK_LOST, memlock_unlock(lock));
    const int answer = memlock_unlock(released);
    CHECK(answer == MEMLOCK_UNREACHABLE || answer == MEMLOCK_UNKNOWN);
    EVENTUALLY(renewers() == 0);
}

int main(void) {
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &client));
    RUN(a_lock_is_kept_beyond_its_lease);
    RUN(permits_are_kept);
    RUN(what_cannot_be_kept_is_left_as_it_is);
    RUN(what_was_taken_away_is_told_and_not_taken_back);
    RUN(a_program_that_hangs_does_not_hold_it_for_ever);
    RUN(danger_comes_before_the_loss_and_each_once);
    RUN(a_callback_may_give_back_what_it_is_told_of);
    RUN(what_is_given_back_while_it_is_asked_for_is_not_called_lost);
    RUN(nobody_is_told_once_it_is_given_back);
    RUN(one_thread_keeps_all_and_goes_with_the_last);
    RUN(unlocking_while_a_renewal_is_under_way_unlocks);
    RUN(a_server_that_dies_is_told);
    memlock_client_close(client);
    return 0;
}
