/* The semaphore by handle: what is particular to C. What all languages share is in tests/conformance. */

#include "check.h"
#include "queue.h"

enum { THREADS = 8, TURNS = 15 };
static const int64_t LONGEST_MS = 31622400000;

static memlock_client *client;

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

static int64_t remaining(const memlock_permit *permit) {
    int64_t left = -1;
    ANSWERS(MEMLOCK_OK, memlock_permit_remaining_ms(permit, &left));
    return left;
}

static uint32_t available(const memlock_semaphore *semaphore) {
    uint32_t free_ones = 0;
    ANSWERS(MEMLOCK_OK, memlock_semaphore_available(semaphore, &free_ones));
    return free_ones;
}

static void a_permit_tells_how_many_it_is(void) {
    memlock_semaphore *semaphore = opened("several", 5);
    memlock_permit *three = acquired(semaphore, 3);
    uint32_t count = 0;
    ANSWERS(MEMLOCK_OK, memlock_permit_count(three, &count));
    CHECK(count == 3);
    ANSWERS(MEMLOCK_OK, memlock_permit_release(three));
    memlock_semaphore_close(semaphore);
}

static void a_failure_leaves_null_in_the_handle(void) {
    memlock_semaphore *const before = opened("before", 1);
    char name[65538];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    const struct {
        const char *name;
        int64_t lease_ms;
    } bad[] = {
        {NULL, 30000}, {"", 30000},      {name, 30000},         {"x", 0},         {"x", 999},
        {"x", -1},     {"x", INT64_MIN}, {"x", LONGEST_MS + 1}, {"x", INT64_MAX},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        for (uint32_t permits = 0; permits < 2; permits++) {
            memlock_semaphore *semaphore = before;
            ANSWERS(MEMLOCK_INVALID,
                    memlock_semaphore_open(client, bad[i].name, permits, bad[i].lease_ms, &semaphore));
            CHECK(semaphore == NULL);
        }
    }
    memlock_permit *const held = acquired(before, 1), *permit = held;
    ANSWERS(MEMLOCK_INVALID, memlock_semaphore_acquire(before, 1, -2, &permit));
    CHECK(permit == NULL);
    SAYS("timeout_ms");
    const struct {
        uint32_t permits;
        int64_t timeout_ms;
        int answer;
    } refused[] = {
        {1, 0, MEMLOCK_BUSY}, {1, 30, MEMLOCK_TIMED_OUT}, {0, -1, MEMLOCK_INVALID}, {6, -1, MEMLOCK_INVALID}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        permit = held;
        ANSWERS(refused[i].answer, memlock_semaphore_acquire(before, refused[i].permits, refused[i].timeout_ms, &permit));
        CHECK(permit == NULL);
    }
    ANSWERS(MEMLOCK_OK, memlock_permit_release(held));
    memlock_semaphore_close(before);
}

static void leases_run_from_one_second_to_366_days(void) {
    const int64_t good[] = {3000, 3001, (int64_t)31 * 24 * 3600 * 1000, LONGEST_MS};
    memlock_semaphore *semaphore;
    memlock_permit *shortest;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        memlock_holder holder;
        size_t count = 0;
        ANSWERS(MEMLOCK_OK, memlock_semaphore_open(client, "leases", 1, good[i], &semaphore));
        const long long began = check_now_ms();
        memlock_permit *permit = acquired(semaphore, 1);
        const int64_t left = remaining(permit);
        /* A second less if the server answered late. */
        CHECK(left <= good[i] && left > good[i] - 1900 - (check_now_ms() - began));
        /* The server keeps it for longer than we count on it. */
        ANSWERS(MEMLOCK_OK, memlock_semaphore_holders(semaphore, &holder, 1, &count));
        CHECK(count == 1 && holder.remaining_ms >= left && holder.remaining_ms <= left + left / 4000 + 4000);
        ANSWERS(MEMLOCK_OK, memlock_permit_release(permit));
        memlock_semaphore_close(semaphore);
    }
    /* It may be over by now. */
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(client, "leases", 1, 1000, &semaphore));
    IS_GRANTED(memlock_semaphore_acquire(semaphore, 1, -1, &shortest));
    (void)memlock_permit_release(shortest);
    memlock_semaphore_close(semaphore);
}

static void what_nobody_has_set_up_is_not_found(void) {
    memlock_semaphore *semaphore = opened("nowhere", 0);
    memlock_permit *permit;
    uint32_t number = 77;
    size_t count = 77;
    ANSWERS(MEMLOCK_CONFIG, memlock_init("the last error"));
    ANSWERS(MEMLOCK_NOT_FOUND, memlock_semaphore_acquire(semaphore, 1, 0, &permit));
    CHECK(permit == NULL);
    ANSWERS(MEMLOCK_NOT_FOUND, memlock_semaphore_acquire(semaphore, 1, -1, &permit));
    ANSWERS(MEMLOCK_NOT_FOUND, memlock_semaphore_acquire_wait(semaphore, NULL, 1000, NULL, &permit));
    ANSWERS(MEMLOCK_NOT_FOUND, memlock_semaphore_set_up(semaphore, 60000));
    ANSWERS(MEMLOCK_NOT_FOUND, memlock_semaphore_tear_down(semaphore));
    ANSWERS(MEMLOCK_NOT_FOUND, memlock_semaphore_resize(semaphore, 4));
    ANSWERS(MEMLOCK_NOT_FOUND, memlock_semaphore_available(semaphore, &number));
    ANSWERS(MEMLOCK_NOT_FOUND, memlock_semaphore_holders(semaphore, NULL, 0, &count));
    CHECK(number == 77 && count == 77 && !plain_has("semaphore:nowhere"));
    /* Each of them says so, and what failed before is forgotten. */
    SAYS("There is no semaphore \"nowhere\" on memcached at ");
    memlock_semaphore_close(semaphore);
}

static void it_is_set_up_once_and_torn_down_for_everybody(void) {
    memlock_client *elsewhere;
    memlock_semaphore *semaphore = opened("set up", 2), *any = opened("set up", 0), *theirs;
    memlock_permit *held, *none;
    ANSWERS(MEMLOCK_OK, memlock_semaphore_set_up(semaphore, 60000));
    ANSWERS(MEMLOCK_EXISTS, memlock_semaphore_set_up(semaphore, 60000));
    ANSWERS(MEMLOCK_EXISTS, memlock_semaphore_set_up(any, 60000));
    CHECK(plain_ttl("semaphore:set%20up") >= 60);
    held = acquired(any, 1);
    ANSWERS(MEMLOCK_OK, memlock_permit_release(acquired(any, 1)));
    const long kept = plain_ttl("semaphore:set%20up");
    CHECK(kept >= 60 && kept <= 64);
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &elsewhere));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(elsewhere, "set up", 0, 30000, &theirs));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_tear_down(theirs));
    ANSWERS(MEMLOCK_NOT_FOUND, memlock_semaphore_tear_down(semaphore));
    ANSWERS(MEMLOCK_NOT_FOUND, memlock_semaphore_acquire(any, 1, 0, &none));
    ANSWERS(MEMLOCK_LOST, memlock_permit_release(held));
    const int64_t bad[] = {0, 999, -1, INT64_MIN, LONGEST_MS + 1, INT64_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ANSWERS(MEMLOCK_INVALID, memlock_semaphore_set_up(semaphore, bad[i]));
    }
    CHECK(!plain_has("semaphore:set%20up"));
    /* A client that knows the number sets it up again. */
    ANSWERS(MEMLOCK_OK, memlock_permit_release(acquired(semaphore, 1)));
    memlock_semaphore_close(theirs);
    memlock_client_close(elsewhere);
    memlock_semaphore_close(any);
    memlock_semaphore_close(semaphore);
}

static void its_holders_can_be_seen(void) {
    memlock_semaphore *semaphore = opened("seen", 6);
    memlock_holder holders[3];
    size_t count = 77;
    ANSWERS(MEMLOCK_OK, memlock_semaphore_set_up(semaphore, 60000));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_holders(semaphore, holders, 3, &count));
    CHECK(count == 0);
    const int64_t began = (int64_t)time(NULL);
    memlock_permit *held[3];
    for (uint32_t i = 0; i < 3; i++) held[i] = acquired(semaphore, i + 1);
    memset(holders, 0xff, sizeof holders);
    ANSWERS(MEMLOCK_OK, memlock_semaphore_holders(semaphore, holders, 2, &count));
    /* No more than there is room for, and all are reported. */
    CHECK(count == 3 && holders[2].pid == UINT32_MAX);
    ANSWERS(MEMLOCK_OK, memlock_semaphore_holders(semaphore, NULL, 0, &count));
    CHECK(count == 3);
    ANSWERS(MEMLOCK_OK, memlock_semaphore_holders(semaphore, holders, 3, &count));
    char host[256] = "";
    uint32_t sum = 0;
    CHECK(gethostname(host, 33) == 0 || host[32] != '\0');
    host[32] = '\0';
    for (int i = 0; i < 3; i++) {
        const memlock_holder *holder = &holders[i];
        CHECK(strcmp(holder->host, host) == 0 && holder->pid == (uint32_t)getpid());
        CHECK(holder->since >= began && holder->since <= (int64_t)time(NULL));
        CHECK(holder->remaining_ms > 27000 && holder->remaining_ms <= 33000);
        CHECK(strlen(holder->token) == 32 && strcmp(holder->token, holders[(i + 1) % 3].token) != 0);
        sum += holder->permits;
    }
    CHECK(sum == 6);
    for (int i = 0; i < 3; i++) ANSWERS(MEMLOCK_OK, memlock_permit_release(held[i]));
    memlock_semaphore_close(semaphore);
}

static void extending_counts_from_now_and_may_shorten(void) {
    memlock_semaphore *semaphore = opened("extend", 1);
    memlock_permit *permit = acquired(semaphore, 1);
    ANSWERS(MEMLOCK_OK, memlock_permit_extend(permit, 60000));
    CHECK(remaining(permit) > 58000 && remaining(permit) <= 60000);
    ANSWERS(MEMLOCK_OK, memlock_permit_extend(permit, 2000));
    CHECK(remaining(permit) <= 2000);
    const int64_t bad[] = {0, 999, -1, INT64_MIN, LONGEST_MS + 1, INT64_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ANSWERS(MEMLOCK_INVALID, memlock_permit_extend(permit, bad[i]));
    }
    CHECK(remaining(permit) > 0);
    ANSWERS(MEMLOCK_OK, memlock_permit_release(permit));
    memlock_semaphore_close(semaphore);
}

static void permits_that_the_server_no_longer_has_are_lost(void) {
    memlock_semaphore *semaphore = opened("lost", 2);
    memlock_permit *released = acquired(semaphore, 1), *extended = acquired(semaphore, 1);
    CHECK(plain_delete("semaphore:lost"));
    ANSWERS(MEMLOCK_LOST, memlock_permit_release(released));
    /* And those of the semaphore that comes after it are left alone. */
    memlock_permit *later = acquired(semaphore, 2);
    ANSWERS(MEMLOCK_LOST, memlock_permit_extend(extended, 30000));
    CHECK(remaining(extended) == 0);
    ANSWERS(MEMLOCK_LOST, memlock_permit_release(extended));
    CHECK(available(semaphore) == 0);
    ANSWERS(MEMLOCK_OK, memlock_permit_release(later));
    memlock_semaphore_close(semaphore);
}

static void *release_it(void *permit) {
    ANSWERS(MEMLOCK_OK, memlock_permit_release((memlock_permit *)permit));
    return NULL;
}

static void any_thread_may_release(void) {
    memlock_semaphore *semaphore = opened("any thread", 1);
    check_in_thread(release_it, acquired(semaphore, 1));
    CHECK(available(semaphore) == 1);
    memlock_semaphore_close(semaphore);
}

static void a_permit_outlives_its_handles(void) {
    memlock_client *closed;
    memlock_semaphore *semaphore, *still = opened("outlives", 1);
    memlock_permit *permit;
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &closed));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(closed, "outlives", 1, 30000, &semaphore));
    memlock_client_close(closed);
    ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire(semaphore, 1, 0, &permit));
    memlock_semaphore_close(semaphore);
    CHECK(remaining(permit) > 0 && available(still) == 0);
    ANSWERS(MEMLOCK_OK, memlock_permit_extend(permit, 30000));
    ANSWERS(MEMLOCK_OK, memlock_permit_release(permit));
    CHECK(available(still) == 1);
    memlock_semaphore_close(still);
}

/* A thread that waits for permits, and what it tells. */
struct waiter {
    memlock_semaphore *semaphore;
    memlock_request request;
    memlock_wait *wait;
    int answer;
    pthread_t thread;
};

static void *wait_for_it(void *argument) {
    struct waiter *self = (struct waiter *)argument;
    memlock_permit *permit;
    self->answer = memlock_semaphore_acquire_wait(self->semaphore, &self->request, -1, self->wait, &permit);
    if (self->answer != MEMLOCK_OK) return NULL;
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
    waiters[0].thread = check_start(wait_for_it, &waiters[0]);
    QUEUE_AT_BECOMES(1, "semaphore:strict");
    CHECK(strstr(queue_at("semaphore:strict"), "#-1#0#2#-\n") != NULL);
    waiters[1].thread = check_start(wait_for_it, &waiters[1]);
    QUEUE_AT_BECOMES(2, "semaphore:strict");
    const char *second = strchr(queue_at("semaphore:strict"), '\n') + 1;
    CHECK(strstr(second, "#-1#0#2\n") != NULL || strstr(second, "#-1#0#2#0\n") != NULL);
    ANSWERS(MEMLOCK_OK, memlock_permit_release(held));
    for (int i = 0; i < 2; i++) check_join(waiters[i].thread);
    CHECK(waiters[0].answer == MEMLOCK_OK && waiters[1].answer == MEMLOCK_OK);
    memlock_semaphore_close(semaphore);
}

static void a_wait_ends_alone_with_its_handle(void) {
    memlock_client *other;
    memlock_semaphore *semaphore = opened("cancelled", 1);
    memlock_permit *held = acquired(semaphore, 1), *permit = held;
    struct waiter ended = {.semaphore = semaphore, .request = {.permits = 1}}, goes_on = ended;
    ANSWERS(MEMLOCK_OK, memlock_wait_open(client, &ended.wait));
    ended.thread = check_start(wait_for_it, &ended);
    QUEUE_AT_BECOMES(1, "semaphore:cancelled");
    goes_on.thread = check_start(wait_for_it, &goes_on);
    QUEUE_AT_BECOMES(2, "semaphore:cancelled");
    struct check_watch watch;
    check_watch_start(&watch);
    ANSWERS(MEMLOCK_OK, memlock_wait_cancel(ended.wait));
    check_join(ended.thread);
    CHECK(check_watch_end_ms(&watch) < TOLD_MS);
    ANSWERS(MEMLOCK_INTERRUPTED, ended.answer);
    QUEUE_AT_BECOMES(1, "semaphore:cancelled");
    ANSWERS(MEMLOCK_INTERRUPTED, memlock_semaphore_acquire_wait(semaphore, NULL, 0, ended.wait, &permit));
    CHECK(permit == NULL);
    ANSWERS(MEMLOCK_OK, memlock_permit_release(held));
    check_join(goes_on.thread);
    ANSWERS(MEMLOCK_OK, goes_on.answer);
    memlock_wait_close(ended.wait);

    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &other));
    ANSWERS(MEMLOCK_OK, memlock_wait_open(other, &ended.wait));
    ANSWERS(MEMLOCK_INVALID, memlock_semaphore_acquire_wait(semaphore, NULL, 0, ended.wait, &permit));
    SAYS("another client");
    memlock_wait_close(ended.wait);
    memlock_client_close(other);
    memlock_semaphore_close(semaphore);
}

static void all_waits_of_a_client_end_together(void) {
    memlock_semaphore *semaphore = opened("all", 1);
    memlock_permit *held = acquired(semaphore, 1);
    struct waiter waiters[3];
    for (int i = 0; i < 3; i++) {
        waiters[i] = (struct waiter){.semaphore = semaphore, .request = {.permits = 1}};
        waiters[i].thread = check_start(wait_for_it, &waiters[i]);
    }
    QUEUE_AT_BECOMES(3, "semaphore:all");
    ANSWERS(MEMLOCK_OK, memlock_client_cancel_waits(client));
    for (int i = 0; i < 3; i++) {
        check_join(waiters[i].thread);
        ANSWERS(MEMLOCK_INTERRUPTED, waiters[i].answer);
    }
    CHECK(queue_length_at("semaphore:all") == 0);
    ANSWERS(MEMLOCK_OK, memlock_permit_release(held));
    memlock_semaphore_close(semaphore);
}

static _Atomic int inside, most;

static void *take_turns(void *argument) {
    memlock_semaphore *semaphore = (memlock_semaphore *)argument;
    for (int i = 0; i < TURNS; i++) {
        memlock_permit *permit;
        ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire(semaphore, 1, -1, &permit));
        const int now = ++inside;
        if (now > most) most = now;
        CHECK(now <= 3);
        check_pause_ms(1);
        inside--;
        ANSWERS(MEMLOCK_OK, memlock_permit_release(permit));
    }
    return NULL;
}

static void threads_share_a_handle(void) {
    memlock_semaphore *semaphore = opened("shared", 3);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) threads[i] = check_start(take_turns, semaphore);
    for (int i = 0; i < THREADS; i++) check_join(threads[i]);
    CHECK(most > 1 && inside == 0);
    CHECK(available(semaphore) == 3);
    memlock_semaphore_close(semaphore);
}

int main(void) {
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &client));
    RUN(a_permit_tells_how_many_it_is);
    RUN(a_failure_leaves_null_in_the_handle);
    RUN(leases_run_from_one_second_to_366_days);
    RUN(what_nobody_has_set_up_is_not_found);
    RUN(it_is_set_up_once_and_torn_down_for_everybody);
    RUN(its_holders_can_be_seen);
    RUN(extending_counts_from_now_and_may_shorten);
    RUN(permits_that_the_server_no_longer_has_are_lost);
    RUN(any_thread_may_release);
    RUN(a_permit_outlives_its_handles);
    RUN(a_strict_waiter_does_not_age);
    RUN(a_wait_ends_alone_with_its_handle);
    RUN(all_waits_of_a_client_end_together);
    RUN(threads_share_a_handle);
    memlock_client_close(client);
    return 0;
}
