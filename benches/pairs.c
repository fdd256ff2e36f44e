/*
 * pairs.c: the rate of pairs of one C process on one memcached, of lock and unlock or of acquire
 * and release, and the rate of new keys in a distinct list, inserted in batches.
 *
 *   pairs CONTENDER SERVER seconds=T   warm up for T/4, then run for T seconds
 *   pairs CONTENDER SERVER count=N     exactly N steps and no warm-up, for counting commands
 *
 * SERVER is the port of a memcached on loopback; for `memlock` also the absolute path of a SQLite
 * file. A step is one pair, or one batch of BATCH keys. One line comes out, for benches/run to read:
 *
 *   contender=raw unit=pair units=12345 seconds=1.000012 per_second=12344.9
 *
 * `raw` and `raw-batch` are floors: the minimum of bytes and system calls for a safe operation
 * (including compare-and-delete), with every reply checked and no library in between.
 *
 * This file has the measurement, mutexes and lists; semaphores are in semaphores.c.
 */
#include "pairs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <libmemcached/memcached.h>
#include <memlock.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* The item of memlock's mutex "bench", so that all contenders hash the same key. */
#define LOCK_KEY "lock:bench"
#define LEASE_S 30
/* Longer than the lease, because memcached's clock ticks once a second. (memlock sends two seconds
 * and 1 in 5,000 more.) */
#define LOCK_TTL_S 31

#define BATCH 1000
#define SESSION_S 3600

/* About as long as memlock's lock value, which contains the host name. */
static const char LOCK_VALUE[] =
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
#define LOCK_VALUE_LEN (sizeof LOCK_VALUE - 1)

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

int dial(const char *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int one = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0)
        die("connect to port %s: %s", port, strerror(errno));
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

/* One reply line, NUL-terminated and without its CR LF. One is outstanding, so LF ends the data. */
static void receive_line(int fd, char *line, size_t room)
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

/* --- raw: the floor of a pair ------------------------------------------------------------- */

static int raw_fd;
static char raw_add[256];
static size_t raw_add_len;

static void raw_open(const char *port)
{
    raw_fd = dial(port);
    raw_add_len = (size_t)snprintf(raw_add, sizeof raw_add, "ms " LOCK_KEY " %zu ME T%d c\r\n%s\r\n",
                                   LOCK_VALUE_LEN, LOCK_TTL_S, LOCK_VALUE);
}

static void raw_step(void)
{
    char reply[64], delete_it[128];
    send_all(raw_fd, raw_add, raw_add_len);
    receive_line(raw_fd, reply, sizeof reply);
    if (strncmp(reply, "HD c", 4) != 0)
        die("ms answered '%s'", reply);
    int len = snprintf(delete_it, sizeof delete_it, "md " LOCK_KEY " C%s\r\n", reply + 4);
    send_all(raw_fd, delete_it, (size_t)len);
    receive_line(raw_fd, reply, sizeof reply);
    if (strcmp(reply, "HD") != 0)
        die("md answered '%s'", reply);
}

static void raw_close(void)
{
    close(raw_fd);
}

/* --- libmemcached: the usual unsafe recipe, add then a blind delete ----------------------- */

static memcached_st *lmc;

static void libmemcached_open(const char *port)
{
    lmc = memcached_create(NULL);
    if (lmc == NULL || memcached_server_add(lmc, "127.0.0.1", (in_port_t)atoi(port)) != MEMCACHED_SUCCESS ||
        memcached_behavior_set(lmc, MEMCACHED_BEHAVIOR_TCP_NODELAY, 1) != MEMCACHED_SUCCESS)
        die("libmemcached would not be set up");
}

static void libmemcached_step(void)
{
    const size_t key_len = sizeof LOCK_KEY - 1;
    memcached_return_t rc =
        memcached_add(lmc, LOCK_KEY, key_len, LOCK_VALUE, LOCK_VALUE_LEN, LOCK_TTL_S, 0);
    if (rc != MEMCACHED_SUCCESS)
        die("memcached_add: %s", memcached_strerror(lmc, rc));
    rc = memcached_delete(lmc, LOCK_KEY, key_len, 0);
    if (rc != MEMCACHED_SUCCESS)
        die("memcached_delete: %s", memcached_strerror(lmc, rc));
}

static void libmemcached_close(void)
{
    memcached_free(lmc);
}

/* --- memlock: the bare functions ---------------------------------------------------------- */

void memlock_url(char *url, size_t room, const char *server)
{
    snprintf(url, room, server[0] == '/' ? "sqlite://%s" : "memcached://127.0.0.1:%s", server);
}

static void memlock_open(const char *server)
{
    char url[4096];
    memlock_url(url, sizeof url, server);
    if (memlock_init(url) != 0)
        die("memlock_init: %s", memlock_last_error());
}

static void memlock_step(void)
{
    int rc = mutex_lock("bench", LEASE_S);
    if (rc != 0)
        die("mutex_lock answered %d: %s", rc, memlock_last_error());
    rc = mutex_unlock("bench");
    if (rc != 0)
        die("mutex_unlock answered %d: %s", rc, memlock_last_error());
}

static void memlock_close(void)
{
}

/* --- the keys of a batch ------------------------------------------------------------------ */

/*
 * Keys are "key-<batch number>-<index in the batch>". Both batch contenders prepare the whole text
 * once and then overwrite only the batch number, so that generating keys costs both the same, and
 * almost nothing.
 */
#define KEY_FORMAT "key-%09" PRIu64 "-%03d"
#define KEY_LEN 17
#define NUMBER_AT 4
#define NUMBER_LEN 9

static uint64_t batch_number;

static void next_batch(char *first_key, size_t stride)
{
    char digits[32];
    if (batch_number == 1000000000)
        die("out of batch numbers");
    snprintf(digits, sizeof digits, "%0*" PRIu64, NUMBER_LEN, batch_number++);
    for (size_t i = 0; i < BATCH; i++)
        memcpy(first_key + i * stride + NUMBER_AT, digits, NUMBER_LEN);
}

/* --- raw-batch: the floor of insert_many, one `add` for each key and nothing that numbers them -- */

#define RAW_COMMAND_ROOM 80

static char raw_batch[BATCH * RAW_COMMAND_ROOM];
static size_t raw_command_len, raw_key_at;

static void raw_batch_open(const char *port)
{
    static const char before[] = "ms list:bench:";
    raw_fd = dial(port);
    raw_key_at = sizeof before - 1;
    char *end = raw_batch;
    for (int i = 0; i < BATCH; i++) {
        int len = snprintf(end, RAW_COMMAND_ROOM, "%s" KEY_FORMAT " 1 ME T%d\r\n1\r\n", before,
                           (uint64_t)0, i, SESSION_S);
        raw_command_len = (size_t)len; /* all keys and commands have the same length */
        end += len;
    }
}

static void raw_batch_step(void)
{
    /*
     * Write all, then read all: 44 KB of commands are answered with 4 KB, which any socket buffer
     * holds, so the server never stops reading because of unread replies.
     */
    static char replies[BATCH * 4];
    next_batch(raw_batch + raw_key_at, raw_command_len);
    send_all(raw_fd, raw_batch, BATCH * raw_command_len);
    for (size_t got = 0; got < sizeof replies;)
        got += receive(raw_fd, replies + got, sizeof replies - got);
    for (size_t i = 0; i < BATCH; i++)
        if (memcmp(replies + i * 4, "HD\r\n", 4) != 0)
            die("the add of key %zu of a batch answered '%.2s'", i, replies + i * 4);
}

/* --- memlock-batch: memlock_list_insert_many ---------------------------------------------- */

static memlock_client *client;
static memlock_list *list;
static char key_text[BATCH][KEY_LEN + 1];
static memlock_bytes keys[BATCH];

static void memlock_batch_open(const char *port)
{
    char url[64];
    memlock_url(url, sizeof url, port);
    if (memlock_client_open(url, &client) != 0)
        die("memlock_client_open: %s", memlock_last_error());
    int rc = memlock_list_set_up(client, "bench", SESSION_S * INT64_C(1000), &list);
    if (rc != 0)
        die("memlock_list_set_up answered %d: %s", rc, memlock_last_error());
    for (int i = 0; i < BATCH; i++) {
        snprintf(key_text[i], sizeof key_text[i], KEY_FORMAT, (uint64_t)0, i);
        keys[i] = (memlock_bytes){.data = key_text[i], .len = KEY_LEN};
    }
}

static void memlock_batch_step(void)
{
    static memlock_insertion answers[BATCH];
    next_batch(key_text[0], sizeof key_text[0]);
    int rc = memlock_list_insert_many(list, keys, BATCH, answers);
    if (rc != 0)
        die("memlock_list_insert_many answered %d: %s", rc, memlock_last_error());
    for (size_t i = 0; i < BATCH; i++)
        if (answers[i].answer != 0)
            die("new key %.*s answered %d", KEY_LEN, keys[i].data, (int)answers[i].answer);
}

static void memlock_batch_close(void)
{
    if (memlock_list_tear_down(list) != 0)
        die("memlock_list_tear_down: %s", memlock_last_error());
    memlock_list_close(list);
    memlock_client_close(client);
}

/* --- the race ----------------------------------------------------------------------------- */

static const struct contender contenders[] = {
    {"raw", "pair", 1, 16, raw_open, raw_step, raw_close},
    {"libmemcached", "pair", 1, 16, libmemcached_open, libmemcached_step, libmemcached_close},
    {"memlock", "pair", 1, 16, memlock_open, memlock_step, memlock_close},
    {"raw-batch", "key", BATCH, 1, raw_batch_open, raw_batch_step, raw_close},
    {"memlock-batch", "key", BATCH, 1, memlock_batch_open, memlock_batch_step, memlock_batch_close},
};

static const struct contender *called(const char *name)
{
    for (size_t i = 0; i < sizeof contenders / sizeof *contenders; i++)
        if (strcmp(name, contenders[i].name) == 0)
            return &contenders[i];
    for (const struct contender *it = semaphore_contenders; it->name != NULL; it++)
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
        die("usage: pairs CONTENDER SERVER seconds=T|count=N");

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
