/* What the tests of calls that are started share: a client, its event loop, and another client. */

#ifndef ASYNCHRONOUS_H
#define ASYNCHRONOUS_H

#include "check.h"
#include "memcached_text.h"
#include "queue.h"

#include <poll.h>

/* `client` starts calls, and `other` competes with it. */
static memlock_client *client, *other;

static inline void open_both(void) {
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &client));
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &other));
}

static inline bool readable(memlock_client *of) {
    struct pollfd watched = {memlock_client_event_fd(of), POLLIN, 0};
    if (watched.fd < 0) FAIL("no descriptor: %s", memlock_last_error());
    return poll(&watched, 1, 0) == 1;
}

/* The next call that has ended, as an event loop gets it. */
static inline memlock_pending *next_of(memlock_client *of) {
    memlock_pending *ended = NULL;
    EVENTUALLY(readable(of) && (ended = memlock_client_next_ended(of)) != NULL);
    return ended;
}

static inline memlock_pending *acquire(const char *name, int64_t timeout_ms, void *arg) {
    memlock_pending *pending = NULL;
    ANSWERS(MEMLOCK_OK, memlock_acquire_start(client, name, 30000, timeout_ms, arg, &pending));
    CHECK(pending != NULL && memlock_pending_arg(pending) == arg);
    return pending;
}

static inline memlock_lock *lock_of(memlock_client *of, const char *name) {
    memlock_lock *lock;
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(of, name, 30000, -1, &lock));
    return lock;
}

/* The call ends with this answer, which its handle keeps; then it is closed. */
static inline void ends_with(int answer, memlock_pending *pending) {
    CHECK(next_of(client) == pending);
    ANSWERS(answer, memlock_pending_poll(pending));
    ANSWERS(answer, memlock_pending_poll(pending));
    memlock_pending_close(pending);
}

/* The lock that the call was granted. */
static inline memlock_lock *granted(memlock_pending *pending) {
    memlock_lock *lock = NULL;
    CHECK(next_of(client) == pending);
    ANSWERS(MEMLOCK_OK, memlock_pending_take_lock(pending, &lock));
    CHECK(lock != NULL);
    memlock_pending_close(pending);
    return lock;
}

static inline void release(memlock_lock *lock) {
    memlock_pending *pending;
    ANSWERS(MEMLOCK_OK, memlock_release_start(lock, NULL, &pending));
    ends_with(MEMLOCK_OK, pending);
}

/* Nobody holds or waits for the lock any more, once what was cancelled has been given back. That takes less
 * than the lease of a lock that was left. */
static inline void becomes_free(const char *name) {
    char key[128];
    snprintf(key, sizeof key, "lock:%s", name);
    EVENTUALLY(!plain_has(key) && queue_length(name) == 0);
    memlock_lock *lock;
    EVENTUALLY(memlock_mutex_lock(other, name, 30000, 0, &lock) == MEMLOCK_OK);
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    EVENTUALLY(!plain_has(key) && queue_length(name) == 0);
}

#endif
