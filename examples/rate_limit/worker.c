/* A worker of the rate limit, in C: at most three of all workers are in the section.
 *
 *     worker URL REPORT TURNS
 *
 * The report gets a line `in <time>` after each grant and `out <time>` before each release, in
 * nanoseconds of the boot clock. With RATE_LIMIT_DIES=1 in its environment, the worker stays in the
 * section until it is killed; its permit becomes available when its lease ends.
 */

#include <memlock.h>

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PERMITS 3
#define LEASE_MS 60000 /* a dead worker's permit is free after this */
#define BRIEF_LEASE_MS 2000 /* the same for the worker that is to be killed */
#define STAY_MS 20

static void die(const char *doing, const char *why)
{
    fprintf(stderr, "worker.c: %s: %s\n", doing, why);
    exit(1);
}

/* A negative answer is a failure, with a message; a positive answer is an ordinary "no". */
static void must(int answer, const char *doing)
{
    if (answer != MEMLOCK_OK) die(doing, answer < 0 ? memlock_last_error() : memlock_describe(answer));
}

/* Without buffering: a killed worker cannot flush. */
static void say(FILE *report, const char *what)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    fprintf(report, "%s %" PRId64 "\n", what, (int64_t)now.tv_sec * 1000000000 + now.tv_nsec);
    if (fflush(report) != 0) die("report", "cannot be written");
}

static bool dies(void)
{
    const char *value = getenv("RATE_LIMIT_DIES");
    return value && strcmp(value, "1") == 0;
}

static void stay(void)
{
    while (dies()) pause();
    nanosleep(&(struct timespec){.tv_nsec = STAY_MS * 1000000}, NULL);
}

int main(int argc, char **argv)
{
    if (argc != 4) die("usage", "worker URL REPORT TURNS");
    FILE *report = fopen(argv[2], "w");
    if (!report) die(argv[2], "cannot be written");

    memlock_client *client;
    memlock_semaphore *section;
    must(memlock_client_open(argv[1], &client), "opening the client");
    const int64_t lease_ms = dies() ? BRIEF_LEASE_MS : LEASE_MS;
    must(memlock_semaphore_open(client, "section", PERMITS, lease_ms, &section), "opening the semaphore");

    for (long turns = atol(argv[3]); turns > 0; turns--) {
        memlock_permit *permit;
        must(memlock_semaphore_acquire(section, 1, -1, &permit), "acquiring a permit");
        say(report, "in");
        stay();
        say(report, "out");
        must(memlock_permit_release(permit), "releasing the permit");
    }

    memlock_semaphore_close(section);
    memlock_client_close(client);
    return fclose(report) == 0 ? 0 : 1;
}
