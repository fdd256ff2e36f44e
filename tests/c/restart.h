/* Killing this program's memcached, and starting it anew on the same port. Where it ends with the program. */

#ifndef RESTART_H
#define RESTART_H

#include "check.h"
#include "memcached_text.h"

#include <sys/prctl.h>
#include <sys/wait.h>

/* The server that this program started; 0 while it is the one of tests/c/run. */
static pid_t restart_pid;

static inline bool restart_answers(void) {
    struct sockaddr_in server;
    memset(&server, 0, sizeof server);
    server.sin_family = AF_INET;
    server.sin_port = htons((uint16_t)plain_port());
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const bool answers = connect(fd, (struct sockaddr *)&server, sizeof server) == 0;
    close(fd);
    return answers;
}

static inline void kill_server(void) {
    if (kill(restart_pid != 0 ? restart_pid : check_server(), SIGKILL) != 0) FAIL("memcached cannot be killed");
    if (restart_pid != 0) waitpid(restart_pid, NULL, 0);
    EVENTUALLY(!restart_answers());
}

static inline void restart_server(void) {
    char port[16];
    kill_server();
    snprintf(port, sizeof port, "%d", plain_port());
    const char *user = geteuid() == 0 ? "root" : "nobody";
    restart_pid = fork();
    if (restart_pid < 0) FAIL("no fork");
    if (restart_pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execlp("memcached", "memcached", "-l", "127.0.0.1", "-p", port, "-U", "0", "-t", "2", "-u", user, (char *)NULL);
        _exit(127);
    }
    EVENTUALLY(restart_answers());
}

#endif
