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
    void (*open)(const char *url);
    void (*step)(void);
    void (*close)(void);
};

/* The contenders of the other file; the last entry has no name. */
extern const struct contender contenders[];

#define LEASE_S 30
/* The guard of the URL, where it has one: as in harness/server.py. */
#define GUARD_S 2
/* That of a quorum. */
#define QUORUM_S 4

/* About as long as memlock's lock value, which contains the host name. */
#define VALUE "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

__attribute__((noreturn, format(printf, 1, 2))) void die(const char *format, ...);

/* The socket; all of these end the program on an error. */
uint16_t port_of(const char *url); /* of URLs that end with it */
int dial(const char *url);
int dial_port(uint16_t port);
void send_all(int fd, const char *bytes, size_t len);
size_t receive(int fd, char *buffer, size_t room); /* the available data, at least one byte */
/* One reply line, NUL-terminated and without its CR LF. One is outstanding, so LF ends the data. */
void receive_line(int fd, char *line, size_t room);

/* memlock's mutex. */
void open_with_lease(const char *url, int seconds);
void memlock_step(void);
void memlock_close(void);

#endif
