/* Renewal and processes: a child of a fork holds nothing and has no renewer; one that stood still finds out. */

#include "renewal.h"

#include <signal.h>
#include <sys/wait.h>

/* The holder is a child, which keeps what it locked itself, and says through a pipe that it holds it. */
static void a_holder_that_was_stopped_finds_it_lost_and_has_not_renewed_it(void) {
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    const pid_t child = fork();
    if (child == 0) {
        struct notices notices = {0};
        int why = 0;
        memlock_lock *lock = renewed("stopped", LEASE_MS, &notices);
        CHECK(write(pipes[1], "k", 1) == 1);
        ANSWERS(MEMLOCK_LOST, memlock_lock_wait_lost(lock, 30000, &why));
        CHECK(why == MEMLOCK_LOST_EXPIRED);
        EVENTUALLY(notices.count >= 1);
        CHECK(notices.what[notices.count - 1] == MEMLOCK_LOST_EXPIRED);
        ANSWERS(MEMLOCK_LOST, memlock_unlock(lock));
        _exit(7);
    }
    char said;
    CHECK(read(pipes[0], &said, 1) == 1);
    CHECK(kill(child, SIGSTOP) == 0);
    int status;
    CHECK(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
    /* It is ours as soon as the lease is over, and stays so when the other one wakes. */
    memlock_lock *ours;
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, "stopped", 30000, 10000, &ours));
    CHECK(kill(child, SIGCONT) == 0);
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 7) FAIL("the child ended with %d", status);
    ANSWERS(MEMLOCK_OK, memlock_lock_check(ours));
    ANSWERS(MEMLOCK_OK, memlock_unlock(ours));
    close(pipes[0]);
    close(pipes[1]);
}

static void a_child_holds_and_keeps_nothing(void) {
    struct notices notices = {0};
    memlock_lock *lock = renewed("parents", LEASE_MS, &notices), *plain_one = locked("parents plain", 30000);
    const pid_t child = fork();
    if (child == 0) {
        int why = 0;
        int64_t left = -1;
        CHECK(renewers() == 0 && memlock_lock_is_held(lock) == 0);
        ANSWERS(MEMLOCK_NOT_HELD, memlock_lock_check(lock));
        ANSWERS(MEMLOCK_NOT_HELD, memlock_lock_lost(lock, &why));
        ANSWERS(MEMLOCK_NOT_HELD, memlock_lock_wait_lost(lock, -1, &why));
        ANSWERS(MEMLOCK_NOT_HELD, memlock_lock_extend(lock, 30000));
        ANSWERS(MEMLOCK_NOT_HELD, memlock_lock_renew(lock, -1, NULL, NULL));
        ANSWERS(MEMLOCK_NOT_HELD, memlock_lock_renew(plain_one, -1, NULL, NULL));
        ANSWERS(MEMLOCK_OK, memlock_lock_remaining_ms(lock, &left));
        CHECK(left == 0);
        ANSWERS(MEMLOCK_NOT_HELD, memlock_unlock(lock));
        /* Its own are renewed by its own renewer. */
        memlock_lock *own = renewed("childs", LEASE_MS, NULL);
        EVENTUALLY(renewers() == 1);
        check_pause_ms(2 * LEASE_MS);
        ANSWERS(MEMLOCK_OK, memlock_lock_check(own));
        ANSWERS(MEMLOCK_OK, memlock_unlock(own));
        _exit(7);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 7) FAIL("the child ended with %d", status);
    ANSWERS(MEMLOCK_OK, memlock_lock_check(lock));
    CHECK(notices.count == 0);
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    ANSWERS(MEMLOCK_OK, memlock_unlock(plain_one));
}

int main(void) {
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &client));
    RUN(a_holder_that_was_stopped_finds_it_lost_and_has_not_renewed_it);
    RUN(a_child_holds_and_keeps_nothing);
    memlock_client_close(client);
    return 0;
}
