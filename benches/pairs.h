/* pairs.h: what the files of the program `pairs` share. */
#ifndef PAIRS_H
#define PAIRS_H

#include <stddef.h>
#include <stdint.h>

struct contender {
    const char *name;
    const char *unit;
    uint64_t units_per_step;
    uint64_t steps_per_look; /* how often the clock is read: not so often that it shows */
    void (*open)(int port);
    void (*step)(void);
    void (*close)(void);
};

/* Those of semaphores.c; behind the last there is one without a name. */
extern const struct contender semaphore_contenders[];

__attribute__((noreturn, format(printf, 1, 2))) void die(const char *format, ...);

/* A socket of our own; all of these die of an error. */
int dial(int port);
void send_all(int fd, const char *bytes, size_t len);
size_t receive(int fd, char *buffer, size_t room); /* what there is, at least one byte */

void memlock_url(char *url, size_t room, int port);

#endif
