/* A daemon closes all descriptors that it did not open itself, those of memlock among them, and opens files with the
 * same numbers: they are left alone, and locks work. */

#define _GNU_SOURCE /* memfd_create */
#include "check.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

enum { FIRST = 3, LAST = 1024, MOST = 64 };

static const char mine[] = "mine";

static struct {
    int descriptor;
    struct stat then;
} files[MOST];
static int count;

static memlock_client *open_client(void) {
    memlock_client *client;
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &client));
    return client;
}

static void close_all(void) {
    for (int descriptor = FIRST; descriptor < LAST; descriptor++) close(descriptor);
}

static int highest(void) {
    int number = LAST;
    while (fcntl(--number, F_GETFD) < 0) continue;
    return number;
}

static void open_file(int descriptor) {
    CHECK(descriptor >= FIRST && count < MOST);
    CHECK(fstat(descriptor, &files[count].then) == 0);
    files[count++].descriptor = descriptor;
}

/* Closes everything, and opens files until all numbers are taken again. */
static void replace_all(bool with_sockets) {
    const int last = highest();
    CHECK(last >= FIRST);
    close_all();
    count = 0;
    while (fcntl(last, F_GETFD) < 0) {
        int ends[2] = {-1, -1};
        if (with_sockets) {
            CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
            open_file(ends[1]);
        } else {
            ends[0] = memfd_create("mine", 0);
        }
        open_file(ends[0]);
        CHECK(write(ends[0], mine, sizeof mine) == (ssize_t)sizeof mine);
    }
}

/* A file of ours has what we wrote; so has one of the two sockets of a pair, and the other one nothing. */
static void files_are_untouched(bool with_sockets) {
    for (int i = 0; i < count; i++) {
        const int descriptor = files[i].descriptor;
        char content[64];
        struct stat now;
        CHECK(fstat(descriptor, &now) == 0);
        CHECK(now.st_ino == files[i].then.st_ino && now.st_dev == files[i].then.st_dev);
        const ssize_t length = with_sockets ? recv(descriptor, content, sizeof content, 0)
                                            : pread(descriptor, content, sizeof content, 0);
        CHECK(with_sockets && i % 2 ? length < 0
                                    : length == (ssize_t)sizeof mine && memcmp(content, mine, sizeof mine) == 0);
    }
}

static void locks_work_and_files_are_untouched(bool with_sockets, long pause_ms) {
    memlock_lock *lock;
    close_all();
    memlock_client *const daemons = open_client();
    ANSWERS(MEMLOCK_OK, mutex_lock("bare daemon", 30));
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(daemons, "daemon", 30000, 0, &lock));
    replace_all(with_sockets);
    check_pause_ms(pause_ms);
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(daemons, "daemon", 30000, 0, &lock));
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    ANSWERS(MEMLOCK_OK, mutex_unlock("bare daemon"));
    memlock_client_close(daemons);
    files_are_untouched(with_sockets);

    memlock_client *const idle = open_client();
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(idle, "daemon", 30000, 0, &lock));
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    replace_all(with_sockets);
    check_pause_ms(pause_ms);
    memlock_client_close(idle);
    files_are_untouched(with_sockets);
}

static void files_of_a_daemon_are_left_alone(void) {
    locks_work_and_files_are_untouched(false, 0);
    locks_work_and_files_are_untouched(false, 150);
}

static void sockets_of_a_daemon_are_left_alone(void) {
    locks_work_and_files_are_untouched(true, 150);
}

int main(void) {
    RUN(files_of_a_daemon_are_left_alone);
    RUN(sockets_of_a_daemon_are_left_alone);
    return 0;
}
