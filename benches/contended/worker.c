/*
 * worker.c: processes that contend for one lock or semaphore on one server or file, at full speed.
 *
 *   worker CONTENDER URL FD THREADS
 *
 * FD is the board, shared memory with the layout of benches/contended/board.py: the number of
 * processes, the hold, the start and the stop, and a log for each process. If a process has several
 * THREADS, which share a connection to the server, each thread counts as a process there. Every
 * process connects, reports that it is ready, waits for the start, and then repeats:
 *
 *   ask, stamp, hold, stamp, release
 *
 * until it finds the stop. SIGTERM ends a wait, and nothing else. The contenders are in raw.c and
 * memlock.c.
 */
#define _GNU_SOURCE /* RUSAGE_THREAD */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "worker.h"

void die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("worker: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

/* --- the board ----------------------------------------------------------------------------- */

struct board *board;

static void board_map(int fd)
{
    struct stat it;
    if (fstat(fd, &it) != 0)
        die("the board: %s", strerror(errno));
    board = mmap(NULL, (size_t)it.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (board == MAP_FAILED)
        die("the board: %s", strerror(errno));
}

static struct turn *log_of(uint64_t index)
{
    return (struct turn *)&board->process[board->processes] + index * board->room;
}

bool stopped(void)
{
    return board->stop_ns != 0;
}

/* --- time --------------------------------------------------------------------------------- */

uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

void sleep_until(uint64_t ns)
{
    struct timespec then = {.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &then, NULL) == EINTR)
        ;
}

static uint64_t cpu_ns(void)
{
    struct rusage used;
    getrusage(RUSAGE_THREAD, &used);
    return (uint64_t)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * NS_PER_S +
           (uint64_t)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1000;
}

/* --- the race ----------------------------------------------------------------------------- */

static const struct contender *contender;
static uint64_t threads;
static pthread_barrier_t all_may_start;

static const struct contender *called(const char *name)
{
    const struct contender *all[] = {raw_contenders, memlock_contenders};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (const struct contender *it = all[i]; it->name != NULL; it++)
            if (strcmp(name, it->name) == 0)
                return it;
    die("no contender is called '%s'", name);
}

static void on_term(int signal)
{
    (void)signal;
    if (contender->cancel != NULL)
        contender->cancel();
}

/*
 * Whether there are more holders than permits. The processes cannot be read atomically. But a
 * process that is a holder in the same turn in two consecutive reads was a holder at all times
 * between them.
 */
static bool crowded(void)
{
    static uint64_t seen[MOST_PROCESSES];
    uint64_t count = 0;
    for (uint64_t i = 0; i < board->processes; i++)
        seen[i] = board->process[i].inside;
    for (uint64_t i = 0; i < board->processes; i++)
        count += seen[i] != 0 && board->process[i].inside == seen[i];
    return count > board->permits;
}

/* Records that this process is a holder. */
static void enter(struct process *me, uint64_t index, uint64_t turn)
{
    if (board->permits == 1) {
        me->clashes += atomic_exchange(&board->inside, 1 + index) != 0;
    } else {
        me->inside = 1 + turn;
        /* Reading thousands of processes would dominate the cost; the logs show clashes, too. */
        me->clashes += board->processes <= MOST_PROCESSES && crowded();
    }
}

static void leave(struct process *me, uint64_t index)
{
    if (board->permits == 1)
        me->clashes += atomic_exchange(&board->inside, 0) != 1 + index;
    else
        me->inside = 0;
}

static void race(struct process *me, uint64_t index)
{
    struct turn *log = log_of(index);
    for (uint64_t turns = 0; !stopped(); me->turns = ++turns) {
        struct turn turn = {.asked_ns = now_ns()};
        me->asked_ns = turn.asked_ns;
        if (!contender->take(&turn.fence))
            return; /* asked_ns stays set: this wait did not end */
        turn.entered_ns = now_ns();
        if (stopped()) {
            contender->give();
            return;
        }
        enter(me, index, turns);
        me->asked_ns = 0;
        if (board->hold_ns > 0)
            sleep_until(turn.entered_ns + board->hold_ns);
        leave(me, index);
        turn.left_ns = now_ns();
        contender->give();
        if (turns == board->room)
            die("the log of %" PRIu64 " turns is full", board->room);
        log[turns] = turn;
    }
}

/* The race of one thread, after the process has connected. */
static void *run(void *of)
{
    struct process *me = of;
    const uint64_t cpu_before = cpu_ns();
    me->ready = 1;
    /* One thread polls for its whole process: thousands would use all processor time. */
    if ((uint64_t)(me - board->process) % threads == 0)
        while (board->start_ns == 0)
            sleep_until(now_ns() + POLL_NS);
    pthread_barrier_wait(&all_may_start);
    sleep_until(board->start_ns);
    race(me, (uint64_t)(me - board->process));
    me->cpu_ns = cpu_ns() - cpu_before;
    return NULL;
}

static void run_all(const char *url, uint64_t first)
{
    struct sigaction action = {.sa_handler = on_term, .sa_flags = SA_RESTART};
    pthread_attr_t small;
    pthread_t running[MOST_THREADS];
    contender->open(url, first);
    sigaction(SIGTERM, &action, NULL);
    pthread_barrier_init(&all_may_start, NULL, (unsigned)threads);
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 << 10);
    for (uint64_t i = 1; i < threads; i++)
        if (pthread_create(&running[i], &small, run, &board->process[first + i]) != 0)
            die("no more than %" PRIu64 " threads can be started", i);
    run(&board->process[first]);
    for (uint64_t i = 1; i < threads; i++)
        pthread_join(running[i], NULL);
}

int main(int argc, char **argv)
{
    if (argc != 5)
        die("usage: worker CONTENDER URL FD THREADS");
    contender = called(argv[1]);
    board_map(atoi(argv[3]));
    threads = strtoull(argv[4], NULL, 10);
    if (threads == 0 || threads > MOST_THREADS || board->processes / threads > MOST_PROCESSES)
        die("there is room for %d processes of %d threads", MOST_PROCESSES, MOST_THREADS);
    /* No process outlives the harness, however it ends. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (contender->prepare != NULL)
        contender->prepare();
    signal(SIGTERM, SIG_IGN); /* it is meant for the children, and sent to the whole group */
    for (uint64_t index = 0; index < board->processes; index += threads) {
        pid_t pid = fork();
        if (pid < 0)
            die("fork: %s", strerror(errno));
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            run_all(argv[2], index);
            _exit(0);
        }
    }
    for (int status; wait(&status) > 0;)
        if (status != 0)
            return 1; /* the other children die with this process */
    return 0;
}
