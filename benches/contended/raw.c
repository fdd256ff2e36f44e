/* raw.c: contenders of worker.c that need only a socket or a file. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>

#include "worker.h"

/* The item under which memlock keeps its mutex "contended". */
#define LOCK_KEY "lock:" NAME

/* --- the socket --------------------------------------------------------------------------- */

static int raw_fd;

static void raw_open(const char *url)
{
    const int port = atoi(strrchr(url, ':') + 1);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int one = 1;
    raw_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (raw_fd < 0 || connect(raw_fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        setsockopt(raw_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0)
        die("connect to %s: %s", url, strerror(errno));
}

/* Sends a command of one packet and reads its reply line, without the CR LF. */
static void ask(const char *command, size_t len, char *line, size_t room)
{
    size_t got = 0;
    if (send(raw_fd, command, len, MSG_NOSIGNAL) != (ssize_t)len)
        die("send: %s", strerror(errno));
    do {
        ssize_t more = got < room ? recv(raw_fd, line + got, room - got, 0) : 0;
        if (more <= 0)
            die("receive: %s", more == 0 ? "the server hung up" : strerror(errno));
        got += (size_t)more;
    } while (line[got - 1] != '\n');
    line[got < 2 ? 0 : got - 2] = '\0';
}

/* --- polling: the safe recipe, tried once a millisecond -------------------------------------- */

/*
 * A semaphore by this recipe is a lock for each permit, and each attempt tries the next one: a
 * process sends as many requests as for a single lock.
 */
static char key[64] = LOCK_KEY;
static uint64_t slot;
static char cas[32];

static void polling_open(const char *url, uint64_t index)
{
    raw_open(url);
    slot = index;
}

static bool polling_try(uint64_t *fence)
{
    char command[128], reply[64];
    if (board->permits > 1)
        snprintf(key, sizeof key, LOCK_KEY ":%" PRIu64, ++slot % board->permits);
    /* As in memlock, more than the lease: memcached's clock ticks once a second. */
    int len = snprintf(command, sizeof command, "ms %s 1 ME T31 c\r\n1\r\n", key);
    ask(command, (size_t)len, reply, sizeof reply);
    if (strncmp(reply, "NS", 2) == 0)
        return false;
    if (strncmp(reply, "HD c", 4) != 0)
        die("ms answered '%s'", reply);
    snprintf(cas, sizeof cas, "%.31s", reply + 4);
    *fence = strtoull(cas, NULL, 10); /* memcached's versions increase with every store */
    return true;
}

static bool polling_take(uint64_t *fence)
{
    while (!polling_try(fence)) {
        if (stopped())
            return false;
        sleep_until(now_ns() + POLL_NS);
    }
    return true;
}

static void polling_give(void)
{
    char command[128], reply[64];
    int len = snprintf(command, sizeof command, "md %s C%s\r\n", key, cas);
    ask(command, (size_t)len, reply, sizeof reply);
    if (strcmp(reply, "HD") != 0)
        die("md answered '%s'", reply);
}

/* --- broken: occasionally grants twice, to test the detection -------------------------------- */

#define GRANT_A_REFUSAL_OF 16

static bool broken_owns;

static bool broken_take(uint64_t *fence)
{
    static unsigned refusals;
    while (!(broken_owns = polling_try(fence))) {
        if (stopped())
            return false;
        *fence = 1;
        if (++refusals % GRANT_A_REFUSAL_OF == 0)
            return true;
        sleep_until(now_ns() + POLL_NS);
    }
    return true;
}

static void broken_give(void)
{
    if (broken_owns)
        polling_give();
}

/* --- flock: the kernel's lock on a file ------------------------------------------------------- */

static int flock_fd;

static void flock_open(const char *url, uint64_t index)
{
    const char *path = strstr(url, "://") + 3;
    (void)index;
    flock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (flock_fd < 0)
        die("%s: %s", path, strerror(errno));
}

static bool flock_take(uint64_t *fence)
{
    *fence = 0;
    while (flock(flock_fd, LOCK_EX) != 0) {
        if (errno != EINTR)
            die("flock: %s", strerror(errno));
        if (stopped())
            return false;
    }
    return true;
}

static void flock_give(void)
{
    flock(flock_fd, LOCK_UN);
}

/* --- a relay: the cost of a hand-over on this machine without any decision -------------------- */

/*
 * Not a lock: each process hands over to the next one in a ring, whose address it knows. It has the
 * round trips and the wake-ups of memlock's hand-over: release and read the queue in one packet,
 * send a message; when woken, acquire the lock.
 */
static int listeners[MOST_PROCESSES];
static struct sockaddr_in socket_addresses[MOST_PROCESSES];
static uint64_t relay_index;
static bool relay_begins;

static void relay_prepare(void)
{
    for (uint64_t index = 0; index < board->processes; index++) {
        struct sockaddr_in *address = &socket_addresses[index];
        socklen_t len = sizeof *address;
        address->sin_family = AF_INET;
        address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        listeners[index] = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (listeners[index] < 0 || bind(listeners[index], (struct sockaddr *)address, len) != 0 ||
            getsockname(listeners[index], (struct sockaddr *)address, &len) != 0)
            die("a socket: %s", strerror(errno));
    }
}

static void relay_open(const char *url, uint64_t index)
{
    raw_open(url);
    relay_index = index;
    relay_begins = index == 0;
}

static bool relay_take(uint64_t *fence)
{
    struct pollfd listener = {.fd = listeners[relay_index], .events = POLLIN};
    char message;
    for (; !relay_begins && recv(listener.fd, &message, 1, 0) != 1; poll(&listener, 1, -1))
        if (stopped())
            return false;
    relay_begins = false;
    if (!polling_try(fence))
        die("the relay's lock is taken");
    return true;
}

static void relay_give(void)
{
    const struct sockaddr_in *next = &socket_addresses[(relay_index + 1) % board->processes];
    char command[128], reply[64];
    int len = snprintf(command, sizeof command, "md " LOCK_KEY " C%s q\r\nmg " LOCK_KEY "%%wait v\r\n", cas);
    ask(command, (size_t)len, reply, sizeof reply);
    if (strcmp(reply, "EN") != 0)
        die("md and mg answered '%s'", reply);
    if (sendto(listeners[relay_index], "", 1, 0, (const struct sockaddr *)next, sizeof *next) != 1)
        die("wake: %s", strerror(errno));
}

/* --- the contenders ------------------------------------------------------------------------- */

const struct contender raw_contenders[] = {
    {"polling", polling_open, polling_take, polling_give, NULL, NULL},
    {"relay", relay_open, relay_take, relay_give, relay_prepare, NULL},
    {"flock", flock_open, flock_take, flock_give, NULL, NULL},
    {"broken", polling_open, broken_take, broken_give, NULL, NULL},
    {0},
};
