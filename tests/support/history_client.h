/* What the clients of `make faults` and `make chaos` in C share: chance, time, and the lines of a history
 * (tests/support/history.rs). */

#ifndef HISTORY_CLIENT_H
#define HISTORY_CLIENT_H

#include <fcntl.h>
#include <inttypes.h>
#include <memlock.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { AFTER_FAILURE_MS = 10, SHORTLY_MS = 30 };

static int history;
static uint64_t seed;

static inline uint64_t below(uint64_t end) {
    seed += 0x9e3779b97f4a7c15;
    uint64_t mixed = seed;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    return (mixed ^ (mixed >> 31)) % end;
}

static inline int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_BOOTTIME, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static inline void pause_ms(int64_t ms) {
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0) continue;
}

/* One write, so that a kill costs no more than the end of a line. */
static inline void say(const char *text) {
    char line[2048];
    const int length = snprintf(line, sizeof line, "%" PRId64 " 0 %s\n", now(), text);
    if (write(history, line, (size_t)length) != length) _exit(3);
}

static inline void call(const char *op, const char *name, int64_t first, int64_t second) {
    char text[256];
    snprintf(text, sizeof text, "call %s %s %" PRId64 " %" PRId64, op, name, first, second);
    say(text);
}

static inline void done(int answer, uint64_t first, uint64_t second) {
    char text[1800];
    char said[1600] = "";
    if (answer < 0) snprintf(said, sizeof said, "%s", memlock_last_error());
    for (char *at = said; *at != '\0'; at++) {
        if (*at == '\n') *at = ' ';
    }
    snprintf(text, sizeof text, "done %d %" PRIu64 " %" PRIu64 " %s", answer, first, second, said);
    say(text);
    if (answer < 0) pause_ms(AFTER_FAILURE_MS);
}

/* Until when it is certainly held if so much was left after this moment: rather too early than too late. */
static inline uint64_t deadline_of(int64_t before, int64_t left_ms) {
    return left_ms > 0 ? (uint64_t)(before + left_ms * 1000000) : 0;
}

static inline uint64_t deadline(const memlock_lock *lock) {
    const int64_t before = now();
    int64_t left = 0;
    memlock_lock_remaining_ms(lock, &left);
    return deadline_of(before, left);
}

/* Locks a mutex. NULL if it was not granted. */
static inline memlock_lock *lock(const memlock_client *client, const char *name, int64_t lease_ms, int64_t wait_ms) {
    memlock_lock *got;
    call("lock", name, lease_ms, wait_ms);
    const int answer = memlock_mutex_lock(client, name, lease_ms, wait_ms, &got);
    if (answer != MEMLOCK_OK) {
        done(answer, 0, 0);
        return NULL;
    }
    uint64_t fence = 0;
    memlock_lock_fence(got, &fence);
    done(answer, fence, deadline(got));
    return got;
}

static inline int extend(const char *name, memlock_lock *lock, int64_t lease_ms) {
    call("extend", name, lease_ms, 0);
    const int answer = memlock_lock_extend(lock, lease_ms);
    done(answer, 0, deadline(lock));
    return answer;
}

static inline void unlock(const char *name, memlock_lock *lock) {
    call("unlock", name, 0, 0);
    done(memlock_unlock(lock), 0, 0);
}

/* Opens what `client URL HISTORY SEED` names, and calls `live` until standard input ends; between two calls it pauses
 * for less than `idle_ms`. The process's status. */
static inline int run(int count, char **words, uint64_t idle_ms, void (*live)(const memlock_client *)) {
    if (count != 4) return 2;
    history = open(words[2], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    seed = strtoull(words[3], NULL, 10);
    memlock_client *client;
    if (history < 0 || memlock_client_open(words[1], &client) != MEMLOCK_OK) return 2;
    struct pollfd end = {STDIN_FILENO, POLLIN, 0};
    while (poll(&end, 1, (int)below(idle_ms)) == 0) live(client);
    memlock_client_close(client);
    return 0;
}

#endif
