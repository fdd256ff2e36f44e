/* A server that may evict locks, as one without flags does, and a URL that does not allow it. */

#include "check.h"
#include "server.h"

static memlock_client *opened(const char *parameters, int answer) {
    char url[256];
    memlock_client *client = NULL;
    snprintf(url, sizeof url, "memcached://127.0.0.1:%d?io_timeout=20s&%s", plain_port(), parameters);
    ANSWERS(answer, memlock_client_open(url, &client));
    return client;
}

static void a_server_that_may_evict_is_refused_and_named(void) {
    char address[32];
    memlock_lock *lock = NULL;
    memlock_semaphore *semaphore;
    memlock_permit *permit = NULL;
    memlock_client *client = opened("evictions=refuse", MEMLOCK_OK);
    snprintf(address, sizeof address, "127.0.0.1:%d", plain_port());
    ANSWERS(MEMLOCK_CONFIG, memlock_mutex_lock(client, "m", 30000, 0, &lock));
    SAYS(address);
    SAYS("evictions=refuse");
    SAYS("-M");
    /* A wait for ever, too. */
    ANSWERS(MEMLOCK_CONFIG, memlock_mutex_lock(client, "m", 30000, -1, &lock));
    CHECK(lock == NULL);
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(client, "s", 1, 30000, &semaphore));
    ANSWERS(MEMLOCK_CONFIG, memlock_semaphore_acquire(semaphore, 1, -1, &permit));
    CHECK(permit == NULL);
    SAYS("-M");
    memlock_semaphore_close(semaphore);
    memlock_client_close(client);
}

static void it_is_used_if_the_url_allows_it(void) {
    memlock_lock *lock;
    memlock_client *client = opened("evictions=allow", MEMLOCK_OK);
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, "m", 30000, 0, &lock));
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    memlock_client_close(client);
}

static void another_word_is_refused_with_those_that_are_known(void) {
    CHECK(opened("evictions=no", MEMLOCK_CONFIG) == NULL);
    SAYS("allow");
    SAYS("refuse");
}

int main(void) {
    RUN(a_server_that_may_evict_is_refused_and_named);
    RUN(it_is_used_if_the_url_allows_it);
    RUN(another_word_is_refused_with_those_that_are_known);
    return 0;
}
