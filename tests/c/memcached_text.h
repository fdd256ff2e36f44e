/* A plain memcached client, to look at the server past the library. A connection for each command. */

#ifndef MEMCACHED_TEXT_H
#define MEMCACHED_TEXT_H

#include "check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

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

/* The item's remaining time to live in seconds. */
static inline long plain_ttl(const char *key) {
    char request[512];
    snprintf(request, sizeof request, "mg %s t\r\n", key);
    const char *reply = plain(request);
    if (strncmp(reply, "HD t", 4) != 0) FAIL("mg %s: %s", key, reply);
    return atol(reply + 4);
}

static inline void plain_flush(void) {
    if (strcmp(plain("flush_all\r\n"), "OK") != 0) FAIL("flush_all was refused");
}

#endif
