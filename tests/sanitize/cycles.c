/* Clients opened, used and closed leave no memory and no descriptor.
 *
 * Usage: cycles NUMBER. Each takes and releases a lock on the server in MEMLOCK_URL; every twentieth also waits for one, so that
 * it has a listener. */

#include "../c/check.h"

#include <dirent.h>

static int descriptors(void) {
    int count = 0;
    DIR *all = opendir("/proc/self/fd");
    CHECK(all != NULL);
    while (readdir(all) != NULL) count++;
    closedir(all);
    return count;
}

static long resident_kb(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%*d %ld", &pages) == 1);
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void cycle(int number) {
    memlock_client *client;
    memlock_lock *lock, *other;
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &client));
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, "cycle", 30000, 0, &lock));
    if (number % 20 == 0) ANSWERS(MEMLOCK_TIMED_OUT, memlock_mutex_lock(client, "cycle", 30000, 1, &other));
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    memlock_client_close(client);
}

int main(int argc, char **argv) {
    const int cycles = argc > 1 ? atoi(argv[1]) : 0;
    check_running = "cycles";
    CHECK(cycles > 0);
    for (int i = 0; i < cycles / 10 + 1; i++) cycle(i);
    const int open_before = descriptors();
    const long before = resident_kb();
    for (int i = 0; i < cycles; i++) cycle(i);
    const int open_after = descriptors();
    const long after = resident_kb();
    printf("%d cycles: %d descriptors before, %d after; %ld kB resident before, %ld after\n", cycles, open_before,
           open_after, before, after);
    CHECK(open_after == open_before);
    /* A leak of 64 bytes in each of 10,000 cycles is more than this. Under valgrind it is valgrind that tells. */
    if (getenv("CYCLES_ONLY_COUNT") == NULL) CHECK(after <= before + 512);
    return 0;
}
