/* memcached.c: lock+unlock pairs and batches of a distinct list on memcached, see pairs.c. */
#include <inttypes.h>
#include <libmemcached/memcached.h>
#include <memlock.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "pairs.h"

/* The item of memlock's mutex "bench", so that all contenders hash the same key. */
#define LOCK_KEY "lock:bench"
/* Longer than the lease, because memcached's clock ticks once a second. (memlock sends two seconds
 * and 1 in 5,000 more.) */
#define LOCK_TTL_S 31

#define BATCH 1000
#define SESSION_S 3600

static const char LOCK_VALUE[] = VALUE;
#define LOCK_VALUE_LEN (sizeof LOCK_VALUE - 1)

/* --- raw: the floor of a pair ------------------------------------------------------------- */

static int raw_fd;
static char raw_add[256];
static size_t raw_add_len;

static void raw_open(const char *url)
{
    raw_fd = dial(url);
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

static void libmemcached_open(const char *url)
{
    lmc = memcached_create(NULL);
    if (lmc == NULL || memcached_server_add(lmc, "127.0.0.1", port_of(url)) != MEMCACHED_SUCCESS ||
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

static void raw_batch_open(const char *url)
{
    static const char before[] = "ms list:bench:";
    raw_fd = dial(url);
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

static void memlock_batch_open(const char *url)
{
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

/* --- the contenders ------------------------------------------------------------------------- */

const struct contender contenders[] = {
    {"raw", "pair", 1, 16, raw_open, raw_step, raw_close},
    {"libmemcached", "pair", 1, 16, libmemcached_open, libmemcached_step, libmemcached_close},
    {"raw-batch", "key", BATCH, 1, raw_batch_open, raw_batch_step, raw_close},
    {"memlock-batch", "key", BATCH, 1, memlock_batch_open, memlock_batch_step, memlock_batch_close},
    {0},
};
