/* One of the processes of `make chaos`, in C: client URL HISTORY SEED. It does what client.rs does, and writes a
 * history of the same format (tests/support/history.rs), until its standard input ends. */

#include "history_client.h"

enum { NAMES = 2, IDLE_MS = 20 };

/* Holds on for up to 8 s. */
static void hold_on(const char *name, memlock_lock *lock, int64_t lease_ms) {
    for (uint64_t times = 1 + below(16); times > 0; times--) {
        int64_t left = 0;
        pause_ms((int64_t)below((uint64_t)lease_ms / 6));
        memlock_lock_remaining_ms(lock, &left);
        if (left == 0 || extend(name, lock, lease_ms) > 0) return;
    }
}

static void hold(const char *name, memlock_lock *lock, int64_t lease_ms) {
    int64_t left = 0;
    memlock_lock_remaining_ms(lock, &left);
    if (left == 0) return;
    say("enter");
    const uint64_t what = below(1000);
    if (what < 4) {
        pause_ms(lease_ms + (int64_t)below(2500));
    } else if (what < 14) {
        if (left > SHORTLY_MS) pause_ms(left - SHORTLY_MS);
    } else if (what < 54) {
        hold_on(name, lock, lease_ms);
    } else {
        pause_ms((int64_t)below(20));
    }
    say("leave");
}

static void contend(const memlock_client *client) {
    char name[16];
    snprintf(name, sizeof name, "m%d", (int)below(NAMES));
    const int64_t lease_ms = 1000 + (int64_t)below(3000);
    const int64_t wait_ms = below(10) < 3 ? 0 : 50 + (int64_t)below(3000);
    memlock_lock *got = lock(client, name, lease_ms, wait_ms);
    if (got == NULL) return;
    hold(name, got, lease_ms);
    unlock(name, got);
}

int main(int count, char **words) { return run(count, words, IDLE_MS, contend); }
