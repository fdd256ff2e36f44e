/* memlock.c: memlock's mutex and semaphore as contenders of worker.c. */
#include <inttypes.h>
#include <memlock.h>
#include <stdio.h>

#include "worker.h"

#define LEASE_MS 30000

static memlock_client *client;

static void client_open(const char *url)
{
    if (memlock_client_open(url, &client) != MEMLOCK_OK)
        die("memlock_client_open: %s", memlock_last_error());
}

static void client_cancel(void)
{
    memlock_client_cancel_waits(client);
}

/* --- the mutex -------------------------------------------------------------------------------- */

static memlock_lock *lock;

static void mutex_open(const char *url, uint64_t index)
{
    char name[32];
    client_open(url);
    /* Another mutex: the connection must exist before the race, and the lock must be unused. */
    snprintf(name, sizeof name, "warm-up-%" PRIu64, index);
    if (memlock_mutex_lock(client, name, LEASE_MS, 0, &lock) != MEMLOCK_OK ||
        memlock_unlock(lock) != MEMLOCK_OK)
        die("the first contact: %s", memlock_last_error());
}

static bool mutex_take(uint64_t *fence)
{
    int rc;
    do
        rc = memlock_mutex_lock(client, NAME, LEASE_MS, -1, &lock);
    while (rc == MEMLOCK_INTERRUPTED && !stopped());
    if (rc == MEMLOCK_INTERRUPTED)
        return false;
    if (rc != MEMLOCK_OK)
        die("memlock_mutex_lock answered %d: %s", rc, memlock_last_error());
    if (memlock_lock_fence(lock, fence) != MEMLOCK_OK)
        die("memlock_lock_fence: %s", memlock_last_error());
    return true;
}

static void mutex_give(void)
{
    int rc = memlock_unlock(lock);
    if (rc != MEMLOCK_OK)
        die("memlock_unlock answered %d: %s", rc, memlock_last_error());
}

/* --- the semaphore ---------------------------------------------------------------------------- */

static memlock_semaphore *semaphore;
static _Thread_local memlock_permit *permit;

static memlock_semaphore *opened(const char *name)
{
    memlock_semaphore *it;
    if (memlock_semaphore_open(client, name, (uint32_t)board->permits, LEASE_MS, &it) != MEMLOCK_OK)
        die("memlock_semaphore_open: %s", memlock_last_error());
    return it;
}

static void semaphore_open(const char *url, uint64_t index)
{
    char name[32];
    client_open(url);
    /* Another semaphore, as above. */
    snprintf(name, sizeof name, "warm-up-%" PRIu64, index);
    memlock_semaphore *warm_up = opened(name);
    if (memlock_semaphore_acquire(warm_up, 1, 0, &permit) != MEMLOCK_OK ||
        memlock_permit_release(permit) != MEMLOCK_OK)
        die("the first contact: %s", memlock_last_error());
    memlock_semaphore_close(warm_up);
    semaphore = opened(NAME);
}

static bool semaphore_take(uint64_t *fence)
{
    int rc;
    do
        rc = memlock_semaphore_acquire(semaphore, 1, -1, &permit);
    while (rc == MEMLOCK_INTERRUPTED && !stopped());
    if (rc == MEMLOCK_INTERRUPTED)
        return false;
    if (rc != MEMLOCK_OK)
        die("memlock_semaphore_acquire answered %d: %s", rc, memlock_last_error());
    *fence = 0; /* a permit has none */
    return true;
}

static void semaphore_give(void)
{
    int rc = memlock_permit_release(permit);
    if (rc != MEMLOCK_OK)
        die("memlock_permit_release answered %d: %s", rc, memlock_last_error());
}

/* --- the contenders ------------------------------------------------------------------------- */

const struct contender memlock_contenders[] = {
    {"memlock", mutex_open, mutex_take, mutex_give, NULL, client_cancel},
    {"semaphore", semaphore_open, semaphore_take, semaphore_give, NULL, client_cancel},
    {0},
};
