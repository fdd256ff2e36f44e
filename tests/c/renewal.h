/* What the tests of renewal share: a client, renewed locks, the notices that their callbacks got, the renewers. */

#ifndef KEEP_H
#define KEEP_H

#include "check.h"
#include "renewers.h"

/* Under valgrind, on a busy machine, a thread may have to wait for more than a second. */
enum { LEASE_MS = 3000, ROOM = 16 };

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

/* Whether the latest notice is this one. */
static inline bool was_told(const struct notices *notices, int what) {
    const int count = notices->count;
    return count > 0 && notices->what[count - 1] == what;
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

#endif
