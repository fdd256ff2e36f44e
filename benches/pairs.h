/* pairs.h: shared declarations of the program `pairs`. */
#ifndef PAIRS_H
#define PAIRS_H

#include <stddef.h>
#include <stdint.h>

struct contender {
    const char *name;
    const char *unit;
    uint64_t units_per_step;
    uint64_t steps_per_look; /* how often the clock is read: rarely enough to cost little */
    void (*open)(const char *server); /* a port, or the path of a SQLite file */
    void (*step)(void);
    void (*close)(void);
};

/* The contenders of semaphores.c; the last entry has no name. */
extern const struct contender semaphore_contenders[];

__attribute__((noreturn, format(printf, 1, 2))) void die(const char *format, ...);

/* The socket; all of these end the program on an error. */
int dial(const char *port);
void send_all(int fd, const char *bytes, size_t len);
size_t receive(int fd, char *buffer, size_t room); /* the available data, at least one byte */

void memlock_url(char *url, size_t room, const char *server);

#endif
