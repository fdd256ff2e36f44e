/* Three memcacheds of this program's own, the members of a quorum. They end with the program. */

#ifndef MEMBERS_H
#define MEMBERS_H

#include "check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { MEMBERS = 3, GUARD_MS = 4000, PATIENCE_MS = 60000 };

static struct member {
    int port;
    int reserved; /* bound and not listening, so that the port stays its own while it is down */
    pid_t pid;    /* 0 while it is down */
} members[MEMBERS];

static inline struct sockaddr_in member_address(int port) {
    struct sockaddr_in address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_port = htons((uint16_t)port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static inline bool member_answers(const struct member *member) {
    const struct sockaddr_in server = member_address(member->port);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const bool answers = connect(fd, (const struct sockaddr *)&server, sizeof server) == 0;
    close(fd);
    return answers;
}

/* How long a member that was started gives no new locks, at most: a guard, a second by which its age is rounded, and
 * one for what is added to the guard. */
static inline long members_recovery_ms(void) { return GUARD_MS + 2000; }

/* As a quorum wants it: without evictions, and without flush_all. */
static inline void start_member(int place) {
    struct member *member = &members[place];
    char port[16];
    snprintf(port, sizeof port, "%d", member->port);
    const char *user = geteuid() == 0 ? "root" : "nobody";
    member->pid = fork();
    if (member->pid < 0) FAIL("no fork");
    if (member->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execlp("memcached", "memcached", "-l", "127.0.0.1", "-p", port, "-U", "0", "-t", "2", "-M", "-F", "-u", user,
               (char *)NULL);
        _exit(127);
    }
    EVENTUALLY(member_answers(member));
}

static inline void kill_member(int place) {
    struct member *member = &members[place];
    if (member->pid == 0) return;
    if (kill(member->pid, SIGKILL) != 0) FAIL("memcached cannot be killed");
    waitpid(member->pid, NULL, 0);
    member->pid = 0;
    EVENTUALLY(!member_answers(member));
}

static inline void restart_member(int place) {
    kill_member(place);
    start_member(place);
}

/* Starts all, and writes the URL of the quorum. */
static inline void start_members(char *url, size_t size) {
    for (int place = 0; place < MEMBERS; place++) {
        struct sockaddr_in address = member_address(0);
        socklen_t length = sizeof address;
        const int yes = 1;
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0) FAIL("no port");
        if (getsockname(fd, (struct sockaddr *)&address, &length) != 0) FAIL("no port");
        members[place].reserved = fd;
        members[place].port = ntohs(address.sin_port);
        start_member(place);
    }
    snprintf(url, size, "memcached://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d?quorum=majority&guard=4s", members[0].port,
             members[1].port, members[2].port);
}

#endif
