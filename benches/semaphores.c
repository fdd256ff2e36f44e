/* semaphores.c: acquire+release pairs of a semaphore without contention, see pairs.c. */
#include <inttypes.h>
#include <memlock.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "pairs.h"

#define PERMITS 5
#define MANY_PERMITS 10000

/* --- raw: the floor of a pair ------------------------------------------------------------- */

/*
 * The requests and replies of memlock for a semaphore without contention, byte for byte except for
 * the tokens, which are new each time. To acquire, the record with a holder's line is written over
 * the last known version, and read; to release, the record is written without the line, and the
 * queue and the record are read.
 */
#define KEY "semaphore:bench"
#define TOKEN "0123456789abcdef0123456789abcdef"
/* The record's TTL: one day, and memlock's margin of two seconds and 1 in 5,000. */
#define LIFE_S 86419
#define ROOM 1024

static int raw_fd;
static uint64_t raw_version, raw_serial, raw_opaque;
static long long raw_expires, raw_until;

/* The next record to write, with a line for each of so many holders. */
static size_t raw_record(char *record, int holders)
{
    int len = snprintf(record, ROOM, "memlock-semaphore/1 " TOKEN " %d %lld %d %" PRIu64 "\n", PERMITS,
                       raw_expires, LIFE_S, ++raw_serial);
    if (holders > 0)
        len += snprintf(record + len, ROOM - (size_t)len, TOKEN " 1 %lld bench 12345 %lld\n", raw_until,
                        raw_until - LEASE_S - 1);
    return (size_t)len;
}

/* Sends `storing`, which stores the record, and `before` and a read of the record, in one packet;
 * checks the replies. */
static void raw_write(const char *storing, const char *record, size_t len, const char *before)
{
    char packet[2 * ROOM], replies[2 * ROOM], wanted[ROOM];
    int size = snprintf(packet, sizeof packet, "%s%s\r\n", storing, record);
    size_t empty = 0, got = 0;
    if (before != NULL) {
        empty = (size_t)snprintf(wanted, sizeof wanted, "EN O%" PRIu64 "\r\n", ++raw_opaque);
        size += snprintf(packet + size, sizeof packet - (size_t)size, "mg %s v c t f h O%" PRIu64 "\r\n",
                         before, raw_opaque);
    }
    size += snprintf(packet + size, sizeof packet - (size_t)size, "mg " KEY " v c t f h O%" PRIu64 "\r\n",
                     ++raw_opaque);
    send_all(raw_fd, packet, (size_t)size);
    /* The record ends with a newline, unlike any other reply. */
    do {
        got += receive(raw_fd, replies + got, sizeof replies - 1 - got);
        replies[got] = '\0';
    } while (got < 3 || strcmp(replies + got - 3, "\n\r\n") != 0);

    static const char stored[] = "STORED\r\n";
    const char *reply = replies;
    if (strncmp(reply, stored, sizeof stored - 1) != 0)
        die("the record was answered '%s'", reply);
    reply += sizeof stored - 1;
    if (strncmp(reply, wanted, empty) != 0)
        die("the queue's look was answered '%s'", reply);
    reply += empty;
    unsigned long long value_len;
    if (sscanf(reply, "VA %llu c%" SCNu64, &value_len, &raw_version) != 2 || value_len != len ||
        memcmp(replies + got - 2 - len, record, len) != 0)
        die("the record's look was answered '%s'", reply);
}

static void raw_replace(int holders, const char *before)
{
    char record[ROOM], storing[128];
    size_t len = raw_record(record, holders);
    snprintf(storing, sizeof storing, "cas " KEY " 0 %lld %zu %" PRIu64 "\r\n", raw_expires, len, raw_version);
    raw_write(storing, record, len, before);
}

static void raw_open(const char *url)
{
    char record[ROOM], storing[128];
    raw_fd = dial(url);
    raw_expires = (long long)time(NULL) + LIFE_S;
    raw_until = (long long)time(NULL) + LEASE_S + 1;
    size_t len = raw_record(record, 0);
    snprintf(storing, sizeof storing, "add " KEY " 0 %lld %zu\r\n", raw_expires, len);
    raw_write(storing, record, len, NULL);
}

static void raw_step(void)
{
    raw_replace(1, NULL);
    raw_replace(0, KEY "%wait");
}

static void raw_close(void)
{
    close(raw_fd);
}

/* --- memlock ------------------------------------------------------------------------------ */

static memlock_client *client;
static memlock_semaphore *semaphore;

static void memlock_open(const char *url, uint32_t permits)
{
    if (memlock_client_open(url, &client) != MEMLOCK_OK)
        die("memlock_client_open: %s", memlock_last_error());
    if (memlock_semaphore_open(client, "bench", permits, LEASE_S * INT64_C(1000), &semaphore) != MEMLOCK_OK)
        die("memlock_semaphore_open: %s", memlock_last_error());
}

static void memlock_open_few(const char *url)
{
    memlock_open(url, PERMITS);
}

static void memlock_open_many(const char *url)
{
    memlock_open(url, MANY_PERMITS);
}

static void memlock_step(void)
{
    memlock_permit *permit;
    int rc = memlock_semaphore_acquire(semaphore, 1, -1, &permit);
    if (rc != MEMLOCK_OK)
        die("memlock_semaphore_acquire answered %d: %s", rc, memlock_last_error());
    rc = memlock_permit_release(permit);
    if (rc != MEMLOCK_OK)
        die("memlock_permit_release answered %d: %s", rc, memlock_last_error());
}

static void memlock_close(void)
{
    memlock_semaphore_close(semaphore);
    memlock_client_close(client);
}

/* --- the contenders ------------------------------------------------------------------------- */

const struct contender contenders[] = {
    {"raw", "pair", 1, 16, raw_open, raw_step, raw_close},
    {"semaphore", "pair", 1, 16, memlock_open_few, memlock_step, memlock_close},
    {"semaphore-many", "pair", 1, 16, memlock_open_many, memlock_step, memlock_close},
    {0},
};
