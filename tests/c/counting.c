/* Eight threads count under one lock: bare, then by handle. A count too low was a lock granted twice. */

#include "check.h"

enum { THREADS = 8, ROUNDS = 40 };

static memlock_client *client;

/* Plain on purpose: what keeps the threads from one another is the lock alone. The detour over a local and a
 * system call gives a second holder the time to be noticed. */
static int counter;
static int inside;

static void count_one(void) {
    CHECK_SAFE(__atomic_fetch_add(&inside, 1, __ATOMIC_SEQ_CST) == 0);
    const int seen = __atomic_load_n(&counter, __ATOMIC_RELAXED);
    check_pause_ms(0);
    __atomic_store_n(&counter, seen + 1, __ATOMIC_RELAXED);
    CHECK_SAFE(__atomic_fetch_sub(&inside, 1, __ATOMIC_SEQ_CST) == 1);
}

static void *count_by_name(void *unused) {
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) {
        ANSWERS(MEMLOCK_OK, mutex_lock("counter", 30));
        count_one();
        ANSWERS(MEMLOCK_OK, mutex_unlock("counter"));
    }
    return NULL;
}

static void *count_by_handle(void *unused) {
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) {
        memlock_lock *lock;
        ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, "counter", 30000, -1, &lock));
        count_one();
        ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    }
    return NULL;
}

static void all_count(void *(*body)(void *)) {
    pthread_t threads[THREADS];
    counter = 0;
    for (int i = 0; i < THREADS; i++) threads[i] = check_start(body, NULL);
    for (int i = 0; i < THREADS; i++) check_join(threads[i]);
    CHECK_SAFE(counter == THREADS * ROUNDS);
}

static void a_name_is_never_granted_twice(void) { all_count(count_by_name); }

static void a_handle_is_never_granted_twice(void) { all_count(count_by_handle); }

int main(void) {
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &client));
    RUN(a_name_is_never_granted_twice);
    RUN(a_handle_is_never_granted_twice);
    memlock_client_close(client);
    return 0;
}
