/* worker.h: shared declarations of worker.c's program. */
#ifndef WORKER_H
#define WORKER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NAME "contended"
#define MOST_PROCESSES 512
#define MOST_THREADS 1000
#define NS_PER_S UINT64_C(1000000000)
#define POLL_NS 1000000

__attribute__((noreturn, format(printf, 1, 2))) void die(const char *format, ...);

uint64_t now_ns(void);
void sleep_until(uint64_t ns);

/* --- the board: the layout is that of board.py ------------------------------------------------ */

struct turn {
    uint64_t asked_ns, entered_ns, left_ns, fence;
};

/* 128 bytes, so that no two processes write to the same cache line. */
struct process {
    _Atomic uint64_t ready, asked_ns, turns, clashes, cpu_ns;
    _Atomic uint64_t inside; /* with a semaphore: 1 + the number of its turn; 0 if not a holder */
    uint64_t unused[10];
};

struct board {
    _Atomic uint64_t start_ns, stop_ns;
    uint64_t processes, room, hold_ns, permits;
    uint64_t unused[2];
    _Atomic uint64_t inside; /* with a lock: the holder, 1 + its index; 0 for none */
    uint64_t unused_too[7];
    struct process process[];
};

_Static_assert(sizeof(struct board) == 16 * 8 && sizeof(struct process) == 16 * 8, "see board.py");

extern struct board *board;

bool stopped(void);

/* --- the contenders ------------------------------------------------------------------------- */

struct contender {
    const char *name;
    void (*open)(const char *url, uint64_t index);
    bool (*take)(uint64_t *fence); /* false after the stop */
    void (*give)(void);
    void (*prepare)(void); /* before the processes are started; may be NULL */
    void (*cancel)(void);  /* ends a wait, from a signal handler; may be NULL */
};

/* The contenders of raw.c and memlock.c; the last entry has no name. */
extern const struct contender raw_contenders[], memlock_contenders[];

#endif
