/* redis.c: lock+unlock pairs on Redis, see pairs.c. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "pairs.h"

/* The key of memlock's mutex "bench". */
#define LOCK_KEY "lock:bench"

static int fd;

/* Makes a command of strings, of which the last is NULL; returns its length. */
static size_t command(char *out, size_t room, const char *const *words)
{
    size_t count = 0;
    while (words[count] != NULL)
        count++;
    size_t len = (size_t)snprintf(out, room, "*%zu\r\n", count);
    for (size_t i = 0; i < count; i++)
        len += (size_t)snprintf(out + len, room - len, "$%zu\r\n%s\r\n", strlen(words[i]), words[i]);
    return len;
}

static void ask(const char *packet, size_t len, const char *wanted)
{
    char reply[256];
    send_all(fd, packet, len);
    receive_line(fd, reply, sizeof reply);
    if (strcmp(reply, wanted) != 0)
        die("a command was answered '%s'", reply);
}

/* --- raw: a lock, and a delete that does not look whose it is -------------------------------- */

static char set[256], release[256];
static size_t set_len, release_len;

static void raw_open(const char *url)
{
    fd = dial(url);
    set_len = command(set, sizeof set, (const char *[]){"SET", LOCK_KEY, VALUE, "NX", "PX", "30000", NULL});
    release_len = command(release, sizeof release, (const char *[]){"DEL", LOCK_KEY, NULL});
}

static void raw_step(void)
{
    ask(set, set_len, "+OK");
    ask(release, release_len, ":1");
}

static void raw_close(void)
{
    close(fd);
}

/* --- raw-checked: the release that Redis's documentation recommends, by a script -------------- */

#define SCRIPT                                                                                         \
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end"

static void raw_checked_open(const char *url)
{
    char load[512], sha[64];
    raw_open(url);
    send_all(fd, load, command(load, sizeof load, (const char *[]){"SCRIPT", "LOAD", SCRIPT, NULL}));
    size_t got = 0;
    while (got < 47) /* "$40", the digits, and two ends of lines */
        got += receive(fd, sha + got, sizeof sha - 1 - got);
    sha[45] = '\0';
    if (strncmp(sha, "$40\r\n", 5) != 0)
        die("SCRIPT LOAD was answered '%s'", sha);
    release_len = command(release, sizeof release,
                          (const char *[]){"EVALSHA", sha + 5, "1", LOCK_KEY, VALUE, NULL});
}

/* --- the contenders ------------------------------------------------------------------------- */

const struct contender contenders[] = {
    {"raw", "pair", 1, 16, raw_open, raw_step, raw_close},
    {"raw-checked", "pair", 1, 16, raw_checked_open, raw_step, raw_close},
    {0},
};
