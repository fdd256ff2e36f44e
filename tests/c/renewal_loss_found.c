/* The end of a lease may be found by a call that only looks at the handle, while the renewer is busy. The renewer then
 * calls the callback, which may give the handle back before that call returns. */

#define _GNU_SOURCE /* RTLD_NEXT */

#include "renewal.h"

#include <dlfcn.h>
#include <linux/futex.h>
#include <stdarg.h>

/* One client, whose renewer is busy with `busy` while the lease of the handle under test ends. */
struct scene {
    memlock_client *client;
    memlock_lock *busy, *lock;
    memlock_semaphore *semaphore;
    memlock_permit *permit;
    bool drops;
    /* The call under test has noted the loss and waits until the handle is given back. */
    _Atomic bool is_found, is_kept_busy, is_given_back;
    int what, answer;
};

static _Thread_local struct scene *calling;

/* The library wakes sleepers by this call, among others the renewer once a loss is noted. Here the thread that has found
 * the loss stops until the callback has given the handle back. */
long syscall(long number, ...) {
    static long (*original)(long, ...);
    long args[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++) args[i] = va_arg(list, long);
    va_end(list);
    if (original == NULL) *(void **)&original = dlsym(RTLD_NEXT, "syscall");
    const long result = original(number, args[0], args[1], args[2], args[3], args[4], args[5]);
    const bool wakes = number == SYS_futex && (args[1] & FUTEX_CMD_MASK) == FUTEX_WAKE;
    struct scene *scene = calling;
    if (wakes && scene != NULL) {
        calling = NULL;
        scene->is_found = true;
        EVENTUALLY(scene->is_given_back);
    }
    return result;
}

/* Keeps the renewer busy until the call under test has found the loss. */
static void stay(int what, int64_t left_ms, void *arg) {
    struct scene *scene = arg;
    (void)left_ms;
    if (what != MEMLOCK_LEASE_AT_RISK) return;
    scene->is_kept_busy = true;
    EVENTUALLY(scene->is_found);
}

static void give_back(int what, int64_t left_ms, void *arg) {
    struct scene *scene = arg;
    CHECK(left_ms == 0 && scene->is_found && !scene->is_given_back);
    scene->what = what;
    if (scene->lock != NULL) {
        scene->answer = scene->drops ? memlock_lock_drop(scene->lock) : memlock_unlock(scene->lock);
    } else {
        scene->answer = scene->drops ? memlock_permit_drop(scene->permit) : memlock_permit_release(scene->permit);
    }
    scene->is_given_back = true;
}

/* The calls that look at a handle, of either kind. */
#define LOOKS(kind)                                                                          \
    static void kind##_is_held(struct scene *scene) {                                        \
        CHECK(memlock_##kind##_is_held(scene->kind) == 0);                                   \
    }                                                                                        \
    static void kind##_remaining(struct scene *scene) {                                      \
        int64_t left = -1;                                                                   \
        ANSWERS(MEMLOCK_OK, memlock_##kind##_remaining_ms(scene->kind, &left));              \
        CHECK(left == 0);                                                                    \
    }                                                                                        \
    static void kind##_lost(struct scene *scene) {                                           \
        int why = 0;                                                                         \
        ANSWERS(MEMLOCK_LOST, memlock_##kind##_lost(scene->kind, &why));                     \
        CHECK(why == MEMLOCK_LOST_EXPIRED);                                                  \
    }                                                                                        \
    static void kind##_wait_lost(struct scene *scene) {                                      \
        int why = 0;                                                                         \
        ANSWERS(MEMLOCK_LOST, memlock_##kind##_wait_lost(scene->kind, -1, &why));            \
        CHECK(why == MEMLOCK_LOST_EXPIRED);                                                  \
    }                                                                                        \
    static void kind##_check(struct scene *scene) {                                          \
        ANSWERS(MEMLOCK_LOST, memlock_##kind##_check(scene->kind));                          \
    }

LOOKS(lock)
LOOKS(permit)

static const struct {
    void (*call)(struct scene *);
    bool is_lock;
} calls[] = {
    {lock_is_held, true},       {lock_remaining, true},    {lock_lost, true},
    {lock_wait_lost, true},     {lock_check, true},        {permit_is_held, false},
    {permit_remaining, false},  {permit_lost, false},      {permit_wait_lost, false},
    {permit_check, false},
};

enum { CALLS = sizeof calls / sizeof *calls, SCENES = 2 * CALLS };

static void begin(struct scene *scene, int number) {
    char name[32];
    scene->drops = number >= CALLS;
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &scene->client));
    /* From here on nothing is renewed, and no renewer finds that a lease is over. */
    snprintf(name, sizeof name, "busy %d", number);
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(scene->client, name, 600000, 0, &scene->busy));
    ANSWERS(MEMLOCK_OK, memlock_lock_renew(scene->busy, 1, stay, scene));
    EVENTUALLY(scene->is_kept_busy);
    snprintf(name, sizeof name, "found %d", number);
    if (calls[number % CALLS].is_lock) {
        ANSWERS(MEMLOCK_OK, memlock_mutex_lock(scene->client, name, LEASE_MS, 0, &scene->lock));
        ANSWERS(MEMLOCK_OK, memlock_lock_renew(scene->lock, -1, give_back, scene));
    } else {
        ANSWERS(MEMLOCK_OK, memlock_semaphore_open(scene->client, name, 1, LEASE_MS, &scene->semaphore));
        ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire(scene->semaphore, 1, 0, &scene->permit));
        ANSWERS(MEMLOCK_OK, memlock_permit_renew(scene->permit, -1, give_back, scene));
    }
}

static void end(struct scene *scene) {
    ANSWERS(MEMLOCK_OK, memlock_unlock(scene->busy));
    if (scene->semaphore != NULL) memlock_semaphore_close(scene->semaphore);
    memlock_client_close(scene->client);
}

static void the_callback_may_give_back_a_handle_while_a_call_finds_its_lease_over(void) {
    static struct scene scenes[SCENES];
    for (int i = 0; i < SCENES; i++) begin(&scenes[i], i);
    check_pause_ms(LEASE_MS + 100);
    for (int i = 0; i < SCENES; i++) {
        calling = &scenes[i];
        calls[i % CALLS].call(&scenes[i]);
        calling = NULL;
        /* Otherwise the call has woken no renewer, and what this test is about has not happened. */
        CHECK(scenes[i].is_found && scenes[i].is_given_back);
        CHECK(scenes[i].what == MEMLOCK_LOST_EXPIRED);
        ANSWERS(MEMLOCK_LOST, scenes[i].answer);
    }
    for (int i = 0; i < SCENES; i++) end(&scenes[i]);
}

int main(void) {
    RUN(the_callback_may_give_back_a_handle_while_a_call_finds_its_lease_over);
    return 0;
}
