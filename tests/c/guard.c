/* `guard=`: a server that was started a short while ago grants nothing new. Its guard is longer than this test. */

#include "check.h"
#include "server.h"

enum { GUARD_MS = 3600 * 1000, LEASE_MS = 30000 };

static memlock_client *client;

static void a_try_says_for_how_long_yet(void) {
    memlock_lock *lock;
    memlock_semaphore *semaphore;
    memlock_permit *permit;
    ANSWERS(MEMLOCK_RECOVERING, memlock_mutex_lock(client, "m", LEASE_MS, 0, &lock));
    CHECK(lock == NULL && MEMLOCK_RECOVERING == 9);
    SAYS("\"m\"");
    SAYS("was started");
    SAYS(" ago, and gives new ones in ");
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(client, "s", 3, LEASE_MS, &semaphore));
    ANSWERS(MEMLOCK_RECOVERING, memlock_semaphore_acquire(semaphore, 1, 0, &permit));
    CHECK(permit == NULL);
    SAYS("\"s\"");
    memlock_semaphore_close(semaphore);
}

static void a_wait_waits(void) {
    memlock_lock *lock;
    ANSWERS(MEMLOCK_TIMED_OUT, memlock_mutex_lock(client, "m", LEASE_MS, 200, &lock));
    CHECK(lock == NULL);
    CHECK(!plain_has("lock:m"));
}

static void a_semaphore_of_unknown_size_is_not_missing(void) {
    memlock_semaphore *semaphore;
    memlock_permit *permit;
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(client, "unknown", 0, LEASE_MS, &semaphore));
    ANSWERS(MEMLOCK_RECOVERING, memlock_semaphore_acquire(semaphore, 1, 0, &permit));
    memlock_semaphore_close(semaphore);
}

static void longer_leases_and_other_guards_are_refused(void) {
    memlock_lock *lock;
    memlock_semaphore *semaphore;
    memlock_client *other;
    char url[256];
    ANSWERS(MEMLOCK_INVALID, memlock_mutex_lock(client, "m", GUARD_MS + 1000, 0, &lock));
    SAYS("guard of 60 min");
    ANSWERS(MEMLOCK_INVALID, memlock_semaphore_open(client, "s", 3, GUARD_MS + 1000, &semaphore));
    const char *parameters[] = {"", "?guard=60s"}, *says[] = {"no guard=", "guard=60s"};
    for (int i = 0; i < 2; i++) {
        snprintf(url, sizeof url, "memcached://127.0.0.1:%d%s", plain_port(), parameters[i]);
        ANSWERS(MEMLOCK_OK, memlock_client_open(url, &other));
        ANSWERS(MEMLOCK_CONFIG, memlock_mutex_lock(other, "m", LEASE_MS, -1, &lock));
        SAYS("guard=3600s");
        SAYS(says[i]);
        memlock_client_close(other);
    }
    ANSWERS(MEMLOCK_CONFIG, memlock_client_open("memcached://h?guard=500ms", &other));
    SAYS("guard=\"500ms\"");
    SAYS("from 1s to 3600s");
}

/* Their client is that of MEMLOCK_URL. */
static void the_bare_functions_heed_the_guard(void) {
    ANSWERS(MEMLOCK_RECOVERING, mutex_lock_nonblock("bare", 1));
    ANSWERS(MEMLOCK_INVALID, mutex_lock("bare", GUARD_MS / 1000 + 1));
    SAYS("guard of 60 min");
    ANSWERS(MEMLOCK_NOT_HELD, mutex_unlock("bare"));
}

int main(void) {
    char url[256];
    snprintf(url, sizeof url, "memcached://127.0.0.1:%d?io_timeout=20s&guard=3600s", plain_port());
    setenv("MEMLOCK_URL", url, 1);
    ANSWERS(MEMLOCK_OK, memlock_client_open(url, &client));
    RUN(a_try_says_for_how_long_yet);
    RUN(a_wait_waits);
    RUN(a_semaphore_of_unknown_size_is_not_missing);
    RUN(longer_leases_and_other_guards_are_refused);
    RUN(the_bare_functions_heed_the_guard);
    memlock_client_close(client);
    return 0;
}
