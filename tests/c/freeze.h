/* Freezing this program's memcached: the kernel still takes connections and bytes for it, without replies. */

#ifndef FREEZE_H
#define FREEZE_H

#include "check.h"

#include <dirent.h>
#include <signal.h>

static inline bool freeze_has_stopped(const char *thread) {
    char path[64], state = '?';
    snprintf(path, sizeof path, "/proc/%d/task/%.16s/stat", (int)check_server(), thread);
    FILE *stat = fopen(path, "r");
    if (stat == NULL || fscanf(stat, "%*d %*s %c", &state) != 1) FAIL("%s cannot be read", path);
    fclose(stat);
    return state == 'T';
}

/* When this returns all of its threads stand still, and not only soon. */
static inline void freeze(void) {
    if (kill(check_server(), SIGSTOP) != 0) FAIL("memcached cannot be stopped");
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", (int)check_server());
    DIR *threads = opendir(path);
    if (threads == NULL) FAIL("%s cannot be read", path);
    for (struct dirent *thread = readdir(threads); thread != NULL; thread = readdir(threads)) {
        while (thread->d_name[0] != '.' && !freeze_has_stopped(thread->d_name)) check_pause_ms(1);
    }
    closedir(threads);
}

static inline void thaw(void) {
    if (kill(check_server(), SIGCONT) != 0) FAIL("memcached cannot be resumed");
}

#endif
