/* The threads of this process that renew leases, and what they do. */

#ifndef KEEPERS_H
#define KEEPERS_H

#include "check.h"

#include <dirent.h>
#include <sys/syscall.h>

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
