/* Log records for a callback: none unasked, none truncated, none after its end, and no thread hangs. */

#include "check.h"

enum { LINES = 64, ROOM = 1000 };

static memlock_client *client;

/* The records that the callback got. Several threads may write at once: a line is there when `done` has counted it. */
struct heard {
    _Atomic int begun, done;
    int level[LINES];
    char part[LINES][32];
    char message[LINES][ROOM];
    /* For callbacks that take their time. */
    _Atomic bool inside, go_on;
};

static void hear(int level, const char *part, const char *message, void *arg) {
    struct heard *heard = arg;
    const int line = heard->begun++;
    if (line >= LINES) FAIL("too many records: %s", message);
    heard->level[line] = level;
    snprintf(heard->part[line], sizeof heard->part[line], "%s", part);
    snprintf(heard->message[line], sizeof heard->message[line], "%s", message);
    heard->done++;
}

/* The line of this level and part that contains this text, or -1. */
static int find(const struct heard *heard, int level, const char *part, const char *text) {
    for (int line = 0; line < heard->done; line++)
        if (heard->level[line] == level && strcmp(heard->part[line], part) == 0 &&
            strstr(heard->message[line], text) != NULL)
            return line;
    return -1;
}

#define HEARD(heard, level, part, text) (find((heard), (level), (part), (text)) >= 0)

static struct heard *new_heard(void) {
    struct heard *heard = calloc(1, sizeof *heard);
    if (heard == NULL) FAIL("no memory");
    return heard;
}

static void end(struct heard *heard) {
    ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_OFF, NULL, NULL));
    free(heard);
}

/* A client that logs at once: its port has no listener. */
static void fails(void) { ANSWERS(MEMLOCK_UNREACHABLE, check_nowhere("memcached://127.0.0.1:1")); }

static void levels_are_honoured(void) {
    struct heard *heard = new_heard();
    fails();
    ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_OFF, hear, heard));
    fails();
    ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_TRACE, NULL, heard));
    fails();
    ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_WARNING, hear, heard));
    fails();
    CHECK(heard->begun == 0);
    ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_INFO, hear, heard));
    /* A wrong level changes nothing. */
    ANSWERS(MEMLOCK_INVALID, memlock_log_set(-1, NULL, NULL));
    ANSWERS(MEMLOCK_INVALID, memlock_log_set(6, NULL, NULL));
    SAYS("max_level is 6");
    fails();
    CHECK(heard->done == 1 && HEARD(heard, MEMLOCK_LOG_INFO, "memlock.store", "memcached at 127.0.0.1:1: "));
    /* A client of its own says where it connected. */
    ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_DEBUG, hear, heard));
    memlock_client *another;
    memlock_lock *lock;
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &another));
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(another, "levels", 600000, 0, &lock));
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    CHECK(heard->done == 3 && HEARD(heard, MEMLOCK_LOG_DEBUG, "memlock.store", "Connected to memcached at 127"));
    CHECK(HEARD(heard, MEMLOCK_LOG_WARNING, "memlock.store", "may evict locks when its memory is full"));
    memlock_client_close(another);
    end(heard);
}

/* A callback that uses memlock, and gets no records of that. */
static _Atomic int nested;

static void use_memlock(int level, const char *part, const char *message, void *arg) {
    memlock_lock *lock;
    (void)level, (void)part, (void)message, (void)arg;
    nested++;
    fails();
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, "in the callback", 600000, 0, &lock));
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    ANSWERS(MEMLOCK_INVALID, memlock_log_set(99, NULL, NULL));
}

static void a_callback_may_use_memlock(void) {
    ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_TRACE, use_memlock, NULL));
    fails();
    CHECK(nested == 1);
    fails();
    CHECK(nested == 2);
    end(NULL);
}

/* The first time. */
static void take_long(int level, const char *part, const char *message, void *arg) {
    struct heard *heard = arg;
    (void)level, (void)part, (void)message;
    if (heard->begun++ > 0) return;
    heard->inside = true;
    while (!heard->go_on) check_pause_ms(1);
    check_pause_ms(50);
    heard->inside = false;
}

static void *fail_once(void *unused) {
    (void)unused;
    fails();
    return NULL;
}

static void *replace(void *arg) {
    ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_INFO, hear, arg));
    return NULL;
}

/* A thread that logs does not wait for the one that replaces the callback, and that one waits for the callback. */
static void no_callback_runs_once_it_is_replaced(void) {
    struct heard *slow = new_heard(), *heard = new_heard();
    ANSWERS(MEMLOCK_OK, memlock_log_set(MEMLOCK_LOG_INFO, take_long, slow));
    pthread_t inside = check_start(fail_once, NULL);
    EVENTUALLY(slow->inside);
    pthread_t replacing = check_start(replace, heard);
    EVENTUALLY((fails(), heard->done > 0));
    CHECK(slow->inside);
    slow->go_on = true;
    check_join(replacing);
    CHECK(!slow->inside);
    memset(slow, 0xff, sizeof *slow);
    check_join(inside);
    free(slow);
    end(heard);
}

int main(void) {
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &client));
    RUN(levels_are_honoured);
    RUN(a_callback_may_use_memlock);
    RUN(no_callback_runs_once_it_is_replaced);
    memlock_client_close(client);
    return 0;
}
