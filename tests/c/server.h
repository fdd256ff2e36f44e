/* This program's memcached past the library: as a plain client, the queues of waiters, and frozen. */

#ifndef SERVER_H
#define SERVER_H

#include "check.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>

/* --- A plain client, with a connection for each command */

static inline int plain_port(void) {
    const char *colon = strrchr(check_url(), ':');
    return colon != NULL ? atoi(colon + 1) : 0;
}

static inline int plain_connect(void) {
    struct sockaddr_in server;
    memset(&server, 0, sizeof server);
    server.sin_family = AF_INET;
    server.sin_port = htons((uint16_t)plain_port());
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&server, sizeof server) != 0) FAIL("no plain connection");
    return fd;
}

/* Sends a request, line ends and all, and returns the reply up to `end`, without it. The text is the thread's own
 * and good until its next request. */
static inline const char *plain_until(const char *request, const char *end) {
    static __thread char reply[8192];
    const int fd = plain_connect();
    if (send(fd, request, strlen(request), MSG_NOSIGNAL) != (ssize_t)strlen(request)) FAIL("plain: no send");
    size_t got = 0;
    char *found = NULL;
    while (found == NULL) {
        const ssize_t more = recv(fd, reply + got, sizeof reply - 1 - got, 0);
        if (more <= 0) FAIL("plain: the reply broke off after \"%.*s\"", (int)got, reply);
        got += (size_t)more;
        reply[got] = '\0';
        found = strstr(reply, end);
    }
    *found = '\0';
    close(fd);
    return reply;
}

/* The first line of the reply. */
static inline const char *plain(const char *request) { return plain_until(request, "\r\n"); }

/* The lock that a plain client would take; `ttl` in seconds, 0 for ever. */
static inline bool plain_add(const char *key, int ttl) {
    char request[512];
    snprintf(request, sizeof request, "add %s 0 %d 1\r\n1\r\n", key, ttl);
    const char *reply = plain(request);
    if (strcmp(reply, "STORED") != 0 && strcmp(reply, "NOT_STORED") != 0) FAIL("add %s: %s", key, reply);
    return strcmp(reply, "STORED") == 0;
}

static inline bool plain_delete(const char *key) {
    char request[512];
    snprintf(request, sizeof request, "delete %s\r\n", key);
    return strcmp(plain(request), "DELETED") == 0;
}

static inline bool plain_has(const char *key) {
    char request[512];
    snprintf(request, sizeof request, "get %s\r\n", key);
    return strcmp(plain(request), "END") != 0;
}

static inline void plain_flush(void) {
    if (strcmp(plain("flush_all\r\n"), "OK") != 0) FAIL("flush_all was refused");
}

/* --- The queue of waiters for a lock or for permits: one waiter a line, the first one is next */

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

/* The system call that the thread is in, and its first four arguments; -1 if it is in none. */
static inline long queue_call(const struct queue_thread *waiter, unsigned long arguments[4]) {
    /* 0 until it has begun. */
    const pid_t id = __atomic_load_n(&waiter->id, __ATOMIC_ACQUIRE);
    if (id == 0) return -1;
    char path[64];
    long call = -1;
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", (int)id);
    FILE *file = fopen(path, "r");
    /* It has ended. */
    if (file == NULL) return -1;
    const int read =
        fscanf(file, "%ld %lx %lx %lx %lx", &call, &arguments[0], &arguments[1], &arguments[2], &arguments[3]);
    fclose(file);
    return read == 5 ? call : -1;
}

/* Whether the thread is in this system call. */
static inline bool queue_is_in(long wanted, const struct queue_thread *waiter) {
    unsigned long arguments[4];
    return queue_call(waiter, arguments) == wanted;
}

/* Waiters sleep in ppoll, or in a FUTEX_WAIT with a time limit, and nothing else of the library does. */
static inline bool queue_sleeps(const struct queue_thread *waiter) {
    unsigned long arguments[4];
    const long call = queue_call(waiter, arguments);
    return call == SYS_ppoll || (call == SYS_futex && arguments[1] == 0x80 && arguments[3] != 0);
}

/* --- Freezing it: the kernel still takes connections and bytes for it, without replies */

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
