/* What the tests of renewal share: a client, renewed locks, the notices that their callbacks got, the renewers. */

#ifndef RENEWAL_H
#define RENEWAL_H

#include "check.h"

#include <dirent.h>
#include <sys/syscall.h>

/* What is renewed is to be lost within LEASE_MS. What is not to be lost has more, since on a busy machine a thread may
 * have to wait for seconds; it is renewed after a third of it. */
enum { LEASE_MS = 3000, SAFE_LEASE_MS = 15000, ROOM = 16 };

static memlock_client *client;

/* The notices that the callback got, in order. */
struct notices {
    _Atomic int count;
    int what[ROOM];
    int64_t left_ms[ROOM];
    pid_t thread[ROOM];
    /* For callbacks that use the handle. */
    memlock_lock *lock;
    _Atomic int answer;
    /* For callbacks that take their time. */
    _Atomic bool inside, go_on, left;
};

static inline pid_t notice_thread(void) { return (pid_t)syscall(SYS_gettid); }

static inline void note(int what, int64_t left_ms, void *arg) {
    struct notices *notices = arg;
    const int place = notices->count;
    if (place >= ROOM) FAIL("notices too often");
    notices->what[place] = what;
    notices->left_ms[place] = left_ms;
    notices->thread[place] = notice_thread();
    notices->count = place + 1;
}

/* On a busy machine, a lease may have been at risk. */
static inline void check_nothing_was_lost(const struct notices *notices) {
    for (int i = 0; i < notices->count; i++) CHECK(notices->what[i] == MEMLOCK_LEASE_AT_RISK);
}

static inline memlock_lock *locked(const char *name, int64_t lease_ms) {
    memlock_lock *lock;
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, name, lease_ms, -1, &lock));
    return lock;
}

static inline memlock_lock *renewed(const char *name, int64_t lease_ms, struct notices *notices) {
    memlock_lock *lock = locked(name, lease_ms);
    ANSWERS(MEMLOCK_OK, memlock_lock_renew(lock, -1, notices != NULL ? note : NULL, notices));
    return lock;
}

/* Waits until the lease has been renewed, by which the remaining time grows. */
static inline void is_renewed(const memlock_lock *lock) {
    int64_t before, left;
    ANSWERS(MEMLOCK_OK, memlock_lock_remaining_ms(lock, &left));
    do {
        before = left;
        check_pause_ms(10);
        ANSWERS(MEMLOCK_OK, memlock_lock_remaining_ms(lock, &left));
        CHECK(left > 0);
    } while (left <= before);
}

/* The threads of this process that renew leases, and what they do. */

/* Counts the renewer threads of this process: all of them, or those that sleep in a system call. */
enum { ANY_CALL = -2 };
static inline int keepers_in(long wanted) {
    int found = 0;
    DIR *threads = opendir("/proc/self/task");
    if (threads == NULL) FAIL("no /proc");
    for (struct dirent *thread = readdir(threads); thread != NULL; thread = readdir(threads)) {
        char path[64], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%.16s/comm", thread->d_name);
        FILE *comm = fopen(path, "r");
        if (comm == NULL) continue;
        const bool named = fscanf(comm, "%31s", name) == 1;
        const bool is_one = named && strncmp(name, "memlock-renewer", 15) == 0;
        fclose(comm);
        if (is_one && wanted == ANY_CALL) found++;
        if (!is_one || wanted == ANY_CALL) continue;
        long call = -1;
        snprintf(path, sizeof path, "/proc/self/task/%.16s/syscall", thread->d_name);
        FILE *file = fopen(path, "r");
        if (file == NULL) continue;
        found += fscanf(file, "%ld", &call) == 1 && call == wanted;
        fclose(file);
    }
    closedir(threads);
    return found;
}

/* How many renewers' threads this process has. */
static inline int renewers(void) { return keepers_in(ANY_CALL); }

/* Whether a renewer has sent a request and sleeps until the reply comes. */
static inline bool keeper_waits_for_an_answer(void) { return keepers_in(SYS_recvfrom) > 0; }

/* Whether a renewer has nothing to do and sleeps until the next renewal. */
static inline bool keeper_is_idle(void) { return keepers_in(SYS_futex) > 0; }

#endif
