/* One of the processes of `make faults`, in C: client URL HISTORY SEED. It does what client.rs does, and writes a
 * history of the same format (tests/support/history.rs), until its standard input ends. */

#include "history_client.h"

enum { NAMES = 3, SESSION_MS = 2000, KEY_MS = 4, SESSION_LIFE_MS = 60000, IDLE_MS = 3 };

/* As in client.rs. */
static const struct {
    const char *name;
    uint32_t permits, most;
} semaphores[] = {{"p0", 2, 1}, {"p1", 4, 3}};

static uint64_t permit_deadline(const memlock_permit *permit) {
    const int64_t before = now();
    int64_t left = 0;
    memlock_permit_remaining_ms(permit, &left);
    return deadline_of(before, left);
}

static void hold(const char *name, memlock_lock *lock, int64_t lease_ms) {
    int64_t left = 0;
    memlock_lock_remaining_ms(lock, &left);
    if (left == 0) return;
    say("enter");
    const uint64_t what = below(1000);
    if (what == 0) {
        pause_ms(lease_ms + (int64_t)below(2500));
    } else if (what < 5) {
        if (left > SHORTLY_MS) pause_ms(left - SHORTLY_MS);
    } else if (what < 12) {
        if (extend(name, lock, lease_ms) == MEMLOCK_OK) pause_ms((int64_t)below(200));
    } else {
        pause_ms((int64_t)(what < 28 ? 20 + below(100) : below(3)));
    }
    say("leave");
}

static int64_t some_lease_ms(void) { return 1000 + (int64_t)below(1000); }

static int64_t some_wait_ms(void) { return below(10) < 4 ? 0 : 50 + (int64_t)below(1450); }

static void contend(const memlock_client *client) {
    char name[16];
    snprintf(name, sizeof name, "m%d", (int)below(NAMES));
    const int64_t lease_ms = some_lease_ms(), wait_ms = some_wait_ms();
    memlock_lock *got = lock(client, name, lease_ms, wait_ms);
    if (got == NULL) return;
    hold(name, got, lease_ms);
    unlock(name, got);
}

static void use_permits(const char *name, memlock_permit *permit, int64_t lease_ms) {
    int64_t left = 0;
    memlock_permit_remaining_ms(permit, &left);
    const uint64_t what = below(1000);
    if (left == 0) {
        /* It was granted too late to be used. */
    } else if (what == 0) {
        pause_ms(lease_ms + (int64_t)below(2500));
    } else if (what < 5) {
        if (left > SHORTLY_MS) pause_ms(left - SHORTLY_MS);
    } else if (what < 15) {
        call("prolong", name, lease_ms, 0);
        const int answer = memlock_permit_extend(permit, lease_ms);
        done(answer, 0, permit_deadline(permit));
        if (answer == MEMLOCK_OK) pause_ms((int64_t)below(200));
    } else if (what < 300) {
        pause_ms(5 + (int64_t)below(35));
    } else if (what < 600 && name == semaphores[0].name) {
        /* So that some stand in its queue. */
        pause_ms(40 + (int64_t)below(80));
    } else {
        pause_ms((int64_t)below(3));
    }
    call("release", name, 0, 0);
    done(memlock_permit_release(permit), 0, 0);
}

static void contend_for_permits(const memlock_client *client) {
    const uint64_t place = below(sizeof semaphores / sizeof *semaphores);
    const char *name = semaphores[place].name;
    const int64_t lease_ms = some_lease_ms(), wait_ms = some_wait_ms();
    const memlock_request request = {
        .permits = (uint32_t)(1 + below(semaphores[place].most)),
        .priority = (int64_t)below(3) - 1,
    };
    memlock_semaphore *semaphore;
    /* A handle for each, since the lease is the handle's. */
    if (memlock_semaphore_open(client, name, semaphores[place].permits, lease_ms, &semaphore) != MEMLOCK_OK) {
        _exit(4);
    }
    char text[128];
    snprintf(text, sizeof text, "call acquire %s %" PRId64 " %" PRId64 " %" PRIu32 " %" PRId64, name, lease_ms,
             wait_ms, request.permits, request.priority);
    say(text);
    memlock_permit *permit;
    const int answer = memlock_semaphore_acquire_wait(semaphore, &request, wait_ms, NULL, &permit);
    if (answer == MEMLOCK_OK) {
        uint32_t permits = 0;
        memlock_permit_count(permit, &permits);
        done(answer, permits, permit_deadline(permit));
        use_permits(name, permit, lease_ms);
    } else {
        done(answer, 0, 0);
    }
    memlock_semaphore_close(semaphore);
}

static void insert(const memlock_client *client) {
    static memlock_list *list;
    static int64_t session;
    char name[32], key[32];
    const int64_t ms = now() / 1000000;
    snprintf(name, sizeof name, "s%" PRId64, ms / SESSION_MS);
    snprintf(key, sizeof key, "%" PRId64, ms / KEY_MS);
    if (list == NULL || session != ms / SESSION_MS) {
        memlock_list_close(list);
        session = ms / SESSION_MS;
        call("setup", name, 0, 0);
        done(memlock_list_set_up(client, name, SESSION_LIFE_MS, &list), 0, 0);
        if (list == NULL) return;
    }
    call("insert", name, ms / KEY_MS, 0);
    uint64_t id = 0;
    const int answer = memlock_list_insert(list, key, strlen(key), &id);
    done(answer, id, 0);
    if (answer == MEMLOCK_NOT_FOUND) {
        memlock_list_close(list);
        list = NULL;
    }
}

static void live(const memlock_client *client) {
    const uint64_t what = below(6);
    if (what == 0) {
        insert(client);
    } else if (what < 3) {
        contend_for_permits(client);
    } else {
        contend(client);
    }
}

int main(int count, char **words) { return run(count, words, IDLE_MS, live); }
