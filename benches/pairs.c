/*
 * pairs.c: the rate of pairs of one C process on one server or file, of lock and unlock or of acquire
 * and release, and the rate of new keys in a distinct list, inserted in batches.
 *
 *   pairs CONTENDER URL seconds=T   warm up for T/4, then run for T seconds
 *   pairs CONTENDER URL count=N     exactly N steps and no warm-up, for counting commands
 *
 * URL is one that memlock takes. A step is one pair, or one batch of BATCH keys. One line comes out,
 * for benches/run to read:
 *
 *   contender=raw unit=pair units=12345 seconds=1.000012 per_second=12344.9
 *
 * This file has the measurement, and memlock's mutex. A program is made of it and one of these files,
 * which have what memlock is compared with, and in each of which `raw` is the floor: the minimum for
 * an operation, with every reply checked and no library in between except for that of the protocol.
 *
 *   memcached.c    mutexes and lists on memcached
 *   quorum.c       mutexes on a quorum of three memcacheds
 *   semaphores.c   semaphores on memcached
 *   redis.c        mutexes on Redis
 *   postgresql.c   mutexes on PostgreSQL, by libpq
 *   mariadb.c      mutexes on MariaDB, by libmariadb
 */
#include "pairs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <memlock.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

void die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("pairs: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

/* --- the socket --------------------------------------------------------------------------- */

uint16_t port_of(const char *url)
{
    return (uint16_t)atoi(strrchr(url, ':') + 1);
}

int dial(const char *url)
{
    return dial_port(port_of(url));
}

int dial_port(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int one = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0)
        die("connect to port %d: %s", port, strerror(errno));
    return fd;
}

void send_all(int fd, const char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t sent = send(fd, bytes, len, MSG_NOSIGNAL);
        if (sent < 0)
            die("send: %s", strerror(errno));
        bytes += sent;
        len -= (size_t)sent;
    }
}

size_t receive(int fd, char *buffer, size_t room)
{
    ssize_t got = recv(fd, buffer, room, 0);
    if (got <= 0)
        die("receive: %s", got == 0 ? "the server hung up" : strerror(errno));
    return (size_t)got;
}

void receive_line(int fd, char *line, size_t room)
{
    size_t len = 0;
    do {
        if (len == room)
            die("a reply line of more than %zu bytes", room);
        len += receive(fd, line + len, room - len);
    } while (line[len - 1] != '\n');
    if (len < 2)
        die("an empty reply line");
    line[len - 2] = '\0';
}

/* --- memlock: the bare functions ---------------------------------------------------------- */

static int lease_s = LEASE_S;

static void memlock_open(const char *url)
{
    if (memlock_init(url) != 0)
        die("memlock_init: %s", memlock_last_error());
}

void memlock_step(void)
{
    int rc = mutex_lock("bench", lease_s);
    if (rc != 0)
        die("mutex_lock answered %d: %s", rc, memlock_last_error());
    rc = mutex_unlock("bench");
    if (rc != 0)
        die("mutex_unlock answered %d: %s", rc, memlock_last_error());
}

void memlock_close(void)
{
}

/* With a guard in the URL, which no lease may exceed. */
void open_with_lease(const char *url, int seconds)
{
    lease_s = seconds;
    memlock_open(url);
}

static void guarded_open(const char *url)
{
    open_with_lease(url, GUARD_S);
}

/* --- the race ----------------------------------------------------------------------------- */

static const struct contender guarded = {"memlock-guarded", "pair", 1, 16, guarded_open, memlock_step, memlock_close};
static const struct contender memlock = {"memlock", "pair", 1, 16, memlock_open, memlock_step, memlock_close};

static const struct contender *called(const char *name)
{
    if (strcmp(name, memlock.name) == 0)
        return &memlock;
    if (strcmp(name, guarded.name) == 0)
        return &guarded;
    for (const struct contender *it = contenders; it->name != NULL; it++)
        if (strcmp(name, it->name) == 0)
            return it;
    die("no contender is called '%s'", name);
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Runs exactly `count` steps, or as many as fit in `seconds`; returns their number. */
static uint64_t run(const struct contender *it, uint64_t count, double seconds)
{
    const double end = now_s() + seconds;
    uint64_t steps = 0;
    do {
        uint64_t look = count > 0 ? count : it->steps_per_look;
        for (uint64_t i = 0; i < look; i++)
            it->step();
        steps += look;
    } while (count == 0 && now_s() < end);
    return steps;
}

int main(int argc, char **argv)
{
    uint64_t count = 0;
    double seconds = 0;
    if (argc != 4 || (sscanf(argv[3], "count=%" SCNu64, &count) != 1 &&
                      sscanf(argv[3], "seconds=%lf", &seconds) != 1) ||
        (count == 0 && seconds <= 0))
        die("usage: pairs CONTENDER URL seconds=T|count=N");

    const struct contender *it = called(argv[1]);
    it->open(argv[2]);
    if (count == 0)
        run(it, 0, seconds / 4);
    const double begin = now_s();
    const uint64_t units = run(it, count, seconds) * it->units_per_step;
    const double took = now_s() - begin;
    it->close();
    printf("contender=%s unit=%s units=%" PRIu64 " seconds=%.6f per_second=%.1f\n", it->name, it->unit,
           units, took, (double)units / took);
    return 0;
}
