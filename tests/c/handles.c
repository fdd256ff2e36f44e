/* Handles: what is particular to C, such as results that stay as they were. What all languages share is in
 * tests/conformance. */

#include "check.h"
#include "server.h"

static const int64_t LONGEST_MS = 31622400000;

static memlock_client *client;

static memlock_lock *locked(const char *name) {
    memlock_lock *lock = NULL;
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, name, 30000, 0, &lock));
    CHECK(lock != NULL);
    return lock;
}

static memlock_semaphore *opened(const char *name, uint32_t permits) {
    memlock_semaphore *semaphore = NULL;
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(client, name, permits, 30000, &semaphore));
    CHECK(semaphore != NULL);
    return semaphore;
}

static memlock_permit *acquired(const memlock_semaphore *semaphore, uint32_t permits) {
    memlock_permit *permit = NULL;
    ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire(semaphore, permits, 0, &permit));
    CHECK(permit != NULL);
    return permit;
}

static memlock_list *fresh(const char *session) {
    memlock_list *list = NULL;
    ANSWERS(MEMLOCK_OK, memlock_list_set_up(client, session, 60000, &list));
    CHECK(list != NULL);
    return list;
}

/* --- Mutexes */

static void a_refusal_leaves_null_in_the_handle(void) {
    memlock_lock *const before = locked("before");
    char name[65538];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    const struct {
        const char *name;
        int64_t lease_ms, wait_ms;
        int answer;
    } bad[] = {
        {"", 30000, 0, MEMLOCK_INVALID},          {name, 30000, 0, MEMLOCK_INVALID},
        {"x", 0, 0, MEMLOCK_INVALID},             {"x", 999, 0, MEMLOCK_INVALID},
        {"x", -1, 0, MEMLOCK_INVALID},            {"x", INT64_MIN, 0, MEMLOCK_INVALID},
        {"x", LONGEST_MS + 1, 0, MEMLOCK_INVALID}, {"x", INT64_MAX, 0, MEMLOCK_INVALID},
        {"x", 30000, -2, MEMLOCK_INVALID},        {"x", 30000, INT64_MIN, MEMLOCK_INVALID},
        {"before", 30000, 0, MEMLOCK_BUSY},       {"before", 30000, 20, MEMLOCK_TIMED_OUT},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memlock_lock *lock = before;
        REFUSES(bad[i].answer, memlock_mutex_lock(client, bad[i].name, bad[i].lease_ms, bad[i].wait_ms, &lock));
        CHECK(lock == NULL);
        if (bad[i].answer != MEMLOCK_INVALID || bad[i].wait_ms != 0) continue;
        ANSWERS(MEMLOCK_INVALID, memlock_lock_extend(before, strcmp(bad[i].name, "x") == 0 ? bad[i].lease_ms : 0));
        for (uint32_t permits = 0; permits < 2; permits++) {
            memlock_semaphore *semaphore = (memlock_semaphore *)before;
            ANSWERS(MEMLOCK_INVALID,
                    memlock_semaphore_open(client, bad[i].name, permits, bad[i].lease_ms, &semaphore));
            CHECK(semaphore == NULL);
        }
    }
    CHECK(!plain_has("lock:x"));
    ANSWERS(MEMLOCK_OK, memlock_unlock(before));
}

static void the_owner_can_be_seen(void) {
    memlock_owner owner;
    ANSWERS(MEMLOCK_NOT_HELD, memlock_mutex_owner(client, "owned", &owner));
    const int64_t began = (int64_t)time(NULL);
    memlock_lock *lock = locked("owned");
    memset(&owner, 0xff, sizeof owner);
    ANSWERS(MEMLOCK_BUSY, memlock_mutex_owner(client, "owned", &owner));
    char host[256] = "";
    CHECK(gethostname(host, sizeof host - 1) == 0);
    CHECK(strcmp(owner.host, host) == 0 && owner.pid == (uint32_t)getpid());
    CHECK(owner.since >= began && owner.since <= (int64_t)time(NULL));
    CHECK(owner.remaining_ms > 0 && owner.remaining_ms <= 32000);
    CHECK(strlen(owner.token) > 0 && strlen(owner.token) < MEMLOCK_TOKEN_SIZE);
    ANSWERS(MEMLOCK_NOT_HELD, memlock_mutex_force_unlock(client, "owned", ""));
    ANSWERS(MEMLOCK_NOT_HELD, memlock_mutex_force_unlock(client, "owned", "\xff\xfe no token"));
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
}

static void a_plain_clients_lock_has_an_owner_without_a_name(void) {
    memlock_owner owner;
    CHECK(plain_add("lock:plain", 0));
    ANSWERS(MEMLOCK_BUSY, memlock_mutex_owner(client, "plain", &owner));
    CHECK(owner.host[0] == '\0' && owner.pid == 0 && owner.since == 0 && owner.remaining_ms == -1);
    CHECK(strlen(owner.token) > 0 && strlen(owner.token) < MEMLOCK_TOKEN_SIZE);
    ANSWERS(MEMLOCK_OK, memlock_mutex_force_unlock(client, "plain", owner.token));
    CHECK(plain_add("lock:plain", 1000));
    ANSWERS(MEMLOCK_BUSY, memlock_mutex_owner(client, "plain", &owner));
    CHECK(owner.remaining_ms > 500000 && owner.remaining_ms <= 1000000);
}

static void what_is_bound_to_a_thread_is_not_waited_for_by_it(void) {
    memlock_lock *lock = locked("bound"), *none = lock;
    memlock_semaphore *semaphore = opened("bound", 3);
    memlock_permit *permit = acquired(semaphore, 2), *one = NULL, *more = permit;
    memlock_wait *wait;
    ANSWERS(MEMLOCK_OK, memlock_wait_open(client, &wait));
    ANSWERS(MEMLOCK_INVALID, memlock_lock_bind(NULL));
    ANSWERS(MEMLOCK_INVALID, memlock_permit_bind(NULL));
    ANSWERS(MEMLOCK_OK, memlock_lock_bind(lock));
    ANSWERS(MEMLOCK_OK, memlock_lock_bind(lock));
    ANSWERS(MEMLOCK_OK, memlock_permit_bind(permit));
    REFUSES(MEMLOCK_DEADLOCK, memlock_mutex_lock(client, "bound", 30000, -1, &none));
    CHECK(none == NULL);
    REFUSES(MEMLOCK_DEADLOCK, memlock_semaphore_acquire(semaphore, 2, -1, &more));
    CHECK(more == NULL);
    REFUSES(MEMLOCK_BUSY, memlock_mutex_lock(client, "bound", 30000, 0, &none));
    REFUSES(MEMLOCK_TIMED_OUT, memlock_mutex_lock(client, "bound", 30000, 20, &none));
    REFUSES(MEMLOCK_TIMED_OUT, memlock_semaphore_acquire(semaphore, 2, 20, &more));
    /* One is left, and another mutex is free. */
    ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire(semaphore, 1, -1, &one));
    ANSWERS(MEMLOCK_OK, memlock_permit_release(one));
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, "not bound", 30000, -1, &none));
    ANSWERS(MEMLOCK_OK, memlock_unlock(none));
    /* Also while they are renewed. */
    ANSWERS(MEMLOCK_OK, memlock_lock_renew(lock, -1, NULL, NULL));
    REFUSES(MEMLOCK_DEADLOCK, memlock_mutex_lock(client, "bound", 30000, -1, &none));
    memlock_wait_cancel(wait);
    REFUSES(MEMLOCK_INTERRUPTED, memlock_mutex_lock_wait(client, "bound", 30000, -1, wait, &none));
    memlock_wait_close(wait);
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    ANSWERS(MEMLOCK_OK, memlock_permit_release(permit));
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, "bound", 30000, -1, &lock));
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    memlock_semaphore_close(semaphore);
}

/* --- Semaphores and their permits */

static void a_refusal_leaves_null_in_the_permit(void) {
    memlock_semaphore *semaphore = opened("refused", 1);
    memlock_permit *const held = acquired(semaphore, 1);
    const struct {
        uint32_t permits;
        int64_t timeout_ms;
        int answer;
    } refused[] = {
        {1, 0, MEMLOCK_BUSY},     {1, 30, MEMLOCK_TIMED_OUT}, {0, -1, MEMLOCK_INVALID},
        {6, -1, MEMLOCK_INVALID}, {1, -2, MEMLOCK_INVALID},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        memlock_permit *permit = held;
        REFUSES(refused[i].answer, memlock_semaphore_acquire(semaphore, refused[i].permits, refused[i].timeout_ms, &permit));
        CHECK(permit == NULL);
    }
    SAYS("timeout_ms");
    ANSWERS(MEMLOCK_OK, memlock_permit_release(held));
    memlock_semaphore_close(semaphore);
}

static void what_is_not_found_changes_no_result(void) {
    memlock_semaphore *semaphore = opened("nowhere", 0);
    uint32_t number = 77;
    uint64_t free_ones = 77;
    size_t count = 77;
    memlock_list *list;
    memlock_walk *walk = (memlock_walk *)semaphore;
    memlock_bytes key = {"key", 3};
    memlock_insertion done = {77, 77};
    ANSWERS(MEMLOCK_CONFIG, memlock_init("the last error"));
    ANSWERS(MEMLOCK_NOT_FOUND, memlock_semaphore_available(semaphore, &number));
    ANSWERS(MEMLOCK_NOT_FOUND, memlock_semaphore_holders(semaphore, NULL, 0, &count));
    /* Each of them says so, and what failed before is forgotten. */
    SAYS("There is no semaphore \"nowhere\" on memcached at ");
    memlock_semaphore_close(semaphore);
    ANSWERS(MEMLOCK_NOT_FOUND, memlock_counter_available(client, "nowhere", &free_ones));
    SAYS("There is no counter \"nowhere\" on memcached at ");
    ANSWERS(MEMLOCK_OK, memlock_list_open(client, "nowhere", &list));
    ANSWERS(MEMLOCK_NOT_FOUND, memlock_list_insert_many(list, &key, 1, &done));
    ANSWERS(MEMLOCK_NOT_FOUND, memlock_list_count(list, &free_ones));
    ANSWERS(MEMLOCK_NOT_FOUND, memlock_list_walk(list, &walk));
    CHECK(number == 77 && count == 77 && free_ones == 77 && done.id == 77 && done.answer == 77 && walk == NULL);
    memlock_list_close(list);
}

static void there_may_be_more_holders_than_room_for_them(void) {
    memlock_semaphore *semaphore = opened("seen", 6);
    memlock_permit *held[] = {acquired(semaphore, 1), acquired(semaphore, 2), acquired(semaphore, 3)};
    memlock_holder holders[3];
    size_t count = 77;
    char host[256] = "";
    CHECK(gethostname(host, sizeof host - 1) == 0);
    memset(holders, 0xff, sizeof holders);
    ANSWERS(MEMLOCK_OK, memlock_semaphore_holders(semaphore, holders, 2, &count));
    CHECK(count == 3 && holders[1].pid == (uint32_t)getpid() && holders[2].pid == UINT32_MAX);
    CHECK(strncmp(holders[0].host, host, 32) == 0 && strlen(holders[0].host) <= 32);
    CHECK(strlen(holders[0].token) == 32 && holders[0].remaining_ms > 0 && holders[0].remaining_ms <= 33000);
    count = 77;
    ANSWERS(MEMLOCK_OK, memlock_semaphore_holders(semaphore, NULL, 0, &count));
    CHECK(count == 3);
    for (int i = 0; i < 3; i++) ANSWERS(MEMLOCK_OK, memlock_permit_release(held[i]));
    memlock_semaphore_close(semaphore);
}

struct waiter {
    memlock_semaphore *semaphore;
    memlock_request request;
    pthread_t thread;
};

static void *wait_and_release(void *argument) {
    const struct waiter *self = argument;
    memlock_permit *permit;
    ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire_wait(self->semaphore, &self->request, -1, NULL, &permit));
    ANSWERS(MEMLOCK_OK, memlock_permit_release(permit));
    return NULL;
}

/* Its line in the queue says so: the last field is its age, or "-". */
static void a_strict_waiter_does_not_age(void) {
    memlock_semaphore *semaphore = opened("strict", 2);
    struct waiter waiters[] = {
        {.semaphore = semaphore, .request = {.permits = 2, .priority = -1, .strict = 1}},
        {.semaphore = semaphore, .request = {.permits = 2, .priority = -1}},
    };
    memlock_permit *held = acquired(semaphore, 2);
    waiters[0].thread = check_start(wait_and_release, &waiters[0]);
    QUEUE_AT_BECOMES(1, "semaphore:strict");
    CHECK(strstr(queue_at("semaphore:strict"), "#-1#0#2#-\n") != NULL);
    waiters[1].thread = check_start(wait_and_release, &waiters[1]);
    QUEUE_AT_BECOMES(2, "semaphore:strict");
    const char *second = strchr(queue_at("semaphore:strict"), '\n') + 1;
    CHECK(strstr(second, "#-1#0#2\n") != NULL || strstr(second, "#-1#0#2#0\n") != NULL);
    ANSWERS(MEMLOCK_OK, memlock_permit_release(held));
    for (int i = 0; i < 2; i++) check_join(waiters[i].thread);
    memlock_semaphore_close(semaphore);
}

/* --- Lists and their iterations */

/* The step must give this key, or the end. */
static void steps_to(memlock_walk *walk, uint64_t id, const char *key, size_t length) {
    uint64_t id_found = 77;
    const char *found = "?";
    size_t length_found = 77;
    ANSWERS(MEMLOCK_OK, memlock_walk_next(walk, &id_found, &found, &length_found));
    CHECK(id_found == id && length_found == length && (found == NULL) == (key == NULL));
    CHECK(key == NULL || memcmp(found, key, length) == 0);
}

static void an_iteration_outlives_its_list_and_ends_again_and_again(void) {
    memlock_list *list = fresh("walked");
    memlock_walk *walk, *left_early;
    uint64_t id = 77;
    ANSWERS(MEMLOCK_OK, memlock_list_insert(list, "\0", 1, NULL));
    ANSWERS(MEMLOCK_OK, memlock_list_insert(list, "a\0b", 3, &id));
    REFUSES(MEMLOCK_DUPLICATE, memlock_list_insert(list, "\0", 1, NULL));
    CHECK(id == 2);
    ANSWERS(MEMLOCK_OK, memlock_list_walk(list, &walk));
    ANSWERS(MEMLOCK_OK, memlock_list_walk(list, &left_early));
    steps_to(left_early, 1, "\0", 1);
    memlock_walk_close(left_early);
    memlock_list_close(list);
    steps_to(walk, 1, "\0", 1);
    steps_to(walk, 2, "a\0b", 3);
    for (int i = 0; i < 3; i++) steps_to(walk, 0, NULL, 0);
    memlock_walk_close(walk);
}

static void a_walk_whose_session_ends_says_so(void) {
    enum { MANY = 300 };
    memlock_list *list = fresh("ends");
    for (int i = 0; i < MANY; i++) ANSWERS(MEMLOCK_OK, memlock_list_insert(list, (char *)&i, sizeof i, NULL));
    memlock_walk *walk;
    uint64_t id;
    const char *key;
    size_t length;
    ANSWERS(MEMLOCK_OK, memlock_list_walk(list, &walk));
    ANSWERS(MEMLOCK_OK, memlock_walk_next(walk, &id, &key, &length));
    ANSWERS(MEMLOCK_OK, memlock_list_tear_down(list));
    memlock_list_close(list);
    /* What was read ahead still comes; then not the end, as if those had been all. */
    int answer = MEMLOCK_OK;
    while (answer == MEMLOCK_OK) {
        answer = memlock_walk_next(walk, &id, &key, &length);
        CHECK(answer != MEMLOCK_OK || (key != NULL && id < MANY));
    }
    ANSWERS(MEMLOCK_NOT_FOUND, answer);
    CHECK(key == NULL && id == 0 && length == 0);
    memlock_walk_close(walk);
}

/* --- Counters */

static void a_counter_has_any_number_and_no_negative_timeout(void) {
    uint64_t free_ones = 0;
    ANSWERS(MEMLOCK_OK, memlock_counter_set_up(client, "most", UINT64_MAX));
    ANSWERS(MEMLOCK_OK, memlock_counter_available(client, "most", &free_ones));
    CHECK(free_ones == UINT64_MAX);
    const int64_t waits[] = {-2, INT64_MIN};
    for (size_t i = 0; i < 2; i++) {
        ANSWERS(MEMLOCK_INVALID, memlock_counter_retry(client, "most", waits[i], NULL));
        ANSWERS(MEMLOCK_INVALID, memlock_counter_park(client, "most", 0, waits[i], NULL));
        SAYS("timeout_ms");
    }
}

int main(void) {
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &client));
    RUN(a_refusal_leaves_null_in_the_handle);
    RUN(the_owner_can_be_seen);
    RUN(a_plain_clients_lock_has_an_owner_without_a_name);
    RUN(what_is_bound_to_a_thread_is_not_waited_for_by_it);
    RUN(a_refusal_leaves_null_in_the_permit);
    RUN(what_is_not_found_changes_no_result);
    RUN(there_may_be_more_holders_than_room_for_them);
    RUN(a_strict_waiter_does_not_age);
    RUN(an_iteration_outlives_its_list_and_ends_again_and_again);
    RUN(a_walk_whose_session_ends_says_so);
    RUN(a_counter_has_any_number_and_no_negative_timeout);
    memlock_client_close(client);
    return 0;
}
