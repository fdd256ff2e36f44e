/* No server, a frozen one, a dead one: "unreachable" and "unknown" are reported, never guessed. */

#include "check.h"
#include "server.h"

static memlock_client *client;

/* A client whose timeouts are short enough to be waited for, and long enough for a busy server. The server's own URL if `port` is 0. */
static memlock_client *impatient(int port) {
    char url[256];
    memlock_client *opened;
    snprintf(url, sizeof url, "memcached://127.0.0.1:%d?connect_timeout=5s&io_timeout=5s&outage=300ms",
             port != 0 ? port : plain_port());
    ANSWERS(MEMLOCK_OK, memlock_client_open(url, &opened));
    return opened;
}

/* A port of our own without a listener. */
static int own_port(int *fd) {
    struct sockaddr_in address;
    socklen_t size = sizeof address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    *fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(*fd >= 0 && bind(*fd, (struct sockaddr *)&address, size) == 0);
    CHECK(getsockname(*fd, (struct sockaddr *)&address, &size) == 0);
    return ntohs(address.sin_port);
}

static char address[32];

/* The call must answer so, and name the server. */
#define IS_UNREACHABLE(call) (ANSWERS(MEMLOCK_UNREACHABLE, call), SAYS(address))

static void nothing_works_and_all_of_it_says_why(memlock_client *nowhere) {
    memlock_lock *lock = (memlock_lock *)address;
    memlock_list *list = (memlock_list *)address;
    memlock_walk *walk = (memlock_walk *)address;
    memlock_semaphore *semaphore;
    memlock_permit *permit = (memlock_permit *)address;
    memlock_owner owner;
    memlock_holder holder;
    memlock_bytes key = {"key", 3};
    memlock_insertion done;
    uint64_t number;
    uint32_t some;
    size_t count;
    IS_UNREACHABLE(memlock_mutex_lock(nowhere, "x", 30000, 0, &lock));
    /* Not even a wait for ever waits for a server that was not there at its start. */
    IS_UNREACHABLE(memlock_mutex_lock(nowhere, "x", 30000, -1, &lock));
    IS_UNREACHABLE(memlock_mutex_owner(nowhere, "x", &owner));
    IS_UNREACHABLE(memlock_mutex_force_unlock(nowhere, "x", "token"));
    IS_UNREACHABLE(memlock_list_set_up(nowhere, "x", 60000, &list));
    CHECK(lock == NULL && list == NULL);
    ANSWERS(MEMLOCK_OK, memlock_list_open(nowhere, "x", &list));
    IS_UNREACHABLE(memlock_list_insert(list, "key", 3, &number));
    IS_UNREACHABLE(memlock_list_insert_many(list, &key, 1, &done));
    IS_UNREACHABLE(memlock_list_id(list, "key", 3, &number));
    IS_UNREACHABLE(memlock_list_count(list, &number));
    IS_UNREACHABLE(memlock_list_walk(list, &walk));
    IS_UNREACHABLE(memlock_list_tear_down(list));
    memlock_list_close(list);
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(nowhere, "x", 1, 30000, &semaphore));
    IS_UNREACHABLE(memlock_semaphore_acquire(semaphore, 1, 0, &permit));
    IS_UNREACHABLE(memlock_semaphore_acquire(semaphore, 1, -1, &permit));
    CHECK(walk == NULL && permit == NULL);
    IS_UNREACHABLE(memlock_semaphore_set_up(semaphore, 60000));
    IS_UNREACHABLE(memlock_semaphore_tear_down(semaphore));
    IS_UNREACHABLE(memlock_semaphore_resize(semaphore, 2));
    IS_UNREACHABLE(memlock_semaphore_available(semaphore, &some));
    IS_UNREACHABLE(memlock_semaphore_holders(semaphore, &holder, 1, &count));
    memlock_semaphore_close(semaphore);
    IS_UNREACHABLE(memlock_counter_set_up(nowhere, "x", 1));
    IS_UNREACHABLE(memlock_counter_try(nowhere, "x"));
    IS_UNREACHABLE(memlock_counter_retry(nowhere, "x", 0, NULL));
    IS_UNREACHABLE(memlock_counter_park(nowhere, "x", 0, -1, NULL));
    IS_UNREACHABLE(memlock_counter_release(nowhere, "x"));
    IS_UNREACHABLE(memlock_counter_available(nowhere, "x", &number));
}

static void a_closed_port_is_unreachable(void) {
    int fd;
    const int port = own_port(&fd);
    memlock_client *nowhere = impatient(port);
    snprintf(address, sizeof address, "127.0.0.1:%d", port);
    nothing_works_and_all_of_it_says_why(nowhere);
    memlock_client_close(nowhere);
    close(fd);
}

/* Sent to a server that stands still: nobody knows whether it will be carried out. */
#define IS_IN_DOUBT(call)                                                                    \
    do {                                                                                     \
        const int check_got = (call);                                                        \
        if (check_got != MEMLOCK_UNKNOWN) ANSWERS(MEMLOCK_UNREACHABLE, check_got);           \
    } while (false)

/* In threads of their own, since each call takes a timeout or two. These handles are gone then. */
static void *extends_and_unlocks(void *lock) {
    IS_IN_DOUBT(memlock_lock_extend(lock, 6000000));
    IS_IN_DOUBT(memlock_unlock(lock));
    return NULL;
}

static void *extends_and_releases(void *permit) {
    IS_IN_DOUBT(memlock_permit_extend(permit, 6000000));
    IS_IN_DOUBT(memlock_permit_release(permit));
    return NULL;
}

static void *acquires(void *semaphore) {
    memlock_permit *permit;
    IS_IN_DOUBT(memlock_semaphore_acquire(semaphore, 1, 0, &permit));
    CHECK(permit == NULL);
    return NULL;
}

/* A bare lock or permit stays held until its release is certain. */
static void *releases_by_name(void *unused) {
    (void)unused;
    for (int i = 0; i < 2; i++) IS_IN_DOUBT(semaphore_release("bare"));
    return NULL;
}

static void what_a_frozen_server_did_is_in_doubt_and_a_bare_release_is_made_again(void) {
    memlock_lock *held, *lock;
    memlock_semaphore *semaphore;
    memlock_permit *held_permit;
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, "held", 600000, 0, &held));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(client, "permits", 3, 600000, &semaphore));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire(semaphore, 1, 0, &held_permit));
    ANSWERS(MEMLOCK_OK, semaphore_set_up("bare", 1, 600));
    ANSWERS(MEMLOCK_OK, semaphore_acquire("bare", 600));
    ANSWERS(MEMLOCK_OK, mutex_lock("bare", 600));
    freeze();
    ANSWERS(MEMLOCK_UNKNOWN, memlock_mutex_lock(client, "asked for", 30000, 0, &lock));
    CHECK(lock == NULL);
    const pthread_t threads[] = {
        check_start(acquires, semaphore),
        check_start(extends_and_unlocks, held),
        check_start(extends_and_releases, held_permit),
        check_start(releases_by_name, NULL),
    };
    for (int i = 0; i < 2; i++) IS_IN_DOUBT(mutex_unlock("bare"));
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) check_join(threads[i]);
    thaw();
    /* Even if one of the two above was carried out after all: then it was not lost, but released. */
    ANSWERS(MEMLOCK_OK, mutex_unlock("bare"));
    ANSWERS(MEMLOCK_NOT_HELD, mutex_unlock("bare"));
    CHECK(!plain_has("lock:bare"));
    ANSWERS(MEMLOCK_OK, semaphore_release("bare"));
    ANSWERS(MEMLOCK_NOT_HELD, semaphore_release("bare"));
    ANSWERS(MEMLOCK_OK, semaphore_acquire_nonblock("bare", 30));
    ANSWERS(MEMLOCK_OK, semaphore_release("bare"));
    memlock_semaphore_close(semaphore);
}

static void *wait_for_the_dead(void *unused) {
    (void)unused;
    memlock_lock *lock;
    IS_IN_DOUBT(memlock_mutex_lock(client, "taken", 30000, -1, &lock));
    CHECK(lock == NULL);
    return NULL;
}

/* The last test: it kills the server. */
static void a_dead_server_ends_every_wait_and_no_process(void) {
    memlock_lock *lock;
    memlock_semaphore *semaphore;
    memlock_permit *permit;
    CHECK(plain_add("lock:taken", 600));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(client, "dead", 1, 600000, &semaphore));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire(semaphore, 1, 0, &permit));
    ANSWERS(MEMLOCK_OK, semaphore_acquire("bare", 600));
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, "dead", 600000, 0, &lock));
    ANSWERS(MEMLOCK_OK, mutex_lock("bare", 600));
    const pthread_t waiter = check_start(wait_for_the_dead, NULL);
    QUEUE_BECOMES(1, "taken");
    CHECK(kill(check_server(), SIGKILL) == 0);
    check_join(waiter);
    /* The first of these writes into a connection whose other end is gone: SIGPIPE would end us here. */
    IS_IN_DOUBT(memlock_lock_extend(lock, 30000));
    IS_IN_DOUBT(memlock_unlock(lock));
    IS_IN_DOUBT(mutex_unlock("bare"));
    ANSWERS(MEMLOCK_UNREACHABLE, mutex_unlock("bare"));
    ANSWERS(MEMLOCK_UNREACHABLE, mutex_lock("other", 30));
    IS_IN_DOUBT(memlock_permit_extend(permit, 30000));
    IS_IN_DOUBT(memlock_permit_release(permit));
    memlock_semaphore_close(semaphore);
    IS_IN_DOUBT(semaphore_release("bare"));
    ANSWERS(MEMLOCK_UNREACHABLE, semaphore_set_up("other", 1, 30));
    ANSWERS(MEMLOCK_UNREACHABLE, semaphore_acquire("other", 30));
    ANSWERS(MEMLOCK_UNREACHABLE, semaphore_acquire_nonblock("other", 30));
    ANSWERS(MEMLOCK_UNREACHABLE, semaphore_tear_down("other"));
    ANSWERS(MEMLOCK_UNREACHABLE, distinct_list_set_up("other", 30));
    ANSWERS(MEMLOCK_UNREACHABLE, distinct_list_insert("other", "key"));
    ANSWERS(MEMLOCK_UNREACHABLE, distinct_list_tear_down("other"));
}

int main(void) {
    char url[256];
    snprintf(url, sizeof url, "memcached://127.0.0.1:%d?io_timeout=5s", plain_port());
    setenv("MEMLOCK_URL", url, 1);
    client = impatient(0);
    RUN(a_closed_port_is_unreachable);
    RUN(what_a_frozen_server_did_is_in_doubt_and_a_bare_release_is_made_again);
    RUN(a_dead_server_ends_every_wait_and_no_process);
    memlock_client_close(client);
    return 0;
}
