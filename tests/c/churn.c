/* Thousands of clients opened and closed, locks and lists with them, leave no memory and no descriptor. */

#include "check.h"

#include <dirent.h>
#include <malloc.h>

enum { WARM_UP = 300, CYCLES = 3000, ROUNDS = 5, EVERY = 20 };

static int descriptors(void) {
    int count = 0;
    DIR *all = opendir("/proc/self/fd");
    CHECK(all != NULL);
    while (readdir(all) != NULL) count++;
    closedir(all);
    return count;
}

/* Bytes that malloc has given out, those of mappings of their own included. */
static size_t in_use(void) { return mallinfo2().uordblks + mallinfo2().hblkhd; }

static void cycle(int number) {
    memlock_client *client;
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &client));
    /* Not each of them, or the machine runs out of ports for the closed connections. */
    if (number % EVERY == 0) {
        memlock_lock *lock, *busy;
        memlock_list *list;
        memlock_walk *walk;
        uint64_t id;
        const char *key;
        size_t length;
        ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, "churn", 30000, 0, &lock));
        ANSWERS(MEMLOCK_BUSY, memlock_mutex_lock(client, "churn", 30000, 0, &busy));
        /* By a wait it gets a listener. */
        ANSWERS(MEMLOCK_TIMED_OUT, memlock_mutex_lock(client, "churn", 30000, 1, &busy));
        ANSWERS(MEMLOCK_INVALID, memlock_lock_extend(lock, 0));
        ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
        ANSWERS(MEMLOCK_OK, memlock_list_set_up(client, "churn", 60000, &list));
        ANSWERS(MEMLOCK_OK, memlock_list_insert(list, "key", 3, NULL));
        ANSWERS(MEMLOCK_OK, memlock_list_walk(list, &walk));
        ANSWERS(MEMLOCK_OK, memlock_walk_next(walk, &id, &key, &length));
        ANSWERS(MEMLOCK_OK, memlock_list_tear_down(list));
        memlock_walk_close(walk);
        memlock_list_close(list);
    }
    memlock_client_close(client);
}

/* Bare functions keep one default client, whatever the number of names. */
static void lock_by_name(int number) {
    char name[32];
    snprintf(name, sizeof name, "name %d", number);
    ANSWERS(MEMLOCK_OK, mutex_lock(name, 30));
    ANSWERS(MEMLOCK_OK, mutex_unlock(name));
}

static void leaves_nothing_behind(void (*body)(int)) {
    for (int i = 0; i < WARM_UP; i++) body(-i);
    const int open_before = descriptors();
    for (int round = 0; round < ROUNDS; round++) {
        const size_t used_before = in_use();
        for (int i = 0; i < CYCLES; i++) body(i);
        CHECK(descriptors() == open_before);
        /* What is remembered for some time takes a little more now and then. A leak grows in each round. */
        if (in_use() <= used_before + 8192) return;
    }
    FAIL("%zu bytes are in use after %d cycles", in_use(), ROUNDS * CYCLES);
}

int main(void) {
    leaves_nothing_behind(cycle);
    leaves_nothing_behind(lock_by_name);
    return 0;
}
