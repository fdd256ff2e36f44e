/* Forking at any moment: the child holds and renews nothing of its parent's, its own calls just work, and it waits for
 * none of its parent's threads. */

#include "renewal.h"

#include <sys/wait.h>

enum { WORKERS = 4, PATIENCE_S = 60 };

static memlock_list *list;
static memlock_lock *lock;
static memlock_semaphore *semaphore;
static memlock_permit *permit;
static _Atomic bool stop;
static int forks = 25;

/* In the middle of every kind of call when the fork comes. */
static void *work(void *number) {
    char name[32];
    snprintf(name, sizeof name, "worker %d", *(int *)number);
    while (!stop) {
        memlock_lock *own;
        memlock_permit *some;
        memlock_client *another;
        ANSWERS(MEMLOCK_OK, mutex_lock(name, 30));
        ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, "contended", 30000, -1, &own));
        ANSWERS(MEMLOCK_OK, memlock_unlock(own));
        ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire(semaphore, 1, -1, &some));
        ANSWERS(MEMLOCK_OK, memlock_permit_release(some));
        ANSWERS(MEMLOCK_OK, semaphore_acquire("bare semaphore", 30));
        ANSWERS(MEMLOCK_OK, semaphore_release("bare semaphore"));
        ANSWERS(MEMLOCK_CONFIG, memlock_client_open("nonsense", &another));
        ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &another));
        const int inserted = distinct_list_insert("bare session", name);
        CHECK(inserted == MEMLOCK_OK || inserted == MEMLOCK_DUPLICATE);
        memlock_client_close(another);
        ANSWERS(MEMLOCK_OK, mutex_unlock(name));
    }
    return NULL;
}

static void the_parents_locks_are_not_the_childs(void) {
    int64_t left = -1;
    ANSWERS(MEMLOCK_NOT_HELD, mutex_unlock("parents"));
    REFUSES(MEMLOCK_BUSY, mutex_lock_nonblock("parents", 30));
    ANSWERS(MEMLOCK_OK, memlock_lock_remaining_ms(lock, &left));
    CHECK(left == 0);
    ANSWERS(MEMLOCK_NOT_HELD, memlock_lock_extend(lock, 30000));
    ANSWERS(MEMLOCK_NOT_HELD, memlock_unlock(lock));
    ANSWERS(MEMLOCK_NOT_HELD, mutex_unlock("worker 0"));
    CHECK_SAFE(plain_has("lock:parents") && plain_has("lock:parents%20handle"));
}

/* Of 5 permits the parent holds 3, and its threads take the others now and then. */
static void the_parents_permits_are_not_the_childs(void) {
    int64_t left = -1;
    ANSWERS(MEMLOCK_NOT_HELD, semaphore_release("parents"));
    REFUSES(MEMLOCK_BUSY, semaphore_acquire_nonblock("parents", 30));
    ANSWERS(MEMLOCK_OK, memlock_permit_remaining_ms(permit, &left));
    CHECK(left == 0);
    ANSWERS(MEMLOCK_NOT_HELD, memlock_permit_extend(permit, 30000));
    ANSWERS(MEMLOCK_NOT_HELD, memlock_permit_release(permit));
    ANSWERS(MEMLOCK_NOT_HELD, semaphore_release("bare semaphore"));
}

static bool the_parents_permits_are_there(void) {
    memlock_holder holders[16];
    size_t count;
    uint32_t held = 0;
    ANSWERS(MEMLOCK_OK, memlock_semaphore_holders(semaphore, holders, 16, &count));
    CHECK(count <= 16);
    for (size_t i = 0; i < count; i++) {
        if (holders[i].permits == 3 && holders[i].pid == (uint32_t)getpid()) held++;
    }
    return held == 1;
}

static void the_childs_own_calls_work(void) {
    char name[32];
    memlock_client *fresh;
    memlock_lock *own;
    memlock_permit *some;
    memlock_list *joined;
    memlock_owner owner;
    uint64_t id;
    snprintf(name, sizeof name, "child %d", (int)getpid());
    ANSWERS(MEMLOCK_OK, mutex_lock(name, 30));
    ANSWERS(MEMLOCK_DEADLOCK, mutex_lock(name, 30));
    ANSWERS(MEMLOCK_BUSY, memlock_mutex_owner(client, name, &owner));
    CHECK(owner.pid == (uint32_t)getpid());
    ANSWERS(MEMLOCK_OK, mutex_unlock(name));
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, name, 30000, -1, &own));
    ANSWERS(MEMLOCK_OK, memlock_unlock(own));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire(semaphore, 2, -1, &some));
    ANSWERS(MEMLOCK_OK, memlock_permit_extend(some, 40000));
    ANSWERS(MEMLOCK_OK, memlock_permit_release(some));
    ANSWERS(MEMLOCK_OK, semaphore_acquire("bare semaphore", 30));
    ANSWERS(MEMLOCK_OK, semaphore_release("bare semaphore"));
    ANSWERS(MEMLOCK_NOT_HELD, semaphore_release("bare semaphore"));
    ANSWERS(MEMLOCK_OK, distinct_list_insert("bare session", name));
    ANSWERS(MEMLOCK_OK, memlock_list_insert(list, name, strlen(name), &id));
    REFUSES(MEMLOCK_DUPLICATE, memlock_list_insert(list, "parents", 7, &id));
    CHECK(id == 1);
    ANSWERS(MEMLOCK_EXISTS, memlock_list_set_up(client, "session", 60000, &joined));
    memlock_list_close(joined);
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &fresh));
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(fresh, name, 30000, 0, &own));
    memlock_client_close(fresh);
    ANSWERS(MEMLOCK_OK, memlock_unlock(own));
}

static pid_t start_child(int number, void (*body)(int)) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        /* A child that hangs is what this is about: it must end, and badly. */
        alarm(PATIENCE_S);
        body(number);
        _exit(0);
    }
    return child;
}

static void expect_good_news(pid_t child, int number) {
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) FAIL("child %d: status %#x", number, status);
}

static void fork_and_expect_good_news(int number, void (*body)(int)) {
    expect_good_news(start_child(number, body), number);
}

static void live_as_a_grandchild(int number) {
    (void)number;
    ANSWERS(MEMLOCK_NOT_HELD, mutex_unlock("parents"));
    ANSWERS(MEMLOCK_NOT_HELD, mutex_unlock("childs"));
    REFUSES(MEMLOCK_BUSY, mutex_lock_nonblock("childs", 30));
    the_childs_own_calls_work();
}

static void live_as_a_child(int number) {
    the_parents_locks_are_not_the_childs();
    the_parents_permits_are_not_the_childs();
    the_childs_own_calls_work();
    if (number % 5 == 0) {
        ANSWERS(MEMLOCK_OK, mutex_lock("childs", 30));
        fork_and_expect_good_news(number, live_as_a_grandchild);
        ANSWERS(MEMLOCK_OK, mutex_unlock("childs"));
    }
    /* Every other one leaves through the destructors. */
    if (number % 2 == 0) exit(0);
}

static void a_fork_may_come_at_any_moment(void) {
    pthread_t workers[WORKERS];
    static int numbers[WORKERS];
    for (int i = 0; i < WORKERS; i++) {
        numbers[i] = i;
        workers[i] = check_start(work, &numbers[i]);
    }
    for (int i = 0; i < forks; i++) {
        fork_and_expect_good_news(i, live_as_a_child);
        CHECK_SAFE(plain_has("lock:parents") && plain_has("lock:parents%20handle"));
        CHECK_SAFE(the_parents_permits_are_there());
    }
    stop = true;
    for (int i = 0; i < WORKERS; i++) check_join(workers[i]);
}

static memlock_wait *wait_handle;

static void *wait_in_the_family(void *unused) {
    (void)unused;
    memlock_lock *own;
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock_wait(client, "family", 30000, -1, wait_handle, &own));
    ANSWERS(MEMLOCK_OK, memlock_unlock(own));
    return NULL;
}

static void wait_as_a_child(int number) {
    (void)number;
    wait_in_the_family(NULL);
}

static void cancel_as_a_child(int number) {
    (void)number;
    memlock_lock *own;
    ANSWERS(MEMLOCK_OK, memlock_wait_cancel(wait_handle));
    ANSWERS(MEMLOCK_INTERRUPTED, memlock_mutex_lock_wait(client, "family", 30000, -1, wait_handle, &own));
    ANSWERS(MEMLOCK_OK, memlock_client_cancel_waits(client));
}

/* Where the first one in the queue is woken. */
static size_t first_address(const char *queue) { return strcspn(queue, "#"); }

static void a_child_and_its_parent_wait_each_for_itself(void) {
    memlock_client *holder;
    memlock_lock *held;
    char queue[256];
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &holder));
    ANSWERS(MEMLOCK_OK, memlock_wait_open(client, &wait_handle));
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(holder, "family", 30000, 0, &held));
    const pthread_t parent = check_start(wait_in_the_family, NULL);
    QUEUE_BECOMES(1, "family");
    /* Its copy of the handle is not ours. */
    fork_and_expect_good_news(0, cancel_as_a_child);
    CHECK(queue_length("family") == 1);
    const pid_t children[] = {start_child(1, wait_as_a_child), start_child(2, wait_as_a_child)};
    QUEUE_BECOMES(3, "family");
    /* Listeners of their own. */
    snprintf(queue, sizeof queue, "%s", queue_at("lock:family"));
    for (const char *one = queue; *one != '\r'; one = strchr(one, '\n') + 1) {
        CHECK(*one != '-');
        for (const char *next = strchr(one, '\n') + 1; *next != '\r'; next = strchr(next, '\n') + 1) {
            CHECK(first_address(one) != first_address(next) || strncmp(one, next, first_address(one)) != 0);
        }
    }
    ANSWERS(MEMLOCK_OK, memlock_unlock(held));
    check_join(parent);
    for (int i = 0; i < 2; i++) expect_good_news(children[i], i + 1);
    CHECK(queue_length("family") == 0 && !plain_has("lock:family"));
    memlock_wait_close(wait_handle);
    memlock_client_close(holder);
}

/* --- Renewal */

static int pipes[2];

static void hold_until_it_is_lost(int number) {
    struct notices notices = {0};
    int why = 0;
    (void)number;
    memlock_lock *stopped = renewed("stopped", LEASE_MS, &notices);
    CHECK(write(pipes[1], "k", 1) == 1);
    ANSWERS(MEMLOCK_LOST, memlock_lock_wait_lost(stopped, -1, &why));
    CHECK(why == MEMLOCK_LOST_EXPIRED);
    EVENTUALLY(notices.count >= 1 && notices.what[notices.count - 1] == MEMLOCK_LOST_EXPIRED);
    ANSWERS(MEMLOCK_LOST, memlock_unlock(stopped));
}

/* The holder is a child, which keeps what it locked itself, and says through a pipe that it holds it. */
static void a_holder_that_was_stopped_finds_it_lost_and_has_not_renewed_it(void) {
    char said;
    int status;
    memlock_lock *ours;
    CHECK(pipe(pipes) == 0);
    const pid_t child = start_child(0, hold_until_it_is_lost);
    CHECK(read(pipes[0], &said, 1) == 1);
    CHECK(kill(child, SIGSTOP) == 0);
    CHECK(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
    /* It is ours as soon as the lease is over, and stays so when the other one wakes. */
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, "stopped", 600000, 60000, &ours));
    CHECK(kill(child, SIGCONT) == 0);
    expect_good_news(child, 0);
    ANSWERS(MEMLOCK_OK, memlock_lock_check(ours));
    ANSWERS(MEMLOCK_OK, memlock_unlock(ours));
    close(pipes[0]);
    close(pipes[1]);
}

static memlock_lock *kept;

static void renew_as_a_child(int number) {
    int why = 0;
    int64_t left = -1;
    (void)number;
    CHECK(renewers() == 0 && memlock_lock_is_held(kept) == 0);
    ANSWERS(MEMLOCK_NOT_HELD, memlock_lock_check(kept));
    ANSWERS(MEMLOCK_NOT_HELD, memlock_lock_lost(kept, &why));
    ANSWERS(MEMLOCK_NOT_HELD, memlock_lock_wait_lost(kept, -1, &why));
    ANSWERS(MEMLOCK_NOT_HELD, memlock_lock_extend(kept, 30000));
    ANSWERS(MEMLOCK_NOT_HELD, memlock_lock_renew(kept, -1, NULL, NULL));
    ANSWERS(MEMLOCK_NOT_HELD, memlock_lock_renew(lock, -1, NULL, NULL));
    ANSWERS(MEMLOCK_NOT_HELD, memlock_lock_bind(lock));
    ANSWERS(MEMLOCK_NOT_HELD, memlock_lock_bind(kept));
    ANSWERS(MEMLOCK_OK, memlock_lock_remaining_ms(kept, &left));
    CHECK(left == 0);
    ANSWERS(MEMLOCK_NOT_HELD, memlock_unlock(kept));
    /* Its own are renewed by its own renewer. */
    memlock_lock *own = renewed("childs", SAFE_LEASE_MS, NULL);
    EVENTUALLY(renewers() == 1);
    is_renewed(own);
    ANSWERS(MEMLOCK_OK, memlock_unlock(own));
}

static void a_child_holds_and_keeps_nothing(void) {
    struct notices notices = {0};
    kept = renewed("kept", SAFE_LEASE_MS, &notices);
    fork_and_expect_good_news(0, renew_as_a_child);
    ANSWERS(MEMLOCK_OK, memlock_lock_check(kept));
    check_nothing_was_lost(&notices);
    ANSWERS(MEMLOCK_OK, memlock_unlock(kept));
}

/* --- Callbacks for messages */

static const pid_t nobody = 0;
static _Atomic pid_t logged_by;
static _Atomic bool stay, inside;

static void fails(void) { ANSWERS(MEMLOCK_UNREACHABLE, check_nowhere("memcached://127.0.0.1:1")); }

static void hear_and_stay(int level, const char *part, const char *message, void *arg) {
    (void)level, (void)part, (void)message;
    logged_by = getpid();
    inside = true;
    while (stay && getpid() == *(pid_t *)arg) check_pause_ms(1);
}

static void hear(int level, const char *part, const char *message, void *arg) {
    (void)level, (void)part, (void)message, (void)arg;
    logged_by = getpid();
}

static void *go_on_failing(void *unused) {
    (void)unused;
    while (!stop) fails();
    return NULL;
}

/* May replace what its parent's thread is in, and is told then. */
static void log_as_a_child(int number) {
    (void)number;
    ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_INFO, hear, NULL));
    logged_by = nobody;
    fails();
    CHECK(logged_by == getpid());
    ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_OFF, NULL, NULL));
}

static void log_as_its_parent(int number) {
    logged_by = nobody;
    fails();
    CHECK(logged_by == getpid());
    log_as_a_child(number);
}

static void a_child_does_not_wait_for_a_callback_of_its_parents(void) {
    pid_t parent = getpid();
    stay = true;
    ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_INFO, hear_and_stay, &parent));
    const pthread_t thread = check_start(go_on_failing, NULL);
    EVENTUALLY(inside);
    fork_and_expect_good_news(0, log_as_its_parent);
    stop = true;
    stay = false;
    check_join(thread);
    ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_OFF, NULL, NULL));
}

static void fork_inside(int level, const char *part, const char *message, void *arg) {
    (void)level, (void)part, (void)message;
    *(pid_t *)arg = fork();
    if (*(pid_t *)arg == 0) _exit(0);
}

/* A child that does more than end or call exec is undefined. */
static void a_callback_may_fork(void) {
    pid_t child = -1;
    ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_INFO, fork_inside, &child));
    fails();
    ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_OFF, NULL, NULL));
    expect_good_news(child, 0);
}

static void *go_on_replacing(void *unused) {
    (void)unused;
    for (int i = 0; !stop; i++) ANSWERS(MEMLOCK_OK, memlock_log_set(i % 3, i % 2 ? hear : NULL, NULL));
    return NULL;
}

static void children_of_threads_that_log_do_not_hang(void) {
    stop = false;
    pthread_t threads[3] = {check_start(go_on_failing, NULL), check_start(go_on_failing, NULL),
                            check_start(go_on_replacing, NULL)};
    for (int i = 0; i < forks; i++) fork_and_expect_good_news(i, log_as_a_child);
    stop = true;
    for (int i = 0; i < 3; i++) check_join(threads[i]);
    ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_OFF, NULL, NULL));
}

/* Usage: fork NAME [number of forks] */
int main(int argc, char **argv) {
    if (argc > 2) forks = atoi(argv[2]);
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &client));
    ANSWERS(MEMLOCK_OK, mutex_lock("parents", 300));
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, "parents handle", 300000, 0, &lock));
    ANSWERS(MEMLOCK_OK, distinct_list_set_up("bare session", 300));
    ANSWERS(MEMLOCK_OK, memlock_list_set_up(client, "session", 300000, &list));
    ANSWERS(MEMLOCK_OK, memlock_list_insert(list, "parents", 7, NULL));
    ANSWERS(MEMLOCK_OK, semaphore_set_up("parents", 1, 300));
    ANSWERS(MEMLOCK_OK, semaphore_acquire("parents", 300));
    ANSWERS(MEMLOCK_OK, semaphore_set_up("bare semaphore", 2, 300));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(client, "semaphore", 5, 300000, &semaphore));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire(semaphore, 3, 0, &permit));
    RUN(a_child_and_its_parent_wait_each_for_itself);
    RUN(a_child_holds_and_keeps_nothing);
    RUN(a_holder_that_was_stopped_finds_it_lost_and_has_not_renewed_it);
    RUN(a_child_does_not_wait_for_a_callback_of_its_parents);
    RUN(a_callback_may_fork);
    RUN(children_of_threads_that_log_do_not_hang);
    stop = false;
    RUN(a_fork_may_come_at_any_moment);
    ANSWERS(MEMLOCK_OK, mutex_unlock("parents"));
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    ANSWERS(MEMLOCK_OK, semaphore_release("parents"));
    ANSWERS(MEMLOCK_OK, memlock_permit_release(permit));
    memlock_semaphore_close(semaphore);
    ANSWERS(MEMLOCK_OK, memlock_list_tear_down(list));
    memlock_list_close(list);
    memlock_client_close(client);
    return 0;
}
