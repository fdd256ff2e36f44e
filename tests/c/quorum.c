/* `quorum=majority`: a lock on three servers, of which any one may be killed or started anew. */

#include "renewal.h"

#include "members.h"

static char url[256];

static memlock_lock *held(const char *name) {
    memlock_lock *lock;
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, name, GUARD_MS, PATIENCE_MS, &lock));
    return lock;
}

/* Or a majority was started anew a moment ago, and gives nothing yet. */
static void is_not_given(const char *name) {
    memlock_client *other;
    memlock_lock *lock;
    ANSWERS(MEMLOCK_OK, memlock_client_open(url, &other));
    const int answer = memlock_mutex_lock(other, name, GUARD_MS, 0, &lock);
    CHECK(answer == MEMLOCK_BUSY || answer == MEMLOCK_RECOVERING);
    memlock_client_close(other);
}

/* Each step with another server down, which is started anew afterwards. */
static void a_lock_is_taken_extended_checked_and_released_without_one_of_three(void) {
    uint64_t fence, last = 0;
    for (int place = 0; place < MEMBERS; place++) {
        kill_member(place);
        memlock_lock *lock = held("m");
        ANSWERS(MEMLOCK_OK, memlock_lock_extend(lock, GUARD_MS));
        ANSWERS(MEMLOCK_OK, memlock_lock_check(lock));
        is_not_given("m");
        ANSWERS(MEMLOCK_OK, memlock_lock_fence(lock, &fence));
        CHECK(fence > last);
        last = fence;
        start_member(place);
        ANSWERS(MEMLOCK_OK, memlock_lock_extend(lock, GUARD_MS));
        ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    }
}

/* Longer than its lease. Two of them start within one guard, so that others could have a majority by then. */
static void a_renewed_lock_is_kept_over_the_end_of_each_server(void) {
    struct notices notices = {0};
    int why = -1;
    memlock_lock *lock = held("renewed");
    ANSWERS(MEMLOCK_OK, memlock_lock_renew(lock, -1, note, &notices));
    for (int place = 0; place < MEMBERS; place++) {
        restart_member(place);
        is_not_given("renewed");
        ANSWERS(MEMLOCK_TIMED_OUT, memlock_lock_wait_lost(lock, GUARD_MS / 2, &why));
        ANSWERS(MEMLOCK_OK, memlock_lock_check(lock));
    }
    is_not_given("renewed");
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    for (int i = 0; i < notices.count; i++) CHECK(notices.what[i] == MEMLOCK_LEASE_AT_RISK);
}

static void without_a_majority_a_lock_fails_and_names_the_servers(void) {
    memlock_lock *lock;
    char address[32];
    kill_member(0);
    kill_member(2);
    const int answer = memlock_mutex_lock(client, "m", GUARD_MS, 0, &lock);
    CHECK(answer == MEMLOCK_UNREACHABLE || answer == MEMLOCK_UNKNOWN);
    for (int place = 0; place < MEMBERS; place++) {
        snprintf(address, sizeof address, "127.0.0.1:%d", members[place].port);
        SAYS(address);
    }
    start_member(0);
    start_member(2);
    ANSWERS(MEMLOCK_OK, memlock_unlock(held("m")));
}

static void only_mutexes_are_on_a_quorum(void) {
    memlock_semaphore *semaphore;
    memlock_list *list;
    memlock_client *other;
    ANSWERS(MEMLOCK_CONFIG, memlock_semaphore_open(client, "s", 3, GUARD_MS, &semaphore));
    SAYS("postgresql://");
    ANSWERS(MEMLOCK_CONFIG, memlock_list_set_up(client, "l", 1000, &list));
    ANSWERS(MEMLOCK_CONFIG, memlock_client_open("memcached://a,b?quorum=majority&guard=60s", &other));
    ANSWERS(MEMLOCK_CONFIG, memlock_client_open("memcached://a,b,c?quorum=majority", &other));
    SAYS("guard=60s");
}

/* Their client is that of MEMLOCK_URL. All three servers vote for the lock that is released without one of them. */
static void the_bare_functions_work_without_one_of_three(void) {
    check_pause_ms(members_recovery_ms());
    ANSWERS(MEMLOCK_OK, mutex_lock("bare", GUARD_MS / 1000));
    kill_member(1);
    is_not_given("bare");
    ANSWERS(MEMLOCK_OK, mutex_unlock("bare"));
    ANSWERS(MEMLOCK_OK, mutex_lock("bare", GUARD_MS / 1000));
    ANSWERS(MEMLOCK_OK, mutex_unlock("bare"));
    start_member(1);
}

int main(void) {
    start_members(url, sizeof url);
    setenv("MEMLOCK_URL", url, 1);
    ANSWERS(MEMLOCK_OK, memlock_client_open(url, &client));
    /* The guard's end. */
    ANSWERS(MEMLOCK_OK, memlock_unlock(held("m")));
    RUN(a_lock_is_taken_extended_checked_and_released_without_one_of_three);
    RUN(a_renewed_lock_is_kept_over_the_end_of_each_server);
    RUN(without_a_majority_a_lock_fails_and_names_the_servers);
    RUN(only_mutexes_are_on_a_quorum);
    RUN(the_bare_functions_work_without_one_of_three);
    memlock_client_close(client);
    for (int place = 0; place < MEMBERS; place++) kill_member(place);
    return 0;
}
