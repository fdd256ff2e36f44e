/* The queue of waiters for a lock or for permits, as it is on the server: one waiter a line, the first one is next. */

#ifndef QUEUE_H
#define QUEUE_H

#include "check.h"
#include "memcached_text.h"

#include <sys/syscall.h>

/* The text of the queue of an item; empty where there is none. The thread's own, and good until its next request. */
static inline const char *queue_at(const char *key) {
    char request[512];
    snprintf(request, sizeof request, "get %s%%wait\r\n", key);
    const char *reply = plain_until(request, "END\r\n");
    const char *value = strstr(reply, "\r\n");
    return value != NULL ? value + 2 : "";
}

static inline int queue_length_at(const char *key) {
    int waiters = 0;
    for (const char *at = queue_at(key); (at = strchr(at, '\n')) != NULL; at++) {
        /* The item's own end is a line end too, but memcached's. */
        if (at[-1] != '\r') waiters++;
    }
    return waiters;
}

/* The same for the mutex of this name. */
static inline const char *queue_of(const char *name) {
    char key[256];
    snprintf(key, sizeof key, "lock:%s", name);
    return queue_at(key);
}

static inline int queue_length(const char *name) {
    char key[256];
    snprintf(key, sizeof key, "lock:%s", name);
    return queue_length_at(key);
}

/* Waits until so many stand in it. */
#define QUEUE_BECOMES(length, name) EVENTUALLY(queue_length(name) == (length))
#define QUEUE_AT_BECOMES(length, key) EVENTUALLY(queue_length_at(key) == (length))

/* A thread that waits for a lock, behind which others can be started: of one client's waiters only the first one
 * stands in the queue on the server, so whether a later one waits is seen by its sleep. */
struct queue_thread {
    pthread_t thread;
    pid_t id; /* read and written atomically, in C and in C++ */
};

/* To be called first in the thread. */
static inline void queue_here(struct queue_thread *self) {
    __atomic_store_n(&self->id, (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
}

/* The kernel's number for it; 0 until it has begun. */
static inline pid_t queue_id(const struct queue_thread *thread) {
    return __atomic_load_n(&thread->id, __ATOMIC_ACQUIRE);
}

/* Whether the thread is in this system call. */
static inline bool queue_is_in(long wanted, const struct queue_thread *waiter) {
    const pid_t id = queue_id(waiter);
    if (id == 0) return false;
    char path[64];
    long call = -1;
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", (int)id);
    FILE *file = fopen(path, "r");
    /* It has ended. */
    if (file == NULL) return false;
    const bool known = fscanf(file, "%ld", &call) == 1;
    fclose(file);
    return known && call == wanted;
}

/* Waiters sleep in this call, and nothing else of the library does for long. */
static inline bool queue_sleeps(const struct queue_thread *waiter) { return queue_is_in(SYS_ppoll, waiter); }

#endif
