/* What the native tests say "must" with, in C and in C++.
 *
 * A test is a function named for the promise that it holds. RUN(it) calls it; the first thing that is not as
 * it must be ends the program with a line that says where, and the status 1.
 */

#ifndef CHECK_H
#define CHECK_H

#include <memlock.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *check_running = "(no test)";

#define RUN(test) (check_running = #test, test(), (void)0)

#define FAIL(...) check_fail(__FILE__, __LINE__, __VA_ARGS__)

#define CHECK(condition) ((condition) ? (void)0 : FAIL("this must be true: %s", #condition))

/* How the message of a breach of safety begins, which the runner never forgives: tests/support/safety.rs. */
#define SAFETY_MARKER "SAFETY VIOLATED: "

/* CHECK for what is a breach of safety if it is false. */
#define CHECK_SAFE(condition) \
    ((condition) ? (void)0 : FAIL(SAFETY_MARKER "this must be true: %s", #condition))

/* The call must give this answer. Both are evaluated once. */
#define ANSWERS(expected, call) check_answer(__FILE__, __LINE__, (expected), (call), #expected, #call)

/* The same for a call that has to be refused: MEMLOCK_OK is a breach of safety. */
#define REFUSES(expected, call) check_refusal(__FILE__, __LINE__, (expected), (call), #expected, #call)

/* The last error must contain this text. */
#define SAYS(text) \
    (strstr(memlock_last_error(), (text)) ? (void)0 : FAIL("no \"%s\" in: %s", (text), memlock_last_error()))

/* _exit, because a forked child and a thread fail here too, and must not run any destructors. */
__attribute__((noreturn, format(printf, 3, 4))) static inline void check_fail(const char *file, int line,
                                                                              const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s:%d: in %s: ", file, line, check_running);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    fflush(stderr);
    _exit(1);
}

static inline void check_answer(const char *file, int line, int expected, int got, const char *name,
                                const char *call) {
    if (got == expected) return;
    check_fail(file, line, "%s must be %s (%d) and is %d: %s", call, name, expected, got, memlock_last_error());
}

/* What is said of a grant that arrived when its lease was over. */
static inline bool check_is_too_slow(int answer) {
    return answer == MEMLOCK_UNREACHABLE && strstr(memlock_last_error(), "longer to answer than the lease") != NULL;
}

/* The call must be granted, with a lease that a busy machine may not meet: then it is made again. */
#define IS_GRANTED(call)                                                                    \
    do {                                                                                    \
        int check_got;                                                                      \
        while (check_is_too_slow(check_got = (call))) continue;                             \
        check_answer(__FILE__, __LINE__, MEMLOCK_OK, check_got, "MEMLOCK_OK", #call);       \
    } while (false)

static inline void check_refusal(const char *file, int line, int expected, int got, const char *name,
                                 const char *call) {
    if (got == MEMLOCK_OK) check_fail(file, line, SAFETY_MARKER "%s must be %s, and was granted", call, name);
    check_answer(file, line, expected, got, name, call);
}

/* The URL of this program's own memcached, which tests/c/run starts. */
static inline const char *check_url(void) {
    const char *url = getenv("MEMLOCK_URL");
    if (url == NULL) FAIL("set MEMLOCK_URL, or start this by tests/c/run");
    return url;
}

/* Tries to lock something where there is no server, by which a message is logged. */
static inline int check_nowhere(const char *url) {
    memlock_client *client;
    memlock_lock *lock;
    ANSWERS(MEMLOCK_OK, memlock_client_open(url, &client));
    const int answer = memlock_mutex_lock(client, "nowhere", 30000, 0, &lock);
    memlock_client_close(client);
    return answer;
}

/* The process of that memcached, for tests that freeze or kill it. */
static inline pid_t check_server(void) {
    const char *pid = getenv("MEMCACHED_PID");
    if (pid == NULL) FAIL("set MEMCACHED_PID, or start this by tests/c/run");
    return (pid_t)atol(pid);
}

/* Milliseconds on a clock that only goes forward. */
static inline long long check_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A pause where time is the subject, or between two looks at something that takes its time. */
static inline void check_pause_ms(long ms) {
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0) continue;
}

/* Looks every millisecond until it is true, for as long as what must happen may take on a busy machine. */
#define EVENTUALLY(condition)                                                               \
    do {                                                                                    \
        const long long check_began = check_now_ms();                                       \
        while (!(condition)) {                                                              \
            if (check_now_ms() - check_began > 60000) FAIL("this never came: %s", #condition); \
            check_pause_ms(1);                                                              \
        }                                                                                   \
    } while (false)

static inline pthread_t check_start(void *(*body)(void *), void *argument) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, body, argument) != 0) FAIL("no thread");
    return thread;
}

/* Waits for the thread's end and gives what it returned. */
static inline void *check_join(pthread_t thread) {
    void *returned = NULL;
    if (pthread_join(thread, &returned) != 0) FAIL("no join");
    return returned;
}

/* Runs `body` in a thread of its own. */
static inline void *check_in_thread(void *(*body)(void *), void *argument) {
    return check_join(check_start(body, argument));
}

#endif
