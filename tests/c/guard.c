/* `guard=`: what is held survives the end of its server, and nothing new is granted meanwhile. */

#include "renewal.h"

#include "queue.h"
#include "restart.h"

/* Under valgrind, on a busy machine, a call may take half a second. */
enum { GUARD_MS = 6000, PATIENCE_MS = 30000 };

static long long began;

static void restart(void) {
    began = check_now_ms();
    restart_server();
}

/* The server that was restarted last gives nothing new for certain. */
static void it_recovers(void) {
    memlock_lock *lock;
    ANSWERS(MEMLOCK_RECOVERING, memlock_mutex_lock(client, "another", GUARD_MS, 0, &lock));
    CHECK(lock == NULL);
    CHECK(check_now_ms() - began < GUARD_MS);
}

static memlock_lock *held(const char *name) {
    memlock_lock *lock;
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, name, GUARD_MS, PATIENCE_MS, &lock));
    ANSWERS(MEMLOCK_OK, memlock_lock_extend(lock, GUARD_MS));
    return lock;
}

static void a_try_says_for_how_long_yet(void) {
    memlock_lock *lock;
    memlock_semaphore *semaphore;
    memlock_permit *permit;
    restart();
    ANSWERS(MEMLOCK_RECOVERING, memlock_mutex_lock(client, "m", GUARD_MS, 0, &lock));
    CHECK(lock == NULL && MEMLOCK_RECOVERING == 9);
    SAYS("\"m\"");
    SAYS("was started");
    SAYS(" ago, and gives new ones in ");
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(client, "s", 0, GUARD_MS, &semaphore));
    ANSWERS(MEMLOCK_RECOVERING, memlock_semaphore_acquire(semaphore, 1, 0, &permit));
    CHECK(permit == NULL);
    memlock_semaphore_close(semaphore);
    ANSWERS(MEMLOCK_TIMED_OUT, memlock_mutex_lock(client, "m", GUARD_MS, 100, &lock));
    CHECK(check_now_ms() - began < GUARD_MS);
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, "m", GUARD_MS, PATIENCE_MS, &lock));
    CHECK(check_now_ms() - began >= GUARD_MS);
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
}

static void extensions_checks_and_releases_survive(void) {
    memlock_lock *extended = held("a"), *checked = held("b"), *released = held("c"), *next;
    uint64_t fence, later;
    ANSWERS(MEMLOCK_OK, memlock_lock_fence(extended, &fence));
    ANSWERS(MEMLOCK_OK, memlock_lock_extend(checked, GUARD_MS));
    ANSWERS(MEMLOCK_OK, memlock_lock_extend(extended, GUARD_MS));
    restart();
    ANSWERS(MEMLOCK_OK, memlock_lock_extend(extended, GUARD_MS));
    ANSWERS(MEMLOCK_OK, memlock_lock_check(checked));
    ANSWERS(MEMLOCK_OK, memlock_unlock(released));
    CHECK(plain_has("lock:a") && plain_has("lock:b") && !plain_has("lock:c"));
    ANSWERS(MEMLOCK_OK, memlock_lock_fence(extended, &later));
    CHECK(later == fence);
    it_recovers();
    ANSWERS(MEMLOCK_OK, memlock_unlock(extended));
    ANSWERS(MEMLOCK_OK, memlock_unlock(checked));
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, "a", GUARD_MS, PATIENCE_MS, &next));
    CHECK(check_now_ms() - began >= GUARD_MS);
    ANSWERS(MEMLOCK_OK, memlock_lock_fence(next, &later));
    CHECK(later > fence);
    ANSWERS(MEMLOCK_OK, memlock_unlock(next));
}

static void permits_survive(void) {
    memlock_semaphore *semaphore;
    memlock_permit *one, *two, *other;
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(client, "s", 3, GUARD_MS, &semaphore));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire(semaphore, 1, PATIENCE_MS, &one));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire(semaphore, 2, PATIENCE_MS, &two));
    ANSWERS(MEMLOCK_OK, memlock_permit_extend(one, GUARD_MS));
    restart();
    ANSWERS(MEMLOCK_OK, memlock_permit_extend(one, GUARD_MS));
    ANSWERS(MEMLOCK_OK, memlock_permit_check(two));
    ANSWERS(MEMLOCK_RECOVERING, memlock_semaphore_acquire(semaphore, 1, 0, &other));
    it_recovers();
    ANSWERS(MEMLOCK_OK, memlock_permit_release(one));
    ANSWERS(MEMLOCK_OK, memlock_permit_release(two));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire(semaphore, 3, PATIENCE_MS, &other));
    CHECK(check_now_ms() - began >= GUARD_MS);
    ANSWERS(MEMLOCK_OK, memlock_permit_release(other));
    memlock_semaphore_close(semaphore);
}

static void a_renewed_lock_survives_and_nothing_is_reported(void) {
    struct notices notices = {0};
    int why = -1;
    memlock_lock *lock = held("renewed");
    ANSWERS(MEMLOCK_OK, memlock_lock_renew(lock, -1, note, &notices));
    restart();
    EVENTUALLY(plain_has("lock:renewed"));
    CHECK(check_now_ms() - began < GUARD_MS);
    /* For longer than a lease. */
    ANSWERS(MEMLOCK_TIMED_OUT, memlock_lock_wait_lost(lock, GUARD_MS + 1500, &why));
    ANSWERS(MEMLOCK_OK, memlock_lock_check(lock));
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    check_nothing_was_lost(&notices);
}

static void what_has_ended_is_lost(void) {
    memlock_lock *lock = held("ended");
    ANSWERS(MEMLOCK_OK, memlock_lock_extend(lock, 2000));
    restart();
    check_pause_ms(2001);
    ANSWERS(MEMLOCK_LOST, memlock_lock_check(lock));
    ANSWERS(MEMLOCK_LOST, memlock_lock_extend(lock, GUARD_MS));
    CHECK(!plain_has("lock:ended"));
    it_recovers();
    ANSWERS(MEMLOCK_LOST, memlock_unlock(lock));
}

static void longer_leases_and_other_guards_are_refused(void) {
    memlock_lock *lock;
    memlock_semaphore *semaphore;
    memlock_client *other;
    char url[256];
    ANSWERS(MEMLOCK_INVALID, memlock_mutex_lock(client, "m", GUARD_MS + 1000, 0, &lock));
    SAYS("7 s");
    SAYS("guard of 6 s");
    ANSWERS(MEMLOCK_INVALID, memlock_semaphore_open(client, "s", 3, GUARD_MS + 1000, &semaphore));
    const char *parameters[] = {"", "?guard=9s"}, *says[] = {"no guard=", "guard=9s"};
    for (int i = 0; i < 2; i++) {
        snprintf(url, sizeof url, "memcached://127.0.0.1:%d%s", plain_port(), parameters[i]);
        ANSWERS(MEMLOCK_OK, memlock_client_open(url, &other));
        ANSWERS(MEMLOCK_CONFIG, memlock_mutex_lock(other, "m", 1000, -1, &lock));
        SAYS("guard=6s");
        SAYS(says[i]);
        memlock_client_close(other);
    }
    ANSWERS(MEMLOCK_CONFIG, memlock_client_open("memcached://h?guard=500ms", &other));
    SAYS("500 ms");
}

/* Their client is that of MEMLOCK_URL. */
static void the_bare_functions_heed_the_guard(void) {
    restart();
    ANSWERS(MEMLOCK_RECOVERING, mutex_lock_nonblock("bare", 1));
    ANSWERS(MEMLOCK_INVALID, mutex_lock("bare", GUARD_MS / 1000 + 1));
    SAYS("guard of 6 s");
    ANSWERS(MEMLOCK_OK, mutex_lock("bare", GUARD_MS / 1000));
    CHECK(check_now_ms() - began >= GUARD_MS);
    restart();
    ANSWERS(MEMLOCK_OK, mutex_unlock("bare"));
    CHECK(check_now_ms() - began < GUARD_MS);
    ANSWERS(MEMLOCK_NOT_HELD, mutex_unlock("bare"));
}

/* Under valgrind, the first call of each function takes long. */
static void warm_up(void) {
    memlock_lock *lock = held("warm");
    memlock_semaphore *semaphore;
    memlock_permit *permit;
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(client, "warm", 1, GUARD_MS, &semaphore));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire(semaphore, 1, PATIENCE_MS, &permit));
    ANSWERS(MEMLOCK_OK, memlock_permit_extend(permit, GUARD_MS));
    ANSWERS(MEMLOCK_OK, memlock_permit_release(permit));
    memlock_semaphore_close(semaphore);
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
}

int main(void) {
    char url[256];
    snprintf(url, sizeof url, "%s?guard=6s", check_url());
    setenv("MEMLOCK_URL", url, 1);
    ANSWERS(MEMLOCK_OK, memlock_client_open(url, &client));
    RUN(warm_up);
    RUN(a_try_says_for_how_long_yet);
    RUN(extensions_checks_and_releases_survive);
    RUN(permits_survive);
    RUN(a_renewed_lock_survives_and_nothing_is_reported);
    RUN(what_has_ended_is_lost);
    RUN(longer_leases_and_other_guards_are_refused);
    RUN(the_bare_functions_heed_the_guard);
    memlock_client_close(client);
    kill_server();
    return 0;
}
