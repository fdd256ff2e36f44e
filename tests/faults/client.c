/* One of the processes of `make faults`, in C: client URL HISTORY SEED. It does what client.rs does, and writes a
 * history of the same format (tests/support/history.rs), until its standard input ends. */

#include <fcntl.h>
#include <inttypes.h>
#include <memlock.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { NAMES = 3, SESSION_MS = 2000, KEY_MS = 4, SESSION_LIFE_MS = 60000, AFTER_FAILURE_MS = 10, SHORTLY_MS = 30 };

/* As in client.rs. */
static const struct {
    const char *name;
    uint32_t permits, most;
} semaphores[] = {{"p0", 2, 1}, {"p1", 4, 3}};

static int history;
static uint64_t seed;

static uint64_t below(uint64_t end) {
    seed += 0x9e3779b97f4a7c15;
    uint64_t mixed = seed;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    return (mixed ^ (mixed >> 31)) % end;
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_BOOTTIME, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void pause_ms(int64_t ms) {
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0) continue;
}

/* One write, so that a kill costs no more than the end of a line. */
static void say(const char *text) {
    char line[1024];
    const int length = snprintf(line, sizeof line, "%" PRId64 " 0 %s\n", now(), text);
    if (write(history, line, (size_t)length) != length) _exit(3);
}

static void call(const char *op, const char *name, int64_t first, int64_t second) {
    char text[256];
    snprintf(text, sizeof text, "call %s %s %" PRId64 " %" PRId64, op, name, first, second);
    say(text);
}

static void done(int answer, uint64_t first, uint64_t second) {
    char text[768];
    char said[512] = "";
    if (answer < 0) snprintf(said, sizeof said, "%s", memlock_last_error());
    for (char *at = said; *at != '\0'; at++) {
        if (*at == '\n') *at = ' ';
    }
    snprintf(text, sizeof text, "done %d %" PRIu64 " %" PRIu64 " %s", answer, first, second, said);
    say(text);
    if (answer < 0) pause_ms(AFTER_FAILURE_MS);
}

/* Until when it is certainly ours if so much was left after this moment: rather too early than too late. */
static uint64_t deadline_of(int64_t before, int64_t left_ms) {
    return left_ms > 0 ? (uint64_t)(before + left_ms * 1000000) : 0;
}

static uint64_t deadline(const memlock_lock *lock) {
    const int64_t before = now();
    int64_t left = 0;
    memlock_lock_remaining_ms(lock, &left);
    return deadline_of(before, left);
}

static uint64_t permit_deadline(const memlock_permit *permit) {
    const int64_t before = now();
    int64_t left = 0;
    memlock_permit_remaining_ms(permit, &left);
    return deadline_of(before, left);
}

static void hold(const char *name, memlock_lock *lock, int64_t lease_ms) {
    int64_t left = 0;
    memlock_lock_remaining_ms(lock, &left);
    if (left > 0) {
        say("enter");
        const uint64_t what = below(1000);
        if (what == 0) {
            pause_ms(lease_ms + (int64_t)below(2500));
        } else if (what < 5) {
            if (left > SHORTLY_MS) pause_ms(left - SHORTLY_MS);
        } else if (what < 12) {
            call("extend", name, lease_ms, 0);
            const int answer = memlock_lock_extend(lock, lease_ms);
            done(answer, 0, deadline(lock));
            if (answer == MEMLOCK_OK) pause_ms((int64_t)below(200));
        } else {
            pause_ms((int64_t)(what < 28 ? 20 + below(100) : below(3)));
        }
        say("leave");
    }
    call("unlock", name, 0, 0);
    done(memlock_unlock(lock), 0, 0);
}

static int64_t some_lease_ms(void) { return 1000 + (int64_t)below(1000); }

static int64_t some_wait_ms(void) { return below(10) < 4 ? 0 : 50 + (int64_t)below(1450); }

static void contend(const memlock_client *client) {
    char name[16];
    snprintf(name, sizeof name, "m%d", (int)below(NAMES));
    const int64_t lease_ms = some_lease_ms(), wait_ms = some_wait_ms();
    memlock_lock *lock;
    call("lock", name, lease_ms, wait_ms);
    const int answer = memlock_mutex_lock(client, name, lease_ms, wait_ms, &lock);
    if (answer != MEMLOCK_OK) {
        done(answer, 0, 0);
        return;
    }
    uint64_t fence = 0;
    memlock_lock_fence(lock, &fence);
    done(answer, fence, deadline(lock));
    hold(name, lock, lease_ms);
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

int main(int count, char **words) {
    if (count != 4) return 2;
    history = open(words[2], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    seed = strtoull(words[3], NULL, 10);
    memlock_client *client;
    if (history < 0 || memlock_client_open(words[1], &client) != MEMLOCK_OK) return 2;
    struct pollfd end = {STDIN_FILENO, POLLIN, 0};
    while (poll(&end, 1, (int)below(3)) == 0) {
        const uint64_t what = below(6);
        if (what == 0) {
            insert(client);
        } else if (what < 3) {
            contend_for_permits(client);
        } else {
            contend(client);
        }
    }
    memlock_client_close(client);
    return 0;
}
