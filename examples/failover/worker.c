/* A worker of the failover demo, in C. worker.py and worker.sh do the same; ../README.md describes
 * their behaviour and output.
 *
 *     worker URL REPORT STOP
 */

#include <memlock.h>

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define LEASE_MS 3000      /* longer than a restart takes, and not longer than the guard */
#define PATIENCE_MS 60000  /* how long to wait for a lock */
#define RETRY_MS 50        /* between attempts to reach a server that is down */

/* Two threads write to it: this one, and that in which memlock reports a loss. Each writes whole
 * lines by one call, and stdio flushes each of them. */
static FILE *report;

static void die(const char *doing, const char *why)
{
    fprintf(stderr, "worker.c: %s: %s\n", doing, why);
    exit(1);
}

static void must(int answer, const char *doing)
{
    if (answer != MEMLOCK_OK) die(doing, answer < 0 ? memlock_last_error() : memlock_describe(answer));
}

static int64_t boot_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void sleep_ms(int64_t ms)
{
    struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0) {}
}

static void on_notice(int event, int64_t left_ms, void *name)
{
    (void)left_ms;
    if (event == MEMLOCK_LEASE_AT_RISK) return; /* no more than a warning: the lock is held */
    fprintf(report, "lost %s %" PRId64 "\n", (const char *)name, boot_clock_ns());
}

/* Waits for the lock, and renews it from then on. NULL if the server was down. */
static memlock_lock *acquire(memlock_client *client, char *name)
{
    memlock_lock *lock;
    int answer = memlock_mutex_lock(client, name, LEASE_MS, PATIENCE_MS, &lock);
    if (answer == MEMLOCK_UNREACHABLE || answer == MEMLOCK_UNKNOWN) return NULL;
    must(answer, name);
    must(memlock_lock_renew(lock, -1, on_notice, name), name);
    return lock;
}

/* "unreached": the server was down, or is not known to have got the request. It has forgotten the
 * lock if it was down; otherwise the client releases it later, or it ends with its lease. */
static const char *release(memlock_lock *lock)
{
    switch (memlock_unlock(lock)) {
    case MEMLOCK_OK: return "ok";
    case MEMLOCK_LOST: return "lost";
    case MEMLOCK_UNREACHABLE:
    case MEMLOCK_UNKNOWN: return "unreached";
    default: die("releasing", memlock_last_error()); return NULL;
    }
}

/* Long and short by turns: 1.2 to 1.5 s, and 0.3 to 0.6 s. */
static int64_t hold_ms(int64_t turn)
{
    return 300 + turn % 2 * 900 + turn * 100 % 400;
}

int main(int argc, char **argv)
{
    if (argc != 4) die("usage", "worker URL REPORT STOP");
    if (!(report = fopen(argv[2], "w")) || setvbuf(report, NULL, _IOLBF, 0) != 0)
        die(argv[2], "the report cannot be written");
    memlock_client *client;
    must(memlock_client_open(argv[1], &client), "opening the client");

    memlock_lock *own = acquire(client, "own-c");
    if (!own) die("own-c", memlock_last_error());
    uint64_t fence;
    must(memlock_lock_fence(own, &fence), "own-c");
    fprintf(report, "own %" PRIu64 " %" PRId64 "\n", fence, boot_clock_ns());

    for (int64_t turn = 1; access(argv[3], F_OK) != 0;) {
        memlock_lock *job = acquire(client, "job");
        if (!job) {
            fprintf(report, "unreached\n");
            sleep_ms(RETRY_MS);
            continue;
        }
        int64_t begin = boot_clock_ns();
        must(memlock_lock_fence(job, &fence), "job");
        fprintf(report, "begin %" PRIu64 " %" PRId64 " %" PRId64 "\n", fence, begin, hold_ms(turn));
        sleep_ms(hold_ms(turn++)); /* the work */
        fprintf(report, "end %" PRId64 "\n", boot_clock_ns());
        const char *answer = release(job);
        fprintf(report, "released %s %" PRId64 "\n", answer, boot_clock_ns());
    }

    const char *answer = release(own);
    fprintf(report, "own-released %s %" PRId64 "\n", answer, boot_clock_ns());
    memlock_client_close(client);
    fclose(report);
    return 0;
}
