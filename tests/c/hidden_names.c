/* A program that has functions by Burton's names already: MEMLOCK_NO_BARE_NAMES hides memlock's, and
 * memlock's handles neither call the program's functions nor are called by them. */

#define MEMLOCK_NO_BARE_NAMES
#include "check.h"

static int calls;

/* Other arguments, other results: a second declaration would not compile. They are not static, so that the
 * dynamic linker prefers them to the library's, as it does in a program of that kind. */
#define OWN(name)              \
    double name(double x);     \
    double name(double x) { return calls++, x; }

OWN(mutex_lock)
OWN(mutex_lock_nonblock)
OWN(mutex_unlock)
OWN(distinct_list_set_up)
OWN(distinct_list_insert)
OWN(distinct_list_tear_down)
OWN(semaphore_set_up)
OWN(semaphore_acquire)
OWN(semaphore_acquire_nonblock)
OWN(semaphore_release)
OWN(semaphore_tear_down)

static double (*const own[])(double) = {
    mutex_lock,           mutex_lock_nonblock,     mutex_unlock,      distinct_list_set_up,
    distinct_list_insert, distinct_list_tear_down, semaphore_set_up,  semaphore_acquire,
    semaphore_acquire_nonblock, semaphore_release, semaphore_tear_down,
};

static void the_programs_own_functions_stay_its_own(void) {
    for (int i = 0; i < 11; i++) CHECK(own[i](i) >= i && calls == i + 1);
}

static void the_handles_work_beside_them(void) {
    memlock_client *client;
    memlock_lock *lock;
    memlock_list *list;
    memlock_semaphore *semaphore;
    memlock_permit *permit;
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &client));
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, "hidden", 30000, -1, &lock));
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    ANSWERS(MEMLOCK_OK, memlock_list_set_up(client, "hidden", 60000, &list));
    ANSWERS(MEMLOCK_OK, memlock_list_insert(list, "key", 3, NULL));
    ANSWERS(MEMLOCK_OK, memlock_list_tear_down(list));
    memlock_list_close(list);
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(client, "hidden", 1, 30000, &semaphore));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire(semaphore, 1, -1, &permit));
    ANSWERS(MEMLOCK_OK, memlock_permit_release(permit));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_tear_down(semaphore));
    memlock_semaphore_close(semaphore);
    memlock_client_close(client);
    CHECK(calls == 11);
}

int main(void) {
    RUN(the_programs_own_functions_stay_its_own);
    RUN(the_handles_work_beside_them);
    return 0;
}
