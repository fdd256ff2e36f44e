/* Calls that are started and then cancelled, closed or left: nothing of them stays behind. And a
 * server that hangs, many calls, many threads. */

#include "asynchronous.h"
#include "freeze.h"

#include <dirent.h>
#include <sys/resource.h>

static void a_cancelled_wait_ends_interrupted(void) {
    memlock_lock *held = lock_of(other, "cancelled");
    memlock_pending *pending = acquire("cancelled", -1, NULL);
    QUEUE_BECOMES(1, "cancelled");
    struct check_watch watch;
    check_watch_start(&watch);
    ANSWERS(MEMLOCK_OK, memlock_pending_cancel(pending));
    CHECK(next_of(client) == pending);
    CHECK(check_watch_end_ms(&watch) < TOLD_MS);
    ANSWERS(MEMLOCK_INTERRUPTED, memlock_pending_poll(pending));
    SAYS("\"cancelled\"");
    memlock_pending_close(pending);
    QUEUE_BECOMES(0, "cancelled");
    pending = acquire("cancelled", -1, NULL);
    QUEUE_BECOMES(1, "cancelled");
    ANSWERS(MEMLOCK_OK, memlock_client_cancel_waits(client));
    ends_with(MEMLOCK_INTERRUPTED, pending);
    pending = acquire("cancelled", -1, NULL);
    QUEUE_BECOMES(1, "cancelled");
    memlock_pending_close(pending);
    QUEUE_BECOMES(0, "cancelled");
    CHECK(!readable(client) && memlock_client_next_ended(client) == NULL);
    ANSWERS(MEMLOCK_OK, memlock_unlock(held));
    becomes_free("cancelled");
}

/* It was polled or not; the next one is woken by the client that did not want the lock. */
static void a_lock_that_was_granted_and_not_taken_goes_to_the_next_waiter(void) {
    for (int polled = 0; polled < 2; polled++) {
        const char *name = polled ? "polled" : "not-polled";
        memlock_pending *first = acquire(name, -1, NULL), *second;
        memlock_lock *lock;
        CHECK(next_of(client) == first);
        if (polled) ANSWERS(MEMLOCK_OK, memlock_pending_poll(first));
        ANSWERS(MEMLOCK_OK, memlock_acquire_start(other, name, 30000, -1, NULL, &second));
        QUEUE_BECOMES(1, name);
        struct check_watch watch;
        check_watch_start(&watch);
        memlock_pending_close(first);
        CHECK(next_of(other) == second);
        CHECK(check_watch_end_ms(&watch) < TOLD_MS);
        ANSWERS(MEMLOCK_OK, memlock_pending_take_lock(second, &lock));
        memlock_pending_close(second);
        ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
        becomes_free(name);
    }
}

static _Atomic bool stop;

static void *compete(void *unused) {
    (void)unused;
    while (!stop) ANSWERS(MEMLOCK_OK, memlock_unlock(lock_of(other, "random")));
    return NULL;
}

static void nothing_is_left_whenever_a_call_is_cancelled_or_closed(void) {
    enum { ROUNDS = 150, AT_ONCE = 3 };
    unsigned random = 7;
    const pthread_t competitor = check_start(compete, NULL);
    int granted_to_us = 0;
    for (int round = 0; round < ROUNDS; round++) {
        memlock_pending *calls[AT_ONCE];
        for (int i = 0; i < AT_ONCE; i++) calls[i] = acquire("random", -1, NULL);
        struct timespec moment = {0, (long)(rand_r(&random) % 2000) * 1000};
        nanosleep(&moment, NULL);
        /* Now and then one of them is granted for certain. */
        const bool waits = round % 15 == 0;
        if (waits) EVENTUALLY(memlock_pending_poll(calls[0]) == MEMLOCK_OK);
        for (int i = 0; i < AT_ONCE; i++) {
            memlock_lock *lock = NULL;
            if (rand_r(&random) % 2) ANSWERS(MEMLOCK_OK, memlock_pending_cancel(calls[i]));
            if ((waits || rand_r(&random) % 2) && memlock_pending_take_lock(calls[i], &lock) == MEMLOCK_OK) {
                granted_to_us++;
                ANSWERS(MEMLOCK_OK, memlock_release_start(lock, NULL, NULL));
            }
            memlock_pending_close(calls[i]);
        }
    }
    stop = true;
    check_join(competitor);
    CHECK(granted_to_us >= ROUNDS / 15);
    becomes_free("random");
    CHECK(memlock_client_next_ended(client) == NULL);
}

static void a_closed_client_cancels_its_calls_and_their_handles_stay_valid(void) {
    memlock_client *closed;
    memlock_semaphore *semaphore;
    memlock_pending *waits, *ended, *releases, *later;
    memlock_lock *held = lock_of(other, "closed"), *lock, *own;
    memlock_permit *permit;
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &closed));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(closed, "closed", 1, 30000, &semaphore));
    own = lock_of(closed, "closed-own");
    ANSWERS(MEMLOCK_OK, memlock_acquire_start(closed, "closed", 30000, -1, NULL, &waits));
    ANSWERS(MEMLOCK_OK, memlock_acquire_start(closed, "closed-free", 30000, -1, NULL, &ended));
    QUEUE_BECOMES(1, "closed");
    EVENTUALLY(memlock_pending_poll(ended) == MEMLOCK_OK);
    memlock_client_close(closed);
    EVENTUALLY(memlock_pending_poll(waits) != MEMLOCK_PENDING);
    ANSWERS(MEMLOCK_INTERRUPTED, memlock_pending_take_lock(waits, &lock));
    memlock_pending_close(waits);
    QUEUE_BECOMES(0, "closed");
    ANSWERS(MEMLOCK_OK, memlock_pending_take_lock(ended, &lock));
    memlock_pending_close(ended);
    /* What was made from the client stays usable. */
    ANSWERS(MEMLOCK_OK, memlock_release_start(own, NULL, &releases));
    EVENTUALLY(memlock_pending_poll(releases) == MEMLOCK_OK);
    memlock_pending_close(releases);
    ANSWERS(MEMLOCK_OK, memlock_release_start(lock, NULL, NULL));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire_start(semaphore, NULL, 0, NULL, &later));
    EVENTUALLY(memlock_pending_poll(later) != MEMLOCK_PENDING);
    ANSWERS(MEMLOCK_OK, memlock_pending_take_permit(later, &permit));
    memlock_pending_close(later);
    ANSWERS(MEMLOCK_OK, memlock_permit_release_start(permit, NULL, NULL));
    memlock_semaphore_close(semaphore);
    ANSWERS(MEMLOCK_OK, memlock_unlock(held));
    becomes_free("closed");
    becomes_free("closed-free");
    becomes_free("closed-own");
}

static bool contact(memlock_client *of) {
    memlock_lock *lock;
    return memlock_mutex_lock(of, "contact", 30000, 0, &lock) == MEMLOCK_OK && memlock_unlock(lock) == MEMLOCK_OK;
}

/* No function blocks, all calls end, and when the server is back nothing is held. */
static void a_server_that_hangs_blocks_nobody(void) {
    enum { CALLS = 50, AT_ONCE_MS = 1000 };
    memlock_client *short_timeouts;
    memlock_pending *calls[CALLS], *releases, *dropped;
    memlock_lock *lock;
    char url[256];
    snprintf(url, sizeof url, "%s?io_timeout=1s&connect_timeout=1s", check_url());
    ANSWERS(MEMLOCK_OK, memlock_client_open(url, &short_timeouts));
    memlock_lock *held = lock_of(short_timeouts, "hangs");
    memlock_lock *let_go = lock_of(short_timeouts, "hangs-too");
    freeze();
    struct check_watch watch;
    check_watch_start(&watch);
    for (int i = 0; i < CALLS; i++) {
        ANSWERS(MEMLOCK_OK, memlock_acquire_start(short_timeouts, "hangs", 30000, i % 2 ? 1000 : 0, NULL, &calls[i]));
        const int answer = memlock_pending_poll(calls[i]);
        CHECK(answer == MEMLOCK_PENDING || answer == MEMLOCK_UNREACHABLE || answer == MEMLOCK_UNKNOWN);
    }
    ANSWERS(MEMLOCK_OK, memlock_acquire_start(short_timeouts, "hangs-three", 30000, -1, NULL, &dropped));
    memlock_pending_close(dropped);
    ANSWERS(MEMLOCK_OK, memlock_release_start(held, NULL, &releases));
    ANSWERS(MEMLOCK_OK, memlock_release_start(let_go, NULL, NULL));
    (void)memlock_client_next_ended(other);
    CHECK(check_watch_end_ms(&watch) < AT_ONCE_MS);
    for (int i = 0; i < CALLS; i++) {
        EVENTUALLY(memlock_pending_poll(calls[i]) != MEMLOCK_PENDING);
        const int answer = memlock_pending_take_lock(calls[i], &lock);
        CHECK(answer == MEMLOCK_UNREACHABLE || answer == MEMLOCK_UNKNOWN || answer == MEMLOCK_TIMED_OUT);
        SAYS("hangs");
        memlock_pending_close(calls[i]);
    }
    EVENTUALLY(memlock_pending_poll(releases) != MEMLOCK_PENDING);
    const int answer = memlock_pending_poll(releases);
    if (answer != MEMLOCK_UNREACHABLE) ANSWERS(MEMLOCK_UNKNOWN, answer);
    memlock_pending_close(releases);
    thaw();
    /* Contacts remove what is left: also what arrived only after the first one. */
    EVENTUALLY(contact(short_timeouts) && !plain_has("lock:hangs") && !plain_has("lock:hangs-too") &&
               !plain_has("lock:hangs-three"));
    becomes_free("hangs");
    becomes_free("hangs-too");
    becomes_free("hangs-three");
    memlock_client_close(short_timeouts);
}

/* It is released all the same, and nothing else is started. */
static void a_lock_is_released_also_where_no_descriptor_can_be_opened(void) {
    memlock_client *poor;
    memlock_pending *pending, *none;
    struct rlimit limit, fewest;
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &poor));
    memlock_lock *lock = lock_of(poor, "poor");
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) FAIL("no limit");
    fewest = limit;
    fewest.rlim_cur = 3;
    if (setrlimit(RLIMIT_NOFILE, &fewest) != 0) FAIL("no limit is set");
    const int answers[2] = {memlock_acquire_start(poor, "rich", 30000, 0, NULL, &none),
                            memlock_release_start(lock, NULL, &pending)};
    const int fd = memlock_client_event_fd(poor);
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) FAIL("no limit is lifted");
    ANSWERS(MEMLOCK_INTERNAL, answers[0]);
    ANSWERS(MEMLOCK_INTERNAL, answers[1]);
    CHECK(none == NULL && pending == NULL && fd == -1);
    CHECK(memlock_client_event_fd(poor) >= 0);
    becomes_free("poor");
    CHECK(!plain_has("lock:rich"));
    memlock_client_close(poor);
}

static int threads(void) {
    int found = 0;
    DIR *all = opendir("/proc/self/task");
    if (all == NULL) FAIL("no threads");
    for (struct dirent *thread = readdir(all); thread != NULL; thread = readdir(all)) found += thread->d_name[0] != '.';
    closedir(all);
    return found;
}

/* Half of them want one lock, which is handed on from one to the next; the others one each. */
static void a_thousand_calls_are_in_progress_at_once(void) {
    enum { CALLS = 1000 };
    memlock_pending *pending;
    memlock_lock *held = lock_of(other, "thousand");
    const int before = threads();
    int acquired = 0, released = 0, arg;
    for (int i = 0; i < CALLS; i++) {
        char name[32] = "thousand";
        if (i % 2) snprintf(name, sizeof name, "one of a thousand %d", i);
        acquire(name, -1, &arg);
    }
    ANSWERS(MEMLOCK_OK, memlock_unlock(held));
    while (released < CALLS) {
        CHECK(threads() <= before + 6);
        pending = next_of(client);
        if (memlock_pending_arg(pending) == &arg) {
            memlock_pending *releases;
            memlock_lock *lock;
            ANSWERS(MEMLOCK_OK, memlock_pending_take_lock(pending, &lock));
            ANSWERS(MEMLOCK_OK, memlock_release_start(lock, NULL, &releases));
            acquired++;
        } else {
            ANSWERS(MEMLOCK_OK, memlock_pending_poll(pending));
            released++;
        }
        memlock_pending_close(pending);
    }
    CHECK(acquired == CALLS && !readable(client));
    becomes_free("thousand");
}

enum { STARTERS = 4, EACH = 50 };
static memlock_pending *_Atomic shared[STARTERS][EACH];

static void *start_many(void *argument) {
    const int starter = *(int *)argument;
    for (int i = 0; i < EACH; i++) {
        memlock_pending *pending = NULL;
        ANSWERS(MEMLOCK_OK, memlock_acquire_start(client, "shared", 30000, -1, &shared[starter][i], &pending));
    }
    return NULL;
}

/* Calls are started by some threads, and collected and closed by one. */
static void one_thread_collects_what_others_start(void) {
    pthread_t starters[STARTERS];
    int numbers[STARTERS], ended = 0;
    for (int i = 0; i < STARTERS; i++) {
        numbers[i] = i;
        starters[i] = check_start(start_many, &numbers[i]);
    }
    while (ended < STARTERS * EACH) {
        memlock_lock *lock;
        memlock_pending *pending = next_of(client), *_Atomic *place = memlock_pending_arg(pending);
        CHECK(*place == NULL);
        *place = pending;
        ANSWERS(MEMLOCK_OK, memlock_pending_take_lock(pending, &lock));
        memlock_pending_close(pending);
        ANSWERS(MEMLOCK_OK, memlock_release_start(lock, NULL, NULL));
        ended++;
    }
    for (int i = 0; i < STARTERS; i++) check_join(starters[i]);
    CHECK(!readable(client));
    becomes_free("shared");
}

static void *cancel_it(void *pending) {
    ANSWERS(MEMLOCK_OK, memlock_pending_cancel(pending));
    return NULL;
}

static void another_thread_cancels(void) {
    memlock_lock *held = lock_of(other, "another"), *lock;
    for (int round = 0; round < 20; round++) {
        memlock_pending *pending = acquire("another", -1, NULL);
        const pthread_t thread = check_start(cancel_it, pending);
        while (memlock_pending_take_lock(pending, &lock) == MEMLOCK_PENDING) continue;
        CHECK(lock == NULL);
        check_join(thread);
        ends_with(MEMLOCK_INTERRUPTED, pending);
    }
    ANSWERS(MEMLOCK_OK, memlock_unlock(held));
    becomes_free("another");
}

int main(void) {
    open_both();
    RUN(a_cancelled_wait_ends_interrupted);
    RUN(a_lock_that_was_granted_and_not_taken_goes_to_the_next_waiter);
    RUN(nothing_is_left_whenever_a_call_is_cancelled_or_closed);
    RUN(a_closed_client_cancels_its_calls_and_their_handles_stay_valid);
    RUN(a_server_that_hangs_blocks_nobody);
    RUN(a_lock_is_released_also_where_no_descriptor_can_be_opened);
    RUN(a_thousand_calls_are_in_progress_at_once);
    RUN(one_thread_collects_what_others_start);
    RUN(another_thread_cancels);
    memlock_client_close(client);
    memlock_client_close(other);
    return 0;
}
