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

void mutex_lock(void) { calls++; }
char *mutex_lock_nonblock(int a, int b) { return calls++, (char *)NULL + a - b; }
double mutex_unlock(double x) { return calls++, x; }
void distinct_list_set_up(void) { calls++; }
void distinct_list_insert(void) { calls++; }
void distinct_list_tear_down(void) { calls++; }

static void the_programs_own_functions_stay_its_own(void) {
    mutex_lock();
    CHECK(mutex_lock_nonblock(1, 1) == NULL);
    CHECK(mutex_unlock(0.5) > 0.4);
    distinct_list_set_up();
    distinct_list_insert();
    distinct_list_tear_down();
    CHECK(calls == 6);
}

static void the_handles_work_beside_them(void) {
    memlock_client *client;
    memlock_lock *lock;
    memlock_list *list;
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &client));
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, "hidden", 30000, -1, &lock));
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    ANSWERS(MEMLOCK_OK, memlock_list_set_up(client, "hidden", 60000, &list));
    ANSWERS(MEMLOCK_OK, memlock_list_insert(list, "key", 3, NULL));
    ANSWERS(MEMLOCK_OK, memlock_list_tear_down(list));
    memlock_list_close(list);
    memlock_client_close(client);
    CHECK(calls == 6);
}

int main(void) {
    RUN(the_programs_own_functions_stay_its_own);
    RUN(the_handles_work_beside_them);
    return 0;
}
