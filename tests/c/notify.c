/* The URL's parameter `notify`: where a waiter can be woken, and that it gets the lock whether it can or not. */

#include "check.h"
#include "memcached_text.h"
#include "queue.h"

static memlock_client *with(const char *parameter) {
    char url[256];
    memlock_client *client = NULL;
    snprintf(url, sizeof url, "%s%s", check_url(), parameter);
    ANSWERS(MEMLOCK_OK, memlock_client_open(url, &client));
    return client;
}

static memlock_lock *locked_by(memlock_client *client, const char *name) {
    memlock_lock *lock = NULL;
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, name, 30000, -1, &lock));
    return lock;
}

struct waiter {
    pthread_t thread;
    memlock_client *client;
    const char *name;
};

static void *wait_and_pass(void *argument) {
    const struct waiter *waiter = argument;
    ANSWERS(MEMLOCK_OK, memlock_unlock(locked_by(waiter->client, waiter->name)));
    return NULL;
}

static void start(struct waiter *waiter, memlock_client *client, const char *name) {
    *waiter = (struct waiter){.client = client, .name = name};
    waiter->thread = check_start(wait_and_pass, waiter);
}

/* Of the last one in the queue: its port, or 0 if it cannot be woken; the address must be this one. */
static int port_of_the_last(const char *name, const char *address) {
    const char *last = queue_of(name);
    for (const char *next; (next = strchr(last, '\n')) != NULL && next[1] != '\r';) last = next + 1;
    if (strncmp(last, "-#", 2) == 0) return 0;
    CHECK(strncmp(last, address, strlen(address)) == 0 && last[strlen(address)] == ':');
    return atoi(last + strlen(address) + 1);
}

/* Whether the first waits and the second holds, or the other way round. */
static void each_gets_the_lock_after_the_other(memlock_client *one, memlock_client *two, long patience_ms) {
    memlock_client *const clients[] = {one, two};
    for (int i = 0; i < 2; i++) {
        struct waiter waiter;
        memlock_lock *lock = locked_by(clients[i], "each");
        start(&waiter, clients[1 - i], "each");
        QUEUE_BECOMES(1, "each");
        struct check_watch watch;
        check_watch_start(&watch);
        ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
        check_join(waiter.thread);
        CHECK(check_watch_end_ms(&watch) < patience_ms);
        CHECK(queue_length("each") == 0 && !plain_has("lock:each"));
    }
}

/* A wait of this client for a lock that `holder` has, while `look` looks at the queue. */
static void while_waiting(memlock_client *client, memlock_client *holder, void (*look)(const char *name)) {
    struct waiter waiter;
    memlock_lock *lock = locked_by(holder, "looked-at");
    start(&waiter, client, "looked-at");
    QUEUE_BECOMES(1, "looked-at");
    look("looked-at");
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    check_join(waiter.thread);
}

static void is_near(const char *name) { CHECK(port_of_the_last(name, "127.0.0.1") > 0); }

static void is_in_range(const char *name) {
    const int port = port_of_the_last(name, "127.0.0.1");
    CHECK(port >= 45000 && port <= 45100);
}

static void is_none(const char *name) { CHECK(port_of_the_last(name, "127.0.0.1") == 0); }

static void a_waiter_is_woken_at_its_end_of_the_connection(void) {
    memlock_client *one = with(""), *two = with("?notify=127.0.0.1");
    while_waiting(one, two, is_near);
    while_waiting(two, one, is_near);
    each_gets_the_lock_after_the_other(one, two, TOLD_MS);
    memlock_client_close(one);
    memlock_client_close(two);
}

static void a_waiter_is_woken_on_a_port_of_the_range(void) {
    memlock_client *one = with("?notify=127.0.0.1:45000-45100"), *two = with("?notify=127.0.0.1:45000-45100");
    while_waiting(one, two, is_in_range);
    each_gets_the_lock_after_the_other(one, two, TOLD_MS);
    memlock_client_close(one);
    memlock_client_close(two);
}

static void a_waiter_without_a_listener_gets_the_lock_all_the_same(void) {
    memlock_client *off = with("?notify=off"), *on = with(""), *off_too = with("?notify=off");
    while_waiting(off, on, is_none);
    /* It looks for itself, several times a second. */
    each_gets_the_lock_after_the_other(off, on, 2000);
    each_gets_the_lock_after_the_other(off, off_too, 2000);
    memlock_client_close(off);
    memlock_client_close(on);
    memlock_client_close(off_too);
}

/* Another program may take it before it is used. */
static int free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&address, length) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&address, &length) == 0);
    close(fd);
    return ntohs(address.sin_port);
}

/* More waiters than ports: only the first one has a listener. False if another program took the port. */
static bool the_first_has_the_only_port(int port) {
    static const char *const names[] = {"narrow-a", "narrow-b", "narrow-c"};
    enum { WAITERS = sizeof names / sizeof *names };
    char parameter[64];
    bool has_it = false;
    snprintf(parameter, sizeof parameter, "?notify=127.0.0.1:%d", port);
    memlock_client *holder = with(""), *narrow = with(parameter);
    struct waiter waiters[WAITERS];
    memlock_lock *locks[WAITERS];
    for (int i = 0; i < WAITERS; i++) {
        locks[i] = locked_by(holder, names[i]);
        start(&waiters[i], narrow, names[i]);
        QUEUE_BECOMES(1, names[i]);
        const int of_this_one = port_of_the_last(names[i], "127.0.0.1");
        if (i == 0) has_it = of_this_one != 0;
        CHECK(of_this_one == (i == 0 && has_it ? port : 0));
    }
    for (int i = 0; i < WAITERS; i++) {
        ANSWERS(MEMLOCK_OK, memlock_unlock(locks[i]));
        check_join(waiters[i].thread);
    }
    memlock_client_close(holder);
    memlock_client_close(narrow);
    return has_it;
}

static void a_waiter_without_a_free_port_waits_without_a_listener(void) {
    for (int tries = 1; !the_first_has_the_only_port(free_port()); tries++) CHECK(tries < 20);
}

int main(void) {
    RUN(a_waiter_is_woken_at_its_end_of_the_connection);
    RUN(a_waiter_is_woken_on_a_port_of_the_range);
    RUN(a_waiter_without_a_listener_gets_the_lock_all_the_same);
    RUN(a_waiter_without_a_free_port_waits_without_a_listener);
    return 0;
}
