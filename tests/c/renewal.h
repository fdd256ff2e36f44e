/* What the tests of keeping share: a client, locks that are kept, what their callbacks were told, the keepers. */

#ifndef KEEP_H
#define KEEP_H

#include "check.h"
#include "renewers.h"

/* Under valgrind, on a busy machine, a thread may have to wait for more than a second. */
enum { LEASE_MS = 3000, ROOM = 16 };

static memlock_client *client;

/* What the callback was told, in order. */
struct told {
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

static inline pid_t told_thread(void) { return (pid_t)syscall(SYS_gettid); }

static inline void note(int what, int64_t left_ms, void *arg) {
    struct told *told = arg;
    const int place = told->count;
    if (place >= ROOM) FAIL("told too often");
    told->what[place] = what;
    told->left_ms[place] = left_ms;
    told->thread[place] = told_thread();
    told->count = place + 1;
}

static inline memlock_lock *locked(const char *name, int64_t lease_ms) {
    memlock_lock *lock;
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, name, lease_ms, -1, &lock));
    return lock;
}

static inline memlock_lock *kept(const char *name, int64_t lease_ms, struct told *told) {
    memlock_lock *lock = locked(name, lease_ms);
    ANSWERS(MEMLOCK_OK, memlock_lock_renew(lock, -1, told != NULL ? note : NULL, told));
    return lock;
}

#endif
