/* What the tests of renewal share: a client, renewed locks, the notices that their callbacks got, the renewers. */

#ifndef RENEWAL_H
#define RENEWAL_H

#include "server.h"

/* What is renewed is to be lost within LEASE_MS. What is not to be lost has more, since on a busy machine a thread may
 * have to wait for seconds; it is renewed after a third of it. */
enum { LEASE_MS = 6000, SAFE_LEASE_MS = 15000, ROOM = 16 };

static memlock_client *client;

/* The notices that the callback got, in order. */
struct notices {
    _Atomic int count;
    int what[ROOM];
    /* For callbacks that use the handle. */
    memlock_lock *lock;
    _Atomic int answer;
    /* For callbacks that take their time. */
    _Atomic bool inside, go_on;
};

static inline void note(int what, int64_t left_ms, void *arg) {
    struct notices *notices = arg;
    const int place = notices->count;
    (void)left_ms;
    if (place >= ROOM) FAIL("notices too often");
    notices->what[place] = what;
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

/* Counts the renewer threads of this process: all of them, or those that sleep in a system call. */
enum { ANY_CALL = -2 };
static inline int renewers_in(long call) {
    int found = 0;
    DIR *threads = opendir("/proc/self/task");
    if (threads == NULL) FAIL("no /proc");
    for (struct dirent *entry = readdir(threads); entry != NULL; entry = readdir(threads)) {
        char path[64], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%.16s/comm", entry->d_name);
        FILE *comm = fopen(path, "r");
        if (comm == NULL) continue;
        const struct queue_thread thread = {.id = (pid_t)atol(entry->d_name)};
        const bool is_one = fscanf(comm, "%31s", name) == 1 && strncmp(name, "memlock-renewer", 15) == 0;
        found += is_one && (call == ANY_CALL || queue_is_in(call, &thread));
        fclose(comm);
    }
    closedir(threads);
    return found;
}

static inline int renewers(void) { return renewers_in(ANY_CALL); }

#endif
