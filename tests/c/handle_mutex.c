/* The mutex by handle: locking, leases, fences, owners. */

#include "check.h"
#include "memcached_text.h"

static const int64_t LONGEST_MS = 31622400000;

static memlock_client *client;

static memlock_lock *locked(const char *name, int64_t lease_ms) {
    memlock_lock *lock = NULL;
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, name, lease_ms, 0, &lock));
    CHECK(lock != NULL);
    return lock;
}

static int64_t remaining(const memlock_lock *lock) {
    int64_t left = -1;
    ANSWERS(MEMLOCK_OK, memlock_lock_remaining_ms(lock, &left));
    return left;
}

static uint64_t fence(const memlock_lock *lock) {
    uint64_t number = 0;
    ANSWERS(MEMLOCK_OK, memlock_lock_fence(lock, &number));
    return number;
}

static void a_lock_is_exclusive_until_it_is_unlocked(void) {
    memlock_lock *first = locked("a", 30000);
    memlock_lock *second = first;
    ANSWERS(MEMLOCK_BUSY, memlock_mutex_lock(client, "a", 30000, 0, &second));
    CHECK(second == NULL);
    ANSWERS(MEMLOCK_OK, memlock_unlock(first));
    second = locked("a", 30000);
    ANSWERS(MEMLOCK_OK, memlock_unlock(second));
    CHECK(!plain_has("lock:a"));
}

static void a_handle_and_a_bare_lock_exclude_each_other(void) {
    memlock_lock *lock = locked("both", 30000);
    ANSWERS(MEMLOCK_BUSY, mutex_lock_nonblock("both", 30));
    ANSWERS(MEMLOCK_NOT_HELD, mutex_unlock("both"));
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    ANSWERS(MEMLOCK_OK, mutex_lock_nonblock("both", 30));
    ANSWERS(MEMLOCK_BUSY, memlock_mutex_lock(client, "both", 30000, 0, &lock));
    ANSWERS(MEMLOCK_OK, mutex_unlock("both"));
}

static void a_failure_leaves_null_in_the_handle(void) {
    memlock_lock *const before = locked("before", 30000);
    char name[65538];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    const struct {
        const char *name;
        int64_t lease_ms, wait_ms;
    } bad[] = {
        {NULL, 30000, 0},     {"", 30000, 0},           {name, 30000, 0},    {"x", 0, 0},
        {"x", 999, 0},        {"x", -1, 0},             {"x", INT64_MIN, 0}, {"x", LONGEST_MS + 1, 0},
        {"x", INT64_MAX, 0},  {"x", 30000, -2},         {"x", 30000, INT64_MIN},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memlock_lock *lock = before;
        ANSWERS(MEMLOCK_INVALID,
                memlock_mutex_lock(client, bad[i].name, bad[i].lease_ms, bad[i].wait_ms, &lock));
        CHECK(lock == NULL);
    }
    CHECK(!plain_has("lock:x"));
    ANSWERS(MEMLOCK_OK, memlock_unlock(before));
}

static void leases_run_from_one_second_to_366_days(void) {
    const int64_t good[] = {3000, 3001, (int64_t)31 * 24 * 3600 * 1000, LONGEST_MS};
    memlock_lock *shortest;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        const long long began = check_now_ms();
        memlock_lock *lock = locked("leases", good[i]);
        const int64_t left = remaining(lock);
        /* A second less if the server answered late. */
        CHECK(left <= good[i] && left > good[i] - 1900 - (check_now_ms() - began));
        /* The server keeps it for longer than we count on it. */
        CHECK((int64_t)plain_ttl("lock:leases") * 1000 >= left);
        ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    }
    /* It may be over by now. */
    IS_GRANTED(memlock_mutex_lock(client, "shortest", 1000, -1, &shortest));
    (void)memlock_unlock(shortest);
}

static void the_remaining_time_only_shrinks(void) {
    memlock_lock *lock = locked("shrinks", 30000);
    const int64_t before = remaining(lock);
    check_pause_ms(20);
    CHECK(remaining(lock) <= before - 20);
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
}

static void fences_rise_from_holder_to_holder(void) {
    uint64_t last = 0;
    for (int i = 0; i < 20; i++) {
        memlock_lock *lock = locked("fence", 30000);
        CHECK(fence(lock) > last);
        last = fence(lock);
        ANSWERS(MEMLOCK_OK, memlock_lock_extend(lock, 40000));
        CHECK(fence(lock) == last);
        ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    }
}

static void extending_counts_from_now_and_may_shorten(void) {
    memlock_lock *lock = locked("extend", 10000);
    const long long began = check_now_ms();
    ANSWERS(MEMLOCK_OK, memlock_lock_extend(lock, 60000));
    const int64_t left = remaining(lock);
    CHECK(left <= 60000 && left > 58000 - (check_now_ms() - began));
    CHECK(plain_ttl("lock:extend") >= 60);
    ANSWERS(MEMLOCK_OK, memlock_lock_extend(lock, 10000));
    CHECK(remaining(lock) <= 10000);
    const int64_t bad[] = {0, 999, -1, INT64_MIN, LONGEST_MS + 1, INT64_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ANSWERS(MEMLOCK_INVALID, memlock_lock_extend(lock, bad[i]));
    }
    CHECK(remaining(lock) > 5000);
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
}

static void a_lock_that_the_server_no_longer_has_is_lost(void) {
    memlock_lock *lock = locked("lost", 30000);
    CHECK(plain_delete("lock:lost"));
    ANSWERS(MEMLOCK_LOST, memlock_unlock(lock));
    lock = locked("lost", 30000);
    plain_flush();
    ANSWERS(MEMLOCK_LOST, memlock_lock_extend(lock, 30000));
    CHECK(remaining(lock) == 0);
    CHECK(memlock_unlock(lock) > 0);
    CHECK(!plain_has("lock:lost"));
}

static void neither_extending_nor_unlocking_touches_a_successor(void) {
    memlock_lock *extended = locked("extended", 30000), *unlocked = locked("unlocked", 30000);
    CHECK(plain_delete("lock:extended") && plain_add("lock:extended", 1000));
    CHECK(plain_delete("lock:unlocked") && plain_add("lock:unlocked", 1000));
    ANSWERS(MEMLOCK_LOST, memlock_lock_extend(extended, 5000));
    CHECK(memlock_unlock(extended) > 0);
    ANSWERS(MEMLOCK_LOST, memlock_unlock(unlocked));
    CHECK(plain_ttl("lock:extended") > 900 && plain_ttl("lock:unlocked") > 900);
    CHECK(plain_delete("lock:extended") && plain_delete("lock:unlocked"));
}

static void the_owner_can_be_seen(void) {
    memlock_owner owner;
    ANSWERS(MEMLOCK_NOT_HELD, memlock_mutex_owner(client, "owned", &owner));
    const int64_t began = (int64_t)time(NULL);
    memlock_lock *lock = locked("owned", 30000);
    memset(&owner, 0xff, sizeof owner);
    ANSWERS(MEMLOCK_BUSY, memlock_mutex_owner(client, "owned", &owner));
    char host[256] = "";
    CHECK(gethostname(host, sizeof host - 1) == 0);
    CHECK(strcmp(owner.host, host) == 0);
    CHECK(owner.pid == (uint32_t)getpid());
    CHECK(owner.since >= began && owner.since <= (int64_t)time(NULL));
    CHECK(owner.remaining_ms >= remaining(lock) && owner.remaining_ms <= 32000);
    CHECK(strlen(owner.token) > 0 && strlen(owner.token) < MEMLOCK_TOKEN_SIZE);
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
}

static void a_plain_clients_lock_has_an_owner_without_a_name(void) {
    memlock_owner owner;
    CHECK(plain_add("lock:plain", 0));
    ANSWERS(MEMLOCK_BUSY, memlock_mutex_owner(client, "plain", &owner));
    CHECK(owner.host[0] == '\0' && owner.pid == 0 && owner.since == 0 && owner.remaining_ms == -1);
    CHECK(strlen(owner.token) > 0 && strlen(owner.token) < MEMLOCK_TOKEN_SIZE);
    ANSWERS(MEMLOCK_OK, memlock_mutex_force_unlock(client, "plain", owner.token));
    CHECK(!plain_has("lock:plain"));
    CHECK(plain_add("lock:plain", 100));
    ANSWERS(MEMLOCK_BUSY, memlock_mutex_owner(client, "plain", &owner));
    CHECK(owner.remaining_ms > 90000 && owner.remaining_ms <= 100000);
    CHECK(plain_delete("lock:plain"));
}

static void an_operator_takes_off_only_the_holder_it_saw(void) {
    memlock_owner dead, other;
    memlock_lock *lock = locked("forced", 30000), *elsewhere = locked("elsewhere", 30000);
    ANSWERS(MEMLOCK_BUSY, memlock_mutex_owner(client, "forced", &dead));
    ANSWERS(MEMLOCK_BUSY, memlock_mutex_owner(client, "elsewhere", &other));
    ANSWERS(MEMLOCK_NOT_HELD, memlock_mutex_force_unlock(client, "forced", other.token));
    ANSWERS(MEMLOCK_NOT_HELD, memlock_mutex_force_unlock(client, "forced", ""));
    ANSWERS(MEMLOCK_NOT_HELD, memlock_mutex_force_unlock(client, "forced", "\xff\xfe no token"));
    ANSWERS(MEMLOCK_OK, memlock_mutex_force_unlock(client, "forced", dead.token));
    ANSWERS(MEMLOCK_NOT_HELD, memlock_mutex_force_unlock(client, "forced", dead.token));
    memlock_lock *later = locked("forced", 30000);
    ANSWERS(MEMLOCK_NOT_HELD, memlock_mutex_force_unlock(client, "forced", dead.token));
    ANSWERS(MEMLOCK_LOST, memlock_unlock(lock));
    ANSWERS(MEMLOCK_OK, memlock_unlock(later));
    ANSWERS(MEMLOCK_OK, memlock_unlock(elsewhere));
}

static void a_lock_outlives_its_client(void) {
    memlock_client *closed;
    memlock_lock *lock;
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &closed));
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(closed, "outlives", 30000, 0, &lock));
    memlock_client_close(closed);
    CHECK(remaining(lock) > 0);
    ANSWERS(MEMLOCK_OK, memlock_lock_extend(lock, 30000));
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    CHECK(!plain_has("lock:outlives"));
}

static void a_prefix_is_a_world_of_its_own(void) {
    char url[256];
    memlock_client *elsewhere;
    memlock_lock *ours = locked("prefixed", 30000), *theirs;
    snprintf(url, sizeof url, "%s?prefix=app1.", check_url());
    ANSWERS(MEMLOCK_OK, memlock_client_open(url, &elsewhere));
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(elsewhere, "prefixed", 30000, 0, &theirs));
    CHECK(plain_has("lock:prefixed") && plain_has("app1.lock:prefixed"));
    ANSWERS(MEMLOCK_OK, memlock_unlock(ours));
    ANSWERS(MEMLOCK_OK, memlock_unlock(theirs));
    memlock_client_close(elsewhere);
}

int main(void) {
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &client));
    RUN(a_lock_is_exclusive_until_it_is_unlocked);
    RUN(a_handle_and_a_bare_lock_exclude_each_other);
    RUN(a_failure_leaves_null_in_the_handle);
    RUN(leases_run_from_one_second_to_366_days);
    RUN(the_remaining_time_only_shrinks);
    RUN(fences_rise_from_holder_to_holder);
    RUN(extending_counts_from_now_and_may_shorten);
    RUN(a_lock_that_the_server_no_longer_has_is_lost);
    RUN(neither_extending_nor_unlocking_touches_a_successor);
    RUN(the_owner_can_be_seen);
    RUN(a_plain_clients_lock_has_an_owner_without_a_name);
    RUN(an_operator_takes_off_only_the_holder_it_saw);
    RUN(a_lock_outlives_its_client);
    RUN(a_prefix_is_a_world_of_its_own);
    memlock_client_close(client);
    return 0;
}
