/* Burton's three mutex functions: every answer that they give. */

#include "check.h"
#include "memcached_text.h"

#include <limits.h>

enum { LONGEST_NAME = 65536, DAY = 24 * 3600, LONGEST = 366 * DAY };

static void the_functions_have_burtons_signatures(void) {
    int (*lock)(const char *mutex_key, time_t duration) = mutex_lock;
    int (*nonblock)(const char *mutex_key, time_t duration) = mutex_lock_nonblock;
    int (*unlock)(const char *mutex_key) = mutex_unlock;
    ANSWERS(MEMLOCK_OK, lock("signatures", 30));
    ANSWERS(MEMLOCK_OK, unlock("signatures"));
    ANSWERS(MEMLOCK_OK, nonblock("signatures", 30));
    ANSWERS(MEMLOCK_OK, unlock("signatures"));
}

static void a_lock_and_a_plain_clients_lock_exclude_each_other(void) {
    ANSWERS(MEMLOCK_OK, mutex_lock("xyz", 30));
    CHECK(!plain_add("lock:xyz", 30));
    ANSWERS(MEMLOCK_OK, mutex_unlock("xyz"));
    CHECK(!plain_has("lock:xyz"));
    CHECK(plain_add("lock:xyz", 30));
    ANSWERS(MEMLOCK_BUSY, mutex_lock_nonblock("xyz", 30));
    ANSWERS(MEMLOCK_NOT_HELD, mutex_unlock("xyz"));
    CHECK(plain_has("lock:xyz"));
    CHECK(plain_delete("lock:xyz"));
}

static void no_name_and_over_long_names_are_invalid(void) {
    char *name = (char *)malloc(LONGEST_NAME + 2);
    memset(name, 'x', LONGEST_NAME + 1);
    name[LONGEST_NAME + 1] = '\0';
    const char *bad[] = {NULL, "", name};
    for (size_t i = 0; i < 3; i++) {
        ANSWERS(MEMLOCK_INVALID, mutex_lock(bad[i], 30));
        CHECK(memlock_last_error()[0] != '\0');
        ANSWERS(MEMLOCK_INVALID, mutex_lock_nonblock(bad[i], 30));
        ANSWERS(MEMLOCK_INVALID, mutex_unlock(bad[i]));
    }
    name[LONGEST_NAME] = '\0';
    ANSWERS(MEMLOCK_OK, mutex_lock(name, 30));
    ANSWERS(MEMLOCK_BUSY, mutex_lock_nonblock(name, 30));
    ANSWERS(MEMLOCK_OK, mutex_unlock(name));
    free(name);
}

static void any_bytes_are_a_name_and_none_are_a_command(void) {
    const char *names[] = {
        " ", "a b", "a", "b", "\t", "\x01", "\x7f", "%", "%20", "\xff\xfe\x80", "\xc3\xbc", "\xc3",
        "x 0 0 1\r\n1", "\r\ndelete victim\r\n", "\r\nflush_all\r\n",
    };
    const size_t count = sizeof names / sizeof *names;
    CHECK(plain_add("victim", 0));
    for (size_t i = 0; i < count; i++) ANSWERS(MEMLOCK_OK, mutex_lock(names[i], 30));
    /* All of them at once: so no two are the same lock. */
    for (size_t i = 0; i < count; i++) ANSWERS(MEMLOCK_BUSY, mutex_lock_nonblock(names[i], 30));
    for (size_t i = 0; i < count; i++) ANSWERS(MEMLOCK_OK, mutex_unlock(names[i]));
    CHECK(plain_delete("victim"));
}

static void durations_run_from_one_second_to_366_days(void) {
    const time_t bad[] = {0, -1, LONG_MIN, LONGEST + 1, LONG_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ANSWERS(MEMLOCK_INVALID, mutex_lock("durations", bad[i]));
        SAYS("duration");
        ANSWERS(MEMLOCK_INVALID, mutex_lock_nonblock("durations", bad[i]));
    }
    CHECK(!plain_has("lock:durations"));
    /* From 30 days on memcached takes a relative time for an absolute one: long past, unless converted. */
    const time_t good[] = {2, 30 * DAY - 1, 30 * DAY, 31 * DAY, LONGEST};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        ANSWERS(MEMLOCK_OK, mutex_lock("durations", good[i]));
        const long kept = plain_ttl("lock:durations");
        CHECK(kept >= good[i] && kept <= good[i] + DAY);
        ANSWERS(MEMLOCK_OK, mutex_unlock("durations"));
    }
    /* It may be over by now. */
    IS_GRANTED(mutex_lock("shortest", 1));
    (void)mutex_unlock("shortest");
}

static void a_thread_does_not_wait_for_itself(void) {
    ANSWERS(MEMLOCK_OK, mutex_lock("mine", 30));
    ANSWERS(MEMLOCK_DEADLOCK, mutex_lock("mine", 30));
    SAYS("mine");
    ANSWERS(MEMLOCK_BUSY, mutex_lock_nonblock("mine", 30));
    ANSWERS(MEMLOCK_OK, mutex_unlock("mine"));
}

static void *try_it(void *name) {
    ANSWERS(MEMLOCK_BUSY, mutex_lock_nonblock((const char *)name, 30));
    return NULL;
}

static void *unlock_it(void *name) {
    ANSWERS(MEMLOCK_OK, mutex_unlock((const char *)name));
    return NULL;
}

static void two_threads_exclude_each_other_and_any_of_them_may_unlock(void) {
    static char name[] = "shared";
    ANSWERS(MEMLOCK_OK, mutex_lock(name, 30));
    check_in_thread(try_it, name);
    check_in_thread(unlock_it, name);
    ANSWERS(MEMLOCK_NOT_HELD, mutex_unlock(name));
    ANSWERS(MEMLOCK_OK, mutex_lock(name, 30));
    ANSWERS(MEMLOCK_OK, mutex_unlock(name));
}

static void what_was_not_locked_is_not_held(void) {
    ANSWERS(MEMLOCK_NOT_HELD, mutex_unlock("never"));
    ANSWERS(MEMLOCK_OK, mutex_lock("once", 30));
    ANSWERS(MEMLOCK_OK, mutex_unlock("once"));
    ANSWERS(MEMLOCK_NOT_HELD, mutex_unlock("once"));
}

static void a_lock_that_the_server_no_longer_has_is_lost(void) {
    ANSWERS(MEMLOCK_OK, mutex_lock("lost", 30));
    CHECK(plain_delete("lock:lost"));
    ANSWERS(MEMLOCK_LOST, mutex_unlock("lost"));
    ANSWERS(MEMLOCK_NOT_HELD, mutex_unlock("lost"));
    ANSWERS(MEMLOCK_OK, mutex_lock("lost", 30));
    plain_flush();
    ANSWERS(MEMLOCK_LOST, mutex_unlock("lost"));
}

static void unlocking_a_lost_lock_leaves_its_successors_alone(void) {
    ANSWERS(MEMLOCK_OK, mutex_lock("handed on", 30));
    CHECK(plain_delete("lock:handed%20on"));
    CHECK(plain_add("lock:handed%20on", 30));
    ANSWERS(MEMLOCK_LOST, mutex_unlock("handed on"));
    CHECK(plain_delete("lock:handed%20on"));
}

static void a_lock_ends_with_its_duration(void) {
    const long long began = check_now_ms();
    IS_GRANTED(mutex_lock("short", 1));
    const long long granted = check_now_ms();
    long long seen = granted, asked = granted;
    for (; asked = check_now_ms(), plain_has("lock:short"); seen = asked) check_pause_ms(20);
    CHECK(check_now_ms() - began >= 1000 && seen - granted <= 3500);
    ANSWERS(MEMLOCK_LOST, mutex_unlock("short"));
}

/* Locked twice by the same thread, since the first time was over: the second lock must not suffer. */
static void a_thread_may_lock_again_what_has_run_out(void) {
    IS_GRANTED(mutex_lock("again", 1));
    check_pause_ms(1050);
    ANSWERS(MEMLOCK_OK, mutex_lock("again", 30));
    CHECK(plain_has("lock:again"));
    ANSWERS(MEMLOCK_OK, mutex_unlock("again"));
    CHECK(!plain_has("lock:again"));
}

static _Atomic bool ended;

static void *wait_for_it(void *name) {
    ANSWERS(MEMLOCK_INTERRUPTED, mutex_lock((const char *)name, 30));
    ended = true;
    return NULL;
}

static void a_wait_can_be_cancelled(void) {
    static char name[] = "waited for";
    CHECK(plain_add("lock:waited%20for", 30));
    const pthread_t waiter = check_start(wait_for_it, name);
    /* Only waits that go on are cancelled, and this one may not have begun. */
    while (!ended) {
        ANSWERS(MEMLOCK_OK, memlock_client_cancel_waits(NULL));
        check_pause_ms(5);
    }
    check_join(waiter);
    ANSWERS(MEMLOCK_NOT_HELD, mutex_unlock(name));
    CHECK(plain_delete("lock:waited%20for"));
}

int main(void) {
    RUN(the_functions_have_burtons_signatures);
    RUN(a_lock_and_a_plain_clients_lock_exclude_each_other);
    RUN(no_name_and_over_long_names_are_invalid);
    RUN(any_bytes_are_a_name_and_none_are_a_command);
    RUN(durations_run_from_one_second_to_366_days);
    RUN(a_thread_does_not_wait_for_itself);
    RUN(two_threads_exclude_each_other_and_any_of_them_may_unlock);
    RUN(what_was_not_locked_is_not_held);
    RUN(a_lock_that_the_server_no_longer_has_is_lost);
    RUN(unlocking_a_lost_lock_leaves_its_successors_alone);
    RUN(a_lock_ends_with_its_duration);
    RUN(a_thread_may_lock_again_what_has_run_out);
    RUN(a_wait_can_be_cancelled);
    return 0;
}
