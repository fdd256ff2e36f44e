/* What the tests of keeping share: a client, locks that are kept, what their callbacks were told, the keepers. */

#ifndef KEEP_H
#define KEEP_H

#include "check.h"

#include <dirent.h>
#include <sys/syscall.h>

/* Under valgrind, on a busy machine, a thread may have to wait for a second. */
enum { LEASE_MS = 2000, ROOM = 16 };

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
    ANSWERS(MEMLOCK_OK, memlock_lock_keep(lock, -1, told != NULL ? note : NULL, told));
    return lock;
}

/* Counts the keeper threads of this process and, if `waiting` is not NULL, how many of them wait for
 * a server's reply. */
static inline int keepers_and(int *waiting) {
    int found = 0;
    DIR *threads = opendir("/proc/self/task");
    if (threads == NULL) FAIL("no /proc");
    for (struct dirent *thread = readdir(threads); thread != NULL; thread = readdir(threads)) {
        char path[64], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%.16s/comm", thread->d_name);
        FILE *comm = fopen(path, "r");
        if (comm == NULL) continue;
        const bool named = fscanf(comm, "%31s", name) == 1;
        const bool is_one = named && strncmp(name, "memlock-keeper", 14) == 0;
        fclose(comm);
        found += is_one;
        if (!is_one || waiting == NULL) continue;
        long call = -1;
        snprintf(path, sizeof path, "/proc/self/task/%.16s/syscall", thread->d_name);
        FILE *file = fopen(path, "r");
        if (file == NULL) continue;
        *waiting += fscanf(file, "%ld", &call) == 1 && call == SYS_recvfrom;
        fclose(file);
    }
    closedir(threads);
    return found;
}

/* How many keepers' threads this process has. */
static inline int keepers(void) { return keepers_and(NULL); }

/* Whether a keeper has sent a request and sleeps until the reply comes. */
static inline bool keeper_waits_for_an_answer(void) {
    int waiting = 0;
    keepers_and(&waiting);
    return waiting > 0;
}

#endif
