/* Burton's three list functions, and the choice of the default client. */

#include "check.h"
#include "memcached_text.h"

#include <limits.h>
#include <sys/wait.h>

enum { LONGEST_NAME = 65536, THREADS = 8, KEYS = 50 };

static void the_functions_have_burtons_signatures(void) {
    int (*set_up)(const char *session, time_t duration) = distinct_list_set_up;
    int (*insert)(const char *session, const char *key) = distinct_list_insert;
    int (*tear_down)(const char *session) = distinct_list_tear_down;
    ANSWERS(MEMLOCK_OK, set_up("signatures", 60));
    ANSWERS(MEMLOCK_OK, insert("signatures", "key"));
    ANSWERS(MEMLOCK_OK, tear_down("signatures"));
}

static void exactly_one_set_up_is_the_first(void) {
    ANSWERS(MEMLOCK_OK, distinct_list_set_up("session", 60));
    ANSWERS(MEMLOCK_EXISTS, distinct_list_set_up("session", 60));
    SAYS("\"session\" on memcached at");
    ANSWERS(MEMLOCK_OK, distinct_list_insert("session", "key"));
    ANSWERS(MEMLOCK_DUPLICATE, distinct_list_insert("session", "key"));
    SAYS("\"session\" on memcached at");
    ANSWERS(MEMLOCK_OK, distinct_list_tear_down("session"));
}

static void without_a_session_nothing_is_found(void) {
    ANSWERS(MEMLOCK_NOT_FOUND, distinct_list_insert("nowhere", "key"));
    ANSWERS(MEMLOCK_NOT_FOUND, distinct_list_tear_down("nowhere"));
    ANSWERS(MEMLOCK_OK, distinct_list_set_up("torn", 60));
    ANSWERS(MEMLOCK_OK, distinct_list_tear_down("torn"));
    ANSWERS(MEMLOCK_NOT_FOUND, distinct_list_insert("torn", "key"));
    ANSWERS(MEMLOCK_NOT_FOUND, distinct_list_tear_down("torn"));
}

static void a_late_insert_does_not_slip_into_the_next_session(void) {
    memlock_client *somebody;
    memlock_list *theirs, *next;
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &somebody));
    ANSWERS(MEMLOCK_OK, distinct_list_set_up("successor", 60));
    ANSWERS(MEMLOCK_OK, distinct_list_insert("successor", "before"));
    ANSWERS(MEMLOCK_OK, memlock_list_open(somebody, "successor", &theirs));
    ANSWERS(MEMLOCK_OK, memlock_list_tear_down(theirs));
    ANSWERS(MEMLOCK_OK, memlock_list_set_up(somebody, "successor", 60000, &next));
    ANSWERS(MEMLOCK_NOT_FOUND, distinct_list_insert("successor", "late"));
    ANSWERS(MEMLOCK_NOT_FOUND, distinct_list_tear_down("successor"));
    ANSWERS(MEMLOCK_OK, memlock_list_tear_down(next));
    memlock_list_close(theirs);
    memlock_list_close(next);
    memlock_client_close(somebody);
}

static void no_name_and_over_long_names_are_invalid(void) {
    char *name = (char *)malloc(LONGEST_NAME + 2);
    memset(name, 'x', LONGEST_NAME + 1);
    name[LONGEST_NAME + 1] = '\0';
    const char *bad[] = {NULL, "", name};
    ANSWERS(MEMLOCK_OK, distinct_list_set_up("good", 60));
    for (size_t i = 0; i < 3; i++) {
        ANSWERS(MEMLOCK_INVALID, distinct_list_set_up(bad[i], 60));
        ANSWERS(MEMLOCK_INVALID, distinct_list_insert(bad[i], "key"));
        ANSWERS(MEMLOCK_INVALID, distinct_list_insert("good", bad[i]));
        ANSWERS(MEMLOCK_INVALID, distinct_list_tear_down(bad[i]));
    }
    name[LONGEST_NAME] = '\0';
    ANSWERS(MEMLOCK_OK, distinct_list_insert("good", name));
    ANSWERS(MEMLOCK_DUPLICATE, distinct_list_insert("good", name));
    ANSWERS(MEMLOCK_OK, distinct_list_set_up(name, 60));
    ANSWERS(MEMLOCK_OK, distinct_list_insert(name, name));
    ANSWERS(MEMLOCK_OK, distinct_list_tear_down(name));
    ANSWERS(MEMLOCK_OK, distinct_list_tear_down("good"));
    free(name);
}

static void any_bytes_are_a_key_and_none_are_a_command(void) {
    const char *keys[] = {" ", "a b", "a", "\r\nflush_all\r\n", "%20", "%", "\xff\xfe", "\xc3\xbc", "\x01"};
    CHECK(plain_add("victim", 0));
    for (size_t s = 0; s < sizeof keys / sizeof *keys; s++) {
        ANSWERS(MEMLOCK_OK, distinct_list_set_up(keys[s], 60));
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
            ANSWERS(MEMLOCK_OK, distinct_list_insert(keys[s], keys[i]));
            ANSWERS(MEMLOCK_DUPLICATE, distinct_list_insert(keys[s], keys[i]));
        }
        ANSWERS(MEMLOCK_OK, distinct_list_tear_down(keys[s]));
    }
    CHECK(plain_delete("victim"));
}

static void durations_run_from_one_second_to_366_days(void) {
    const time_t bad[] = {0, -1, LONG_MIN, 366 * 24 * 3600 + 1, LONG_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ANSWERS(MEMLOCK_INVALID, distinct_list_set_up("durations", bad[i]));
        SAYS("duration");
    }
    const time_t good[] = {31 * 24 * 3600, 366 * 24 * 3600};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        ANSWERS(MEMLOCK_OK, distinct_list_set_up("durations", good[i]));
        ANSWERS(MEMLOCK_OK, distinct_list_insert("durations", "key"));
        ANSWERS(MEMLOCK_DUPLICATE, distinct_list_insert("durations", "key"));
        ANSWERS(MEMLOCK_OK, distinct_list_tear_down("durations"));
    }
}

static int firsts[KEYS];

static void *insert_all(void *unused) {
    (void)unused;
    for (int i = 0; i < KEYS; i++) {
        char key[16];
        snprintf(key, sizeof key, "key %d", i);
        const int answer = distinct_list_insert("race", key);
        if (answer == MEMLOCK_OK) __atomic_fetch_add(&firsts[i], 1, __ATOMIC_RELAXED);
        else ANSWERS(MEMLOCK_DUPLICATE, answer);
    }
    return NULL;
}

static void exactly_one_of_all_inserters_is_the_first(void) {
    ANSWERS(MEMLOCK_OK, distinct_list_set_up("race", 60));
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) threads[i] = check_start(insert_all, NULL);
    for (int i = 0; i < THREADS; i++) check_join(threads[i]);
    for (int i = 0; i < KEYS; i++) CHECK(firsts[i] == 1);
    ANSWERS(MEMLOCK_OK, distinct_list_tear_down("race"));
}

static void a_session_ends_with_its_duration(void) {
    const long long began = check_now_ms();
    ANSWERS(MEMLOCK_OK, distinct_list_set_up("short", 1));
    const long long set_up = check_now_ms();
    long long seen = set_up, asked = set_up;
    ANSWERS(MEMLOCK_OK, distinct_list_insert("short", "key"));
    int answer;
    for (;;) {
        asked = check_now_ms();
        answer = distinct_list_insert("short", "key");
        if (answer != MEMLOCK_DUPLICATE) break;
        seen = asked;
        check_pause_ms(20);
    }
    ANSWERS(MEMLOCK_NOT_FOUND, answer);
    CHECK(check_now_ms() - began >= 1000 && seen - set_up <= 3500);
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
static void in_a_child(const char *name, void (*body)(void)) {
    check_running = name;
    const pid_t child = fork();
    if (child == 0) {
        body();
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#define RUN_IN_A_CHILD(test) in_a_child(#test, test)

int main(void) {
    RUN_IN_A_CHILD(a_default_client_can_be_chosen_once_and_well);
    RUN_IN_A_CHILD(a_bad_url_in_the_environment_is_named);
    RUN(the_functions_have_burtons_signatures);
    ANSWERS(MEMLOCK_CONFIG, memlock_init(check_url()));
    RUN(exactly_one_set_up_is_the_first);
    RUN(without_a_session_nothing_is_found);
    RUN(a_late_insert_does_not_slip_into_the_next_session);
    RUN(no_name_and_over_long_names_are_invalid);
    RUN(any_bytes_are_a_key_and_none_are_a_command);
    RUN(durations_run_from_one_second_to_366_days);
    RUN(exactly_one_of_all_inserters_is_the_first);
    RUN(a_session_ends_with_its_duration);
    return 0;
}
