/* A program that has functions by Burton's names already: MEMLOCK_NO_BARE_NAMES hides memlock's, and
 * memlock's handles neither call the program's functions nor are called by them. */

#define MEMLOCK_NO_BARE_NAMES
#include "check.h"

static int calls;

/* Other arguments, other results: a second declaration would not compile. They are not static, so that the
 * dynamic linker prefers them to the library's, as it does in a program of that kind. */
void mutex_lock(void);
char *mutex_lock_nonblock(int a, int b);
double mutex_unlock(double x);
void distinct_list_set_up(void);
void distinct_list_insert(void);
void distinct_list_tear_down(void);
void semaphore_set_up(void);
void semaphore_acquire(void);
char *semaphore_acquire_nonblock(int a, int b);
double semaphore_release(double x);
void semaphore_tear_down(void);

void mutex_lock(void) { calls++; }
char *mutex_lock_nonblock(int a, int b) { return calls++, (char *)NULL + a - b; }
double mutex_unlock(double x) { return calls++, x; }
void distinct_list_set_up(void) { calls++; }
void distinct_list_insert(void) { calls++; }
void distinct_list_tear_down(void) { calls++; }
void semaphore_set_up(void) { calls++; }
void semaphore_acquire(void) { calls++; }
char *semaphore_acquire_nonblock(int a, int b) { return calls++, (char *)NULL + a - b; }
double semaphore_release(double x) { return calls++, x; }
void semaphore_tear_down(void) { calls++; }

static void the_programs_own_functions_stay_its_own(void) {
    mutex_lock();
    CHECK(mutex_lock_nonblock(1, 1) == NULL);
    CHECK(mutex_unlock(0.5) > 0.4);
    distinct_list_set_up();
    distinct_list_insert();
    distinct_list_tear_down();
    semaphore_set_up();
    semaphore_acquire();
    CHECK(semaphore_acquire_nonblock(1, 1) == NULL);
    CHECK(semaphore_release(0.5) > 0.4);
    semaphore_tear_down();
    CHECK(calls == 11);
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
