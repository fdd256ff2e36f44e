/* Messages and forks: a child has its parent's callback, and waits for none of its parent's threads. */

#include "check.h"

#include <sys/wait.h>

static const pid_t nobody = 0;
static _Atomic pid_t logged_by;
static _Atomic bool stay, inside;

static int try_lock(void) {
    memlock_client *dead;
    memlock_lock *lock;
    ANSWERS(MEMLOCK_OK, memlock_client_open("memcached://127.0.0.1:1", &dead));
    const int answer = memlock_mutex_lock(dead, "dead", 1000, 0, &lock);
    memlock_client_close(dead);
    return answer;
}

static void fails(void) { ANSWERS(MEMLOCK_UNREACHABLE, try_lock()); }

static void hear(int level, const char *part, const char *message, void *arg) {
    (void)level, (void)part, (void)message, (void)arg;
    logged_by = getpid();
    inside = true;
    while (stay && getpid() == *(pid_t *)arg) check_pause_ms(1);
}

static void hear_too(int level, const char *part, const char *message, void *arg) {
    (void)level, (void)part, (void)message, (void)arg;
    logged_by = getpid();
}

static void ends_with_7(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 7) FAIL("the child ended with %d", status);
}

static void *fail_once(void *unused) {
    (void)unused;
    fails();
    return NULL;
}

static void a_child_does_not_wait_for_a_callback_of_its_parents(void) {
    pid_t parent = getpid();
    stay = true;
    ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_INFO, hear, &parent));
    pthread_t thread = check_start(fail_once, NULL);
    EVENTUALLY(inside);
    const pid_t child = fork();
    if (child == 0) {
        alarm(30);
        /* It gets records as its parent did. */
        logged_by = nobody;
        fails();
        CHECK(logged_by == getpid());
        /* And may replace what its parent's thread is in. */
        ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_INFO, hear_too, NULL));
        logged_by = nobody;
        fails();
        CHECK(logged_by == getpid());
        ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_OFF, NULL, NULL));
        _exit(7);
    }
    ends_with_7(child);
    stay = false;
    check_join(thread);
    ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_OFF, NULL, NULL));
}

static void fork_inside(int level, const char *part, const char *message, void *arg) {
    (void)level, (void)part, (void)message;
    *(pid_t *)arg = fork();
}

static void a_callback_may_fork(void) {
    pid_t child = -1;
    ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_INFO, fork_inside, &child));
    const int answer = try_lock();
    if (child == 0) {
        alarm(30);
        /* The call is its parent's. */
        ANSWERS(MEMLOCK_INTERRUPTED, answer);
        ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_INFO, hear_too, NULL));
        logged_by = nobody;
        fails();
        CHECK(logged_by == getpid());
        ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_OFF, NULL, NULL));
        _exit(7);
    }
    ANSWERS(MEMLOCK_UNREACHABLE, answer);
    ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_OFF, NULL, NULL));
    ends_with_7(child);
}

static _Atomic bool enough;

static void *go_on_failing(void *unused) {
    (void)unused;
    while (!enough) fails();
    return NULL;
}

static void *go_on_replacing(void *unused) {
    (void)unused;
    for (int i = 0; !enough; i++)
        ANSWERS(MEMLOCK_OK, memlock_log_set(i % 3, i % 2 ? hear_too : NULL, NULL));
    return NULL;
}

static void children_of_a_busy_moment_do_not_hang(int children) {
    pthread_t threads[3] = {check_start(go_on_failing, NULL), check_start(go_on_failing, NULL),
                            check_start(go_on_replacing, NULL)};
    for (int i = 0; i < children; i++) {
        const pid_t child = fork();
        if (child == 0) {
            alarm(30);
            fails();
            ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_INFO, hear_too, NULL));
            fails();
            CHECK(logged_by == getpid());
            _exit(7);
        }
        ends_with_7(child);
    }
    enough = true;
    for (int i = 0; i < 3; i++) check_join(threads[i]);
    ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_OFF, NULL, NULL));
}

int main(int count, char **arguments) {
    RUN(a_child_does_not_wait_for_a_callback_of_its_parents);
    RUN(a_callback_may_fork);
    check_running = "children_of_a_busy_moment_do_not_hang";
    children_of_a_busy_moment_do_not_hang(count > 1 ? atoi(arguments[1]) : 50);
    return 0;
}
