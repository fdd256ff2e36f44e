/* quorum.c: lock+unlock pairs on a quorum of three memcacheds, see pairs.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pairs.h"

#define SERVERS 3
/* The items of memlock's mutex "bench": its votes, the counters of fences, and the queue. */
#define LOCK_KEY "lock:bench"
/* As memlock asks for: the lease and two seconds more, and two days. */
#define LOCK_TTL_S (QUORUM_S + 2)
#define FENCE_TTL_S 172836

static const char LOCK_VALUE[] = VALUE;

/* --- raw: the bytes that memlock sends, to three sockets at once -------------------------- */

static int fds[SERVERS];
static char vote[512];
static size_t vote_len;

static void raw_open(const char *url)
{
    const char *at = strstr(url, "//");
    for (int i = 0; i < SERVERS; i++) {
        at = strchr(at + 2, ':');
        if (at == NULL)
            die("%s does not name three servers", url);
        fds[i] = dial_port((uint16_t)atoi(at + 1));
    }
    vote_len = (size_t)snprintf(vote, sizeof vote,
                                "add " LOCK_KEY " 0 %d %zu\r\n%s\r\n"
                                "mg " LOCK_KEY " v c t f h O1\r\n"
                                "ma " LOCK_KEY "%%fence v D1 N%d J0 T%d O2\r\n",
                                LOCK_TTL_S, sizeof LOCK_VALUE - 1, LOCK_VALUE, FENCE_TTL_S, FENCE_TTL_S);
}

/* Reads replies until they end with the value of the counter, or so many lines. */
static void replies(int fd, char *text, size_t room, int lines)
{
    size_t len = 0;
    int seen = 0;
    while (seen < lines) {
        if (len + 1 >= room)
            die("more replies than were asked for");
        size_t more = receive(fd, text + len, room - 1 - len);
        for (size_t i = 0; i < more; i++)
            seen += text[len + i] == '\n';
        len += more;
    }
    text[len] = '\0';
}

static void raw_step(void)
{
    char text[512], out[256];
    unsigned long long cas[SERVERS];
    for (int i = 0; i < SERVERS; i++)
        send_all(fds[i], vote, vote_len);
    for (int i = 0; i < SERVERS; i++) {
        /* STORED, the item in two lines, and the counter in two. */
        replies(fds[i], text, sizeof text, 5);
        const char *version = strstr(text, " c");
        if (strncmp(text, "STORED", 6) != 0 || version == NULL || sscanf(version, " c%llu", &cas[i]) != 1)
            die("the vote was answered '%s'", text);
    }
    for (int i = 0; i < SERVERS; i++) {
        int len = snprintf(out, sizeof out, "md " LOCK_KEY " C%llu O3\r\n%s", cas[i],
                           i == 0 ? "mg " LOCK_KEY "%wait v c t f h O4\r\n" : "");
        send_all(fds[i], out, (size_t)len);
    }
    for (int i = 0; i < SERVERS; i++) {
        replies(fds[i], text, sizeof text, i == 0 ? 2 : 1);
        if (strncmp(text, "HD", 2) != 0)
            die("md was answered '%s'", text);
    }
}

static void raw_close(void)
{
    for (int i = 0; i < SERVERS; i++)
        close(fds[i]);
}

/* --- memlock ------------------------------------------------------------------------------ */

static void quorum_open(const char *url)
{
    open_with_lease(url, QUORUM_S);
}

/* The last server is stopped by the harness; the first call finds that out, by a time-out. */
static void hung_open(const char *url)
{
    open_with_lease(url, QUORUM_S);
    memlock_step();
}

const struct contender contenders[] = {
    {"raw", "pair", 1, 16, raw_open, raw_step, raw_close},
    {"quorum", "pair", 1, 16, quorum_open, memlock_step, memlock_close},
    {"hung", "pair", 1, 16, hung_open, memlock_step, memlock_close},
    {0},
};
