/* The semaphore's five bare functions: every answer that they give. */

#include "check.h"
#include "queue.h"

#include <limits.h>

enum { LONGEST_NAME = 65536, LONGEST = 366 * 24 * 3600, THREADS = 6, TURNS = 10 };

static void the_functions_are_in_burtons_manner(void) {
    int (*set_up)(const char *name, uint32_t permits, time_t duration) = semaphore_set_up;
    int (*acquire)(const char *name, time_t duration) = semaphore_acquire;
    int (*nonblock)(const char *name, time_t duration) = semaphore_acquire_nonblock;
    int (*release)(const char *name) = semaphore_release;
    int (*tear_down)(const char *name) = semaphore_tear_down;
    ANSWERS(MEMLOCK_OK, set_up("signatures", 2, 60));
    ANSWERS(MEMLOCK_OK, acquire("signatures", 30));
    ANSWERS(MEMLOCK_OK, nonblock("signatures", 30));
    ANSWERS(MEMLOCK_OK, release("signatures"));
    ANSWERS(MEMLOCK_OK, release("signatures"));
    ANSWERS(MEMLOCK_OK, tear_down("signatures"));
}

static void exactly_one_set_up_is_the_first(void) {
    ANSWERS(MEMLOCK_OK, semaphore_set_up("first", 2, 60));
    ANSWERS(MEMLOCK_EXISTS, semaphore_set_up("first", 2, 60));
    SAYS("\"first\" on memcached at");
    ANSWERS(MEMLOCK_INVALID, semaphore_set_up("first", 3, 60));
    SAYS("has 2 permits");
    ANSWERS(MEMLOCK_INVALID, semaphore_set_up("first", 0, 60));
    ANSWERS(MEMLOCK_OK, semaphore_tear_down("first"));
    ANSWERS(MEMLOCK_OK, semaphore_set_up("first", 3, 60));
    ANSWERS(MEMLOCK_OK, semaphore_tear_down("first"));
}

static void what_nobody_has_set_up_is_not_found(void) {
    ANSWERS(MEMLOCK_NOT_FOUND, semaphore_acquire("nowhere", 30));
    ANSWERS(MEMLOCK_NOT_FOUND, semaphore_acquire_nonblock("nowhere", 30));
    ANSWERS(MEMLOCK_NOT_FOUND, semaphore_tear_down("nowhere"));
    ANSWERS(MEMLOCK_NOT_HELD, semaphore_release("nowhere"));
    CHECK(!plain_has("semaphore:nowhere"));
    /* Also when another client tears down what we have used. */
    memlock_client *elsewhere;
    memlock_semaphore *theirs;
    ANSWERS(MEMLOCK_OK, semaphore_set_up("torn", 1, 60));
    ANSWERS(MEMLOCK_OK, semaphore_acquire("torn", 30));
    ANSWERS(MEMLOCK_OK, semaphore_release("torn"));
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &elsewhere));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(elsewhere, "torn", 0, 30000, &theirs));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_tear_down(theirs));
    ANSWERS(MEMLOCK_NOT_FOUND, semaphore_acquire_nonblock("torn", 30));
    ANSWERS(MEMLOCK_NOT_FOUND, semaphore_tear_down("torn"));
    memlock_semaphore_close(theirs);
    memlock_client_close(elsewhere);
}

static void as_many_as_there_are_permits_may_hold_one(void) {
    ANSWERS(MEMLOCK_OK, semaphore_set_up("many", 3, 60));
    for (int i = 0; i < 3; i++) ANSWERS(MEMLOCK_OK, semaphore_acquire_nonblock("many", 30));
    ANSWERS(MEMLOCK_BUSY, semaphore_acquire_nonblock("many", 30));
    ANSWERS(MEMLOCK_OK, semaphore_release("many"));
    ANSWERS(MEMLOCK_OK, semaphore_acquire("many", 30));
    ANSWERS(MEMLOCK_BUSY, semaphore_acquire_nonblock("many", 30));
    for (int i = 0; i < 3; i++) ANSWERS(MEMLOCK_OK, semaphore_release("many"));
    ANSWERS(MEMLOCK_NOT_HELD, semaphore_release("many"));
    ANSWERS(MEMLOCK_OK, semaphore_tear_down("many"));
}

static void a_handle_and_a_bare_permit_are_of_the_same_semaphore(void) {
    memlock_client *client;
    memlock_semaphore *semaphore;
    memlock_permit *permit;
    ANSWERS(MEMLOCK_OK, semaphore_set_up("both", 1, 60));
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &client));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(client, "both", 1, 30000, &semaphore));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire(semaphore, 1, 0, &permit));
    ANSWERS(MEMLOCK_BUSY, semaphore_acquire_nonblock("both", 30));
    ANSWERS(MEMLOCK_NOT_HELD, semaphore_release("both"));
    ANSWERS(MEMLOCK_OK, memlock_permit_release(permit));
    ANSWERS(MEMLOCK_OK, semaphore_acquire("both", 30));
    ANSWERS(MEMLOCK_BUSY, memlock_semaphore_acquire(semaphore, 1, 0, &permit));
    ANSWERS(MEMLOCK_OK, semaphore_release("both"));
    /* A mutex of that name is another thing. */
    ANSWERS(MEMLOCK_OK, mutex_lock("both", 30));
    ANSWERS(MEMLOCK_OK, semaphore_acquire("both", 30));
    ANSWERS(MEMLOCK_OK, mutex_unlock("both"));
    ANSWERS(MEMLOCK_OK, semaphore_release("both"));
    ANSWERS(MEMLOCK_OK, semaphore_tear_down("both"));
    memlock_semaphore_close(semaphore);
    memlock_client_close(client);
}

static void no_name_and_over_long_names_are_invalid(void) {
    char *name = (char *)malloc(LONGEST_NAME + 2);
    memset(name, 'x', LONGEST_NAME + 1);
    name[LONGEST_NAME + 1] = '\0';
    const char *bad[] = {NULL, "", name};
    for (size_t i = 0; i < 3; i++) {
        ANSWERS(MEMLOCK_INVALID, semaphore_set_up(bad[i], 1, 30));
        CHECK(memlock_last_error()[0] != '\0');
        ANSWERS(MEMLOCK_INVALID, semaphore_acquire(bad[i], 30));
        ANSWERS(MEMLOCK_INVALID, semaphore_acquire_nonblock(bad[i], 30));
        ANSWERS(MEMLOCK_INVALID, semaphore_release(bad[i]));
        ANSWERS(MEMLOCK_INVALID, semaphore_tear_down(bad[i]));
    }
    name[LONGEST_NAME] = '\0';
    ANSWERS(MEMLOCK_OK, semaphore_set_up(name, 1, 30));
    ANSWERS(MEMLOCK_OK, semaphore_acquire(name, 30));
    ANSWERS(MEMLOCK_BUSY, semaphore_acquire_nonblock(name, 30));
    ANSWERS(MEMLOCK_OK, semaphore_release(name));
    ANSWERS(MEMLOCK_OK, semaphore_tear_down(name));
    free(name);
}

static void durations_run_from_one_second_to_366_days(void) {
    const time_t bad[] = {0, -1, LONG_MIN, LONGEST + 1, LONG_MAX};
    const time_t good[] = {2, 31 * 24 * 3600, LONGEST};
    ANSWERS(MEMLOCK_OK, semaphore_set_up("durations", 1, 60));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ANSWERS(MEMLOCK_INVALID, semaphore_set_up("other durations", 1, bad[i]));
        SAYS("duration");
        ANSWERS(MEMLOCK_INVALID, semaphore_acquire("durations", bad[i]));
        ANSWERS(MEMLOCK_INVALID, semaphore_acquire_nonblock("durations", bad[i]));
    }
    CHECK(!plain_has("semaphore:other%20durations"));
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        ANSWERS(MEMLOCK_OK, semaphore_set_up("other durations", 1, good[i]));
        ANSWERS(MEMLOCK_OK, semaphore_tear_down("other durations"));
        ANSWERS(MEMLOCK_OK, semaphore_acquire("durations", good[i]));
        ANSWERS(MEMLOCK_OK, semaphore_release("durations"));
    }
    /* These may be over by now. */
    ANSWERS(MEMLOCK_OK, semaphore_set_up("shortest", 1, 1));
    IS_GRANTED(semaphore_acquire("durations", 1));
    (void)semaphore_release("durations");
    ANSWERS(MEMLOCK_OK, semaphore_tear_down("durations"));
}

static void any_bytes_are_a_name_and_none_are_a_command(void) {
    const char *names[] = {" ", "a b", "a", "%20", "\xff\xfe\x80", "x 0 0 1\r\n1", "\r\nflush_all\r\n"};
    const size_t count = sizeof names / sizeof *names;
    CHECK(plain_add("victim", 0));
    for (size_t i = 0; i < count; i++) ANSWERS(MEMLOCK_OK, semaphore_set_up(names[i], 1, 60));
    for (size_t i = 0; i < count; i++) ANSWERS(MEMLOCK_OK, semaphore_acquire(names[i], 30));
    for (size_t i = 0; i < count; i++) ANSWERS(MEMLOCK_BUSY, semaphore_acquire_nonblock(names[i], 30));
    for (size_t i = 0; i < count; i++) ANSWERS(MEMLOCK_OK, semaphore_release(names[i]));
    for (size_t i = 0; i < count; i++) ANSWERS(MEMLOCK_OK, semaphore_tear_down(names[i]));
    CHECK(plain_delete("victim"));
}

static void *release_it(void *name) {
    ANSWERS(MEMLOCK_OK, semaphore_release((const char *)name));
    return NULL;
}

static void any_thread_may_release(void) {
    static char name[] = "any thread";
    ANSWERS(MEMLOCK_OK, semaphore_set_up(name, 1, 60));
    ANSWERS(MEMLOCK_OK, semaphore_acquire(name, 30));
    check_in_thread(release_it, name);
    ANSWERS(MEMLOCK_NOT_HELD, semaphore_release(name));
    ANSWERS(MEMLOCK_OK, semaphore_tear_down(name));
}

static void *acquire_briefly_and_release(void *name) {
    IS_GRANTED(semaphore_acquire((const char *)name, 1));
    check_pause_ms(1050);
    /* Its own, of which the lease has run out, and not the main thread's. */
    const int answer = semaphore_release((const char *)name);
    CHECK(answer == MEMLOCK_LOST || answer == MEMLOCK_OK);
    return NULL;
}

static void a_thread_releases_its_own_first(void) {
    static char name[] = "own first";
    memlock_client *client;
    memlock_semaphore *semaphore;
    memlock_holder holder;
    size_t count;
    ANSWERS(MEMLOCK_OK, semaphore_set_up(name, 2, 60));
    ANSWERS(MEMLOCK_OK, semaphore_acquire(name, 300));
    check_in_thread(acquire_briefly_and_release, name);
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &client));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(client, name, 2, 30000, &semaphore));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_holders(semaphore, &holder, 1, &count));
    CHECK(count == 1 && holder.remaining_ms > 200000);
    ANSWERS(MEMLOCK_OK, semaphore_release(name));
    ANSWERS(MEMLOCK_OK, semaphore_tear_down(name));
    memlock_semaphore_close(semaphore);
    memlock_client_close(client);
}

static void permits_that_the_server_no_longer_has_are_lost(void) {
    ANSWERS(MEMLOCK_OK, semaphore_set_up("lost", 2, 60));
    ANSWERS(MEMLOCK_OK, semaphore_acquire("lost", 30));
    ANSWERS(MEMLOCK_OK, semaphore_acquire("lost", 30));
    ANSWERS(MEMLOCK_OK, semaphore_tear_down("lost"));
    ANSWERS(MEMLOCK_LOST, semaphore_release("lost"));
    ANSWERS(MEMLOCK_OK, semaphore_set_up("lost", 2, 60));
    ANSWERS(MEMLOCK_LOST, semaphore_release("lost"));
    ANSWERS(MEMLOCK_NOT_HELD, semaphore_release("lost"));
    ANSWERS(MEMLOCK_OK, semaphore_tear_down("lost"));
}

static void a_permit_comes_back_when_its_duration_ends(void) {
    ANSWERS(MEMLOCK_OK, semaphore_set_up("short", 1, 60));
    struct check_watch watch;
    check_watch_start(&watch);
    const long long began = check_now_ms();
    IS_GRANTED(semaphore_acquire("short", 1));
    ANSWERS(MEMLOCK_OK, semaphore_acquire("short", 30));
    CHECK(check_now_ms() - began >= 1000);
    CHECK(check_watch_end_ms(&watch) <= 5000);
    /* This thread's latest first. */
    ANSWERS(MEMLOCK_OK, semaphore_release("short"));
    ANSWERS(MEMLOCK_LOST, semaphore_release("short"));
    ANSWERS(MEMLOCK_OK, semaphore_tear_down("short"));
}

static _Atomic int inside;

static void *take_turns(void *name) {
    for (int i = 0; i < TURNS; i++) {
        ANSWERS(MEMLOCK_OK, semaphore_acquire((const char *)name, 30));
        CHECK(++inside <= 2);
        check_pause_ms(1);
        inside--;
        ANSWERS(MEMLOCK_OK, semaphore_release((const char *)name));
    }
    return NULL;
}

static void threads_of_one_process_share_the_permits(void) {
    static char name[] = "shared";
    pthread_t threads[THREADS];
    ANSWERS(MEMLOCK_OK, semaphore_set_up(name, 2, 60));
    for (int i = 0; i < THREADS; i++) threads[i] = check_start(take_turns, name);
    for (int i = 0; i < THREADS; i++) check_join(threads[i]);
    ANSWERS(MEMLOCK_NOT_HELD, semaphore_release(name));
    ANSWERS(MEMLOCK_OK, semaphore_tear_down(name));
}

static void *wait_for_it(void *name) {
    ANSWERS(MEMLOCK_INTERRUPTED, semaphore_acquire((const char *)name, 30));
    return NULL;
}

static void a_wait_can_be_cancelled(void) {
    static char name[] = "cancelled";
    ANSWERS(MEMLOCK_OK, semaphore_set_up(name, 1, 60));
    ANSWERS(MEMLOCK_OK, semaphore_acquire(name, 30));
    const pthread_t waiter = check_start(wait_for_it, name);
    QUEUE_AT_BECOMES(1, "semaphore:cancelled");
    ANSWERS(MEMLOCK_OK, memlock_client_cancel_waits(NULL));
    check_join(waiter);
    CHECK(queue_length_at("semaphore:cancelled") == 0);
    ANSWERS(MEMLOCK_OK, semaphore_release(name));
    ANSWERS(MEMLOCK_NOT_HELD, semaphore_release(name));
    ANSWERS(MEMLOCK_OK, semaphore_tear_down(name));
}

static void *wait_until_it_is_gone(void *name) {
    ANSWERS(MEMLOCK_NOT_FOUND, semaphore_acquire((const char *)name, 30));
    return NULL;
}

static void who_waits_is_told_of_the_end(void) {
    static char name[] = "ended";
    ANSWERS(MEMLOCK_OK, semaphore_set_up(name, 1, 60));
    ANSWERS(MEMLOCK_OK, semaphore_acquire(name, 30));
    const pthread_t waiter = check_start(wait_until_it_is_gone, name);
    QUEUE_AT_BECOMES(1, "semaphore:ended");
    struct check_watch watch;
    check_watch_start(&watch);
    ANSWERS(MEMLOCK_OK, semaphore_tear_down(name));
    check_join(waiter);
    CHECK(check_watch_end_ms(&watch) < TOLD_MS);
    ANSWERS(MEMLOCK_LOST, semaphore_release(name));
}

int main(void) {
    RUN(the_functions_are_in_burtons_manner);
    RUN(exactly_one_set_up_is_the_first);
    RUN(what_nobody_has_set_up_is_not_found);
    RUN(as_many_as_there_are_permits_may_hold_one);
    RUN(a_handle_and_a_bare_permit_are_of_the_same_semaphore);
    RUN(no_name_and_over_long_names_are_invalid);
    RUN(durations_run_from_one_second_to_366_days);
    RUN(any_bytes_are_a_name_and_none_are_a_command);
    RUN(any_thread_may_release);
    RUN(a_thread_releases_its_own_first);
    RUN(permits_that_the_server_no_longer_has_are_lost);
    RUN(a_permit_comes_back_when_its_duration_ends);
    RUN(threads_of_one_process_share_the_permits);
    RUN(a_wait_can_be_cancelled);
    RUN(who_waits_is_told_of_the_end);
    return 0;
}
