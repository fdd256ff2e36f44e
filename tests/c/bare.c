/* Burton's six functions, the five of the semaphore in their manner, and the choice of their client: every answer. */

#include "check.h"
#include "server.h"

#include <limits.h>
#include <sys/wait.h>

enum { LONGEST_NAME = 65536, LONGEST = 366 * 24 * 3600, THREADS = 8, TURNS = 10 };

static int set_up_one(const char *name, time_t duration) { return semaphore_set_up(name, 1, duration); }

static int insert_key(const char *session) { return distinct_list_insert(session, "key"); }

static int insert_name(const char *key) { return distinct_list_insert("good", key); }

/* All of them, by their arguments, which are Burton's. */
static int (*const timed[])(const char *, time_t) = {
    mutex_lock, mutex_lock_nonblock, distinct_list_set_up, set_up_one, semaphore_acquire, semaphore_acquire_nonblock,
};
static int (*const named[])(const char *) = {
    mutex_unlock, insert_key, insert_name, distinct_list_tear_down, semaphore_release, semaphore_tear_down,
};
enum { TIMED = sizeof timed / sizeof *timed, NAMED = sizeof named / sizeof *named };

static void no_name_and_over_long_names_are_invalid(void) {
    char *name = (char *)malloc(LONGEST_NAME + 2);
    memset(name, 'x', LONGEST_NAME + 1);
    name[LONGEST_NAME + 1] = '\0';
    const char *bad[] = {NULL, "", name};
    ANSWERS(MEMLOCK_OK, distinct_list_set_up("good", 600));
    for (size_t i = 0; i < 3; i++) {
        for (size_t call = 0; call < TIMED + NAMED; call++) {
            ANSWERS(MEMLOCK_INVALID, call < TIMED ? timed[call](bad[i], 30) : named[call - TIMED](bad[i]));
            CHECK(memlock_last_error()[0] != '\0');
        }
    }
    name[LONGEST_NAME] = '\0';
    ANSWERS(MEMLOCK_OK, mutex_lock(name, 30));
    ANSWERS(MEMLOCK_OK, distinct_list_set_up(name, 60));
    ANSWERS(MEMLOCK_OK, semaphore_set_up(name, 1, 60));
    ANSWERS(MEMLOCK_OK, semaphore_acquire(name, 30));
    for (size_t call = 0; call < NAMED; call++) ANSWERS(MEMLOCK_OK, named[call](name));
    free(name);
}

static void durations_run_from_one_second_to_366_days(void) {
    const time_t bad[] = {0, -1, LONG_MIN, LONGEST + 1, LONG_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        for (size_t call = 0; call < TIMED; call++) {
            ANSWERS(MEMLOCK_INVALID, timed[call]("durations", bad[i]));
            SAYS("duration");
        }
    }
    CHECK(!plain_has("lock:durations") && !plain_has("semaphore:durations"));
}

static void what_is_held_ends_with_its_duration(void) {
    ANSWERS(MEMLOCK_OK, set_up_one("short", 60));
    ANSWERS(MEMLOCK_OK, distinct_list_set_up("short", 1));
    const long long began = check_now_ms();
    IS_GRANTED(mutex_lock("short", 1));
    IS_GRANTED(semaphore_acquire("short", 1));
    ANSWERS(MEMLOCK_OK, semaphore_acquire("short", 30));
    CHECK_SAFE(check_now_ms() - began >= 1000);
    EVENTUALLY(!plain_has("lock:short"));
    ANSWERS(MEMLOCK_LOST, mutex_unlock("short"));
    EVENTUALLY(insert_key("short") == MEMLOCK_NOT_FOUND);
    /* This thread's latest first. */
    ANSWERS(MEMLOCK_OK, semaphore_release("short"));
    ANSWERS(MEMLOCK_LOST, semaphore_release("short"));
    /* Locked twice by the same thread, since the first time was over: the second lock must not suffer. */
    IS_GRANTED(mutex_lock("short", 1));
    check_pause_ms(1050);
    ANSWERS(MEMLOCK_OK, mutex_lock("short", 30));
    CHECK_SAFE(plain_has("lock:short"));
    ANSWERS(MEMLOCK_OK, mutex_unlock("short"));
    CHECK(!plain_has("lock:short"));
}

static void a_lock_that_the_server_has_lost_can_be_locked_anew(void) {
    ANSWERS(MEMLOCK_OK, mutex_lock("forgotten", 30));
    ANSWERS(MEMLOCK_DEADLOCK, mutex_lock("forgotten", 30));
    SAYS("the lock \"forgotten\" on memcached at");
    ANSWERS(MEMLOCK_BUSY, mutex_lock_nonblock("forgotten", 30));
    CHECK(plain_delete("lock:forgotten"));
    ANSWERS(MEMLOCK_OK, mutex_lock("forgotten", 30));
    CHECK_SAFE(plain_has("lock:forgotten"));
    ANSWERS(MEMLOCK_OK, mutex_unlock("forgotten"));
}

static void a_handle_is_not_waited_for_by_the_thread_that_has_to_unlock_it(void) {
    memlock_client *client;
    memlock_lock *lock;
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &client));
    ANSWERS(MEMLOCK_OK, mutex_lock("both ways", 30));
    ANSWERS(MEMLOCK_DEADLOCK, memlock_mutex_lock(client, "both ways", 30000, -1, &lock));
    ANSWERS(MEMLOCK_OK, mutex_unlock("both ways"));
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, "both ways", 30000, -1, &lock));
    ANSWERS(MEMLOCK_OK, memlock_lock_bind(lock));
    ANSWERS(MEMLOCK_DEADLOCK, mutex_lock("both ways", 30));
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    ANSWERS(MEMLOCK_OK, mutex_lock("both ways", 30));
    ANSWERS(MEMLOCK_OK, mutex_unlock("both ways"));
    memlock_client_close(client);
}

static void exactly_one_set_up_is_the_first(void) {
    ANSWERS(MEMLOCK_OK, distinct_list_set_up("first", 600));
    ANSWERS(MEMLOCK_EXISTS, distinct_list_set_up("first", 600));
    SAYS("\"first\" on memcached at");
    ANSWERS(MEMLOCK_OK, insert_key("first"));
    ANSWERS(MEMLOCK_DUPLICATE, insert_key("first"));
    SAYS("\"first\" on memcached at");
    ANSWERS(MEMLOCK_OK, semaphore_set_up("first", 2, 600));
    ANSWERS(MEMLOCK_EXISTS, semaphore_set_up("first", 2, 600));
    SAYS("\"first\" on memcached at");
    ANSWERS(MEMLOCK_EXISTS, semaphore_set_up("first", 3, 600));
    SAYS("has 2 permits, and was opened with 3");
    ANSWERS(MEMLOCK_INVALID, semaphore_set_up("first", 0, 600));
    ANSWERS(MEMLOCK_OK, semaphore_tear_down("first"));
    ANSWERS(MEMLOCK_OK, semaphore_set_up("first", 3, 600));
}

/* Also when another client tears down what this process has used. */
static void what_nobody_has_set_up_is_not_found(void) {
    memlock_client *elsewhere;
    memlock_semaphore *semaphore;
    ANSWERS(MEMLOCK_NOT_HELD, semaphore_release("nowhere"));
    ANSWERS(MEMLOCK_OK, semaphore_set_up("torn", 1, 600));
    ANSWERS(MEMLOCK_OK, semaphore_acquire("torn", 600));
    ANSWERS(MEMLOCK_OK, semaphore_release("torn"));
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &elsewhere));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(elsewhere, "torn", 0, 30000, &semaphore));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_tear_down(semaphore));
    const char *const names[] = {"nowhere", "torn"};
    for (int i = 0; i < 2; i++) {
        ANSWERS(MEMLOCK_NOT_FOUND, insert_key(names[i]));
        ANSWERS(MEMLOCK_NOT_FOUND, distinct_list_tear_down(names[i]));
        ANSWERS(MEMLOCK_NOT_FOUND, semaphore_acquire(names[i], 30));
        ANSWERS(MEMLOCK_NOT_FOUND, semaphore_acquire_nonblock(names[i], 30));
        ANSWERS(MEMLOCK_NOT_FOUND, semaphore_tear_down(names[i]));
    }
    CHECK(!plain_has("semaphore:nowhere"));
    memlock_semaphore_close(semaphore);
    memlock_client_close(elsewhere);
}

static void *acquire_and_release(void *unused) {
    (void)unused;
    ANSWERS(MEMLOCK_OK, semaphore_acquire("own first", 600));
    ANSWERS(MEMLOCK_OK, semaphore_release("own first"));
    return NULL;
}

static void *release(void *unused) {
    (void)unused;
    ANSWERS(MEMLOCK_OK, semaphore_release("own first"));
    return NULL;
}

static void a_thread_releases_its_own_first_and_then_anothers(void) {
    memlock_client *client;
    memlock_semaphore *semaphore;
    memlock_holder holder;
    size_t count;
    ANSWERS(MEMLOCK_OK, semaphore_set_up("own first", 2, 600));
    ANSWERS(MEMLOCK_OK, semaphore_acquire("own first", 6000));
    check_in_thread(acquire_and_release, NULL);
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &client));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(client, "own first", 2, 30000, &semaphore));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_holders(semaphore, &holder, 1, &count));
    CHECK(count == 1 && holder.remaining_ms > 600000);
    check_in_thread(release, NULL);
    ANSWERS(MEMLOCK_NOT_HELD, semaphore_release("own first"));
    memlock_semaphore_close(semaphore);
    memlock_client_close(client);
}

static _Atomic int in_mutex, in_semaphore;

static void *take_turns(void *unused) {
    (void)unused;
    for (int i = 0; i < TURNS; i++) {
        ANSWERS(MEMLOCK_OK, semaphore_acquire("turns", 600));
        CHECK_SAFE(++in_semaphore <= 2);
        ANSWERS(MEMLOCK_OK, mutex_lock("turns", 600));
        CHECK_SAFE(++in_mutex == 1);
        check_pause_ms(0);
        CHECK_SAFE(--in_mutex == 0);
        ANSWERS(MEMLOCK_OK, mutex_unlock("turns"));
        in_semaphore--;
        ANSWERS(MEMLOCK_OK, semaphore_release("turns"));
    }
    return NULL;
}

static void threads_exclude_each_other(void) {
    pthread_t threads[THREADS];
    ANSWERS(MEMLOCK_OK, semaphore_set_up("turns", 2, 600));
    for (int i = 0; i < THREADS; i++) threads[i] = check_start(take_turns, NULL);
    for (int i = 0; i < THREADS; i++) check_join(threads[i]);
    ANSWERS(MEMLOCK_NOT_HELD, semaphore_release("turns"));
    ANSWERS(MEMLOCK_NOT_HELD, mutex_unlock("turns"));
}

struct waiter {
    int (*wait)(const char *name, time_t duration);
    int answer;
};

static void *wait_for_it(void *argument) {
    struct waiter *self = argument;
    self->answer = self->wait("waited", 600);
    return NULL;
}

static void waits_end_when_they_are_cancelled_or_in_vain(void) {
    struct waiter waiters[] = {{.wait = mutex_lock}, {.wait = semaphore_acquire}, {.wait = semaphore_acquire}};
    ANSWERS(MEMLOCK_OK, semaphore_set_up("waited", 1, 600));
    ANSWERS(MEMLOCK_OK, semaphore_acquire("waited", 600));
    CHECK(plain_add("lock:waited", 600));
    const pthread_t one = check_start(wait_for_it, &waiters[0]), two = check_start(wait_for_it, &waiters[1]);
    QUEUE_BECOMES(1, "waited");
    QUEUE_AT_BECOMES(1, "semaphore:waited");
    ANSWERS(MEMLOCK_OK, memlock_client_cancel_waits(NULL));
    check_join(one);
    check_join(two);
    for (int i = 0; i < 2; i++) ANSWERS(MEMLOCK_INTERRUPTED, waiters[i].answer);
    CHECK(queue_length("waited") == 0 && queue_length_at("semaphore:waited") == 0);
    ANSWERS(MEMLOCK_NOT_HELD, mutex_unlock("waited"));
    const pthread_t three = check_start(wait_for_it, &waiters[2]);
    QUEUE_AT_BECOMES(1, "semaphore:waited");
    ANSWERS(MEMLOCK_OK, semaphore_tear_down("waited"));
    check_join(three);
    ANSWERS(MEMLOCK_NOT_FOUND, waiters[2].answer);
    ANSWERS(MEMLOCK_LOST, semaphore_release("waited"));
    ANSWERS(MEMLOCK_NOT_HELD, semaphore_release("waited"));
}

static void a_default_client_can_be_chosen_once_and_well(void) {
    ANSWERS(MEMLOCK_INVALID, memlock_init(NULL));
    ANSWERS(MEMLOCK_CONFIG, memlock_init(""));
    ANSWERS(MEMLOCK_CONFIG, memlock_init("carrier-pigeon://coop"));
    SAYS("memcached://");
    ANSWERS(MEMLOCK_CONFIG, memlock_init("memory://\xff"));
    ANSWERS(MEMLOCK_OK, memlock_init("memory://chosen"));
    ANSWERS(MEMLOCK_CONFIG, memlock_init("memory://chosen"));
    ANSWERS(MEMLOCK_OK, mutex_lock("chosen", 30));
    CHECK(!plain_has("lock:chosen"));
    ANSWERS(MEMLOCK_OK, mutex_unlock("chosen"));
}

static void a_bad_url_in_the_environment_is_named(void) {
    setenv("MEMLOCK_URL", "memcached://localhost?speed=high", 1);
    ANSWERS(MEMLOCK_CONFIG, mutex_lock("x", 30));
    SAYS("MEMLOCK_URL");
    SAYS("speed");
    ANSWERS(MEMLOCK_CONFIG, distinct_list_set_up("x", 30));
    ANSWERS(MEMLOCK_CONFIG, memlock_client_cancel_waits(NULL));
}

/* In a child, since a process chooses its default client once. Only before this process has one: a child that
 * inherits one leaks it, on purpose. */
static void in_a_child(void (*body)(void)) {
    int status = -1;
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        body();
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void) {
    in_a_child(a_default_client_can_be_chosen_once_and_well);
    in_a_child(a_bad_url_in_the_environment_is_named);
    RUN(no_name_and_over_long_names_are_invalid);
    ANSWERS(MEMLOCK_CONFIG, memlock_init(check_url()));
    RUN(durations_run_from_one_second_to_366_days);
    RUN(what_is_held_ends_with_its_duration);
    RUN(a_lock_that_the_server_has_lost_can_be_locked_anew);
    RUN(a_handle_is_not_waited_for_by_the_thread_that_has_to_unlock_it);
    RUN(exactly_one_set_up_is_the_first);
    RUN(what_nobody_has_set_up_is_not_found);
    RUN(a_thread_releases_its_own_first_and_then_anothers);
    RUN(threads_exclude_each_other);
    RUN(waits_end_when_they_are_cancelled_or_in_vain);
    return 0;
}
