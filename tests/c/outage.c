/* No server, a silent one, a frozen one, a dead one: "unreachable" and "unknown" are reported, never guessed. */

#include "check.h"
#include "freeze.h"
#include "memcached_text.h"

static memlock_client *client;

/* A client whose timeouts are short enough to be waited for. The server's own URL if `port` is 0. */
static memlock_client *impatient(int port) {
    char url[256];
    memlock_client *opened;
    snprintf(url, sizeof url, "memcached://127.0.0.1:%d?connect_timeout=1s&io_timeout=1s&outage=300ms",
             port != 0 ? port : plain_port());
    ANSWERS(MEMLOCK_OK, memlock_client_open(url, &opened));
    return opened;
}

/* A port of our own without a listener, or where connections are taken and never answered. */
static int own_port(int *fd, bool listens) {
    struct sockaddr_in address;
    socklen_t size = sizeof address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    *fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(*fd >= 0 && bind(*fd, (struct sockaddr *)&address, size) == 0);
    CHECK(!listens || listen(*fd, 64) == 0);
    CHECK(getsockname(*fd, (struct sockaddr *)&address, &size) == 0);
    return ntohs(address.sin_port);
}

static void nothing_works_and_all_of_it_says_why(memlock_client *nowhere, int port) {
    char address[32];
    memlock_lock *lock = (memlock_lock *)address;
    memlock_list *list = (memlock_list *)address;
    memlock_walk *walk;
    memlock_owner owner;
    memlock_bytes key = {"key", 3};
    memlock_insertion done;
    uint64_t number;
    snprintf(address, sizeof address, "127.0.0.1:%d", port);
    ANSWERS(MEMLOCK_UNREACHABLE, memlock_mutex_lock(nowhere, "x", 30000, 0, &lock));
    CHECK(lock == NULL);
    SAYS(address);
    /* Not even a wait for ever waits for a server that was not there at its start. */
    ANSWERS(MEMLOCK_UNREACHABLE, memlock_mutex_lock(nowhere, "x", 30000, -1, &lock));
    ANSWERS(MEMLOCK_UNREACHABLE, memlock_mutex_owner(nowhere, "x", &owner));
    ANSWERS(MEMLOCK_UNREACHABLE, memlock_mutex_force_unlock(nowhere, "x", "token"));
    ANSWERS(MEMLOCK_UNREACHABLE, memlock_list_set_up(nowhere, "x", 60000, &list));
    CHECK(list == NULL);
    ANSWERS(MEMLOCK_OK, memlock_list_open(nowhere, "x", &list));
    ANSWERS(MEMLOCK_UNREACHABLE, memlock_list_insert(list, "key", 3, &number));
    SAYS(address);
    ANSWERS(MEMLOCK_UNREACHABLE, memlock_list_insert_many(list, &key, 1, &done));
    ANSWERS(MEMLOCK_UNREACHABLE, memlock_list_id(list, "key", 3, &number));
    ANSWERS(MEMLOCK_UNREACHABLE, memlock_list_count(list, &number));
    ANSWERS(MEMLOCK_UNREACHABLE, memlock_list_walk(list, &walk));
    CHECK(walk == NULL);
    ANSWERS(MEMLOCK_UNREACHABLE, memlock_list_tear_down(list));
    memlock_list_close(list);
}

static void no_semaphore_and_no_counter_works_either(memlock_client *nowhere, int port) {
    char address[32];
    memlock_semaphore *semaphore;
    memlock_permit *permit = (memlock_permit *)address;
    memlock_holder holder;
    uint32_t some;
    uint64_t number;
    size_t count;
    snprintf(address, sizeof address, "127.0.0.1:%d", port);
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(nowhere, "x", 1, 30000, &semaphore));
    ANSWERS(MEMLOCK_UNREACHABLE, memlock_semaphore_acquire(semaphore, 1, 0, &permit));
    CHECK(permit == NULL);
    SAYS(address);
    ANSWERS(MEMLOCK_UNREACHABLE, memlock_semaphore_acquire(semaphore, 1, -1, &permit));
    ANSWERS(MEMLOCK_UNREACHABLE, memlock_semaphore_set_up(semaphore, 60000));
    ANSWERS(MEMLOCK_UNREACHABLE, memlock_semaphore_tear_down(semaphore));
    ANSWERS(MEMLOCK_UNREACHABLE, memlock_semaphore_resize(semaphore, 2));
    ANSWERS(MEMLOCK_UNREACHABLE, memlock_semaphore_available(semaphore, &some));
    ANSWERS(MEMLOCK_UNREACHABLE, memlock_semaphore_holders(semaphore, &holder, 1, &count));
    memlock_semaphore_close(semaphore);
    ANSWERS(MEMLOCK_UNREACHABLE, memlock_counter_set_up(nowhere, "x", 1));
    ANSWERS(MEMLOCK_UNREACHABLE, memlock_counter_try(nowhere, "x"));
    SAYS(address);
    ANSWERS(MEMLOCK_UNREACHABLE, memlock_counter_retry(nowhere, "x", 0, NULL));
    ANSWERS(MEMLOCK_UNREACHABLE, memlock_counter_park(nowhere, "x", 0, -1, NULL));
    ANSWERS(MEMLOCK_UNREACHABLE, memlock_counter_release(nowhere, "x"));
    ANSWERS(MEMLOCK_UNREACHABLE, memlock_counter_available(nowhere, "x", &number));
}

static void a_closed_port_is_unreachable(void) {
    int fd;
    const int port = own_port(&fd, false);
    memlock_client *nowhere = impatient(port);
    nothing_works_and_all_of_it_says_why(nowhere, port);
    no_semaphore_and_no_counter_works_either(nowhere, port);
    memlock_client_close(nowhere);
    close(fd);
}

static void a_silent_port_is_unreachable_too(void) {
    int fd;
    const int port = own_port(&fd, true);
    memlock_client *nowhere = impatient(port);
    memlock_lock *lock;
    memlock_list *list;
    struct check_watch watch;
    check_watch_start(&watch);
    ANSWERS(MEMLOCK_UNREACHABLE, memlock_mutex_lock(nowhere, "x", 30000, 0, &lock));
    CHECK(check_watch_end_ms(&watch) < 3000);
    CHECK(lock == NULL);
    ANSWERS(MEMLOCK_UNREACHABLE, memlock_list_set_up(nowhere, "x", 60000, &list));
    CHECK(list == NULL);
    memlock_client_close(nowhere);
    close(fd);
}

static void what_a_frozen_server_did_is_unknown_and_mended_later(void) {
    memlock_lock *held, *lock;
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, "held", 30000, 0, &held));
    freeze();
    ANSWERS(MEMLOCK_UNKNOWN, memlock_mutex_lock(client, "asked for", 30000, 0, &lock));
    CHECK(lock == NULL);
    CHECK(memlock_unlock(held) < 0);
    thaw();
    /* The requests are in the server's hands now. The next contact takes off whatever they left. */
    while (memlock_mutex_lock(client, "held", 30000, 10000, &lock) != MEMLOCK_OK) check_pause_ms(10);
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    for (int tries = 0; plain_has("lock:asked%20for") && tries < 300; tries++) {
        check_pause_ms(10);
        ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, "contact", 30000, 0, &lock));
        ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    }
    CHECK(!plain_has("lock:asked%20for"));
}

static void permits_that_a_frozen_server_gave_come_back(void) {
    memlock_semaphore *semaphore;
    memlock_permit *held, *extended, *permit;
    uint32_t available = 0;
    int64_t before, after;
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(client, "permits", 3, 30000, &semaphore));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire(semaphore, 1, 0, &held));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire(semaphore, 1, 0, &extended));
    freeze();
    const int answer = memlock_semaphore_acquire(semaphore, 1, 0, &permit);
    CHECK((answer == MEMLOCK_UNKNOWN || answer == MEMLOCK_UNREACHABLE) && permit == NULL);
    ANSWERS(MEMLOCK_OK, memlock_permit_remaining_ms(extended, &before));
    CHECK(memlock_permit_extend(extended, 600000) < 0);
    ANSWERS(MEMLOCK_OK, memlock_permit_remaining_ms(extended, &after));
    CHECK(after > 0 && after <= before);
    /* Its handle is gone, and what could not be given back is at the next contact. */
    CHECK(memlock_permit_release(held) < 0);
    thaw();
    while (memlock_permit_extend(extended, 60000) != MEMLOCK_OK) check_pause_ms(10);
    for (int tries = 0; available < 2 && tries < 300; tries++) {
        check_pause_ms(10);
        if (memlock_semaphore_acquire(semaphore, 1, 0, &permit) == MEMLOCK_OK) memlock_permit_release(permit);
        ANSWERS(MEMLOCK_OK, memlock_semaphore_available(semaphore, &available));
    }
    CHECK(available == 2);
    ANSWERS(MEMLOCK_OK, memlock_permit_release(extended));
    memlock_semaphore_close(semaphore);
}

static void a_bare_permit_stays_held_until_its_release_is_certain(void) {
    ANSWERS(MEMLOCK_OK, semaphore_set_up("bare", 1, 60));
    ANSWERS(MEMLOCK_OK, semaphore_acquire("bare", 30));
    freeze();
    CHECK(semaphore_release("bare") < 0);
    CHECK(semaphore_release("bare") < 0);
    thaw();
    ANSWERS(MEMLOCK_OK, semaphore_release("bare"));
    ANSWERS(MEMLOCK_NOT_HELD, semaphore_release("bare"));
    ANSWERS(MEMLOCK_OK, semaphore_acquire_nonblock("bare", 30));
    ANSWERS(MEMLOCK_OK, semaphore_release("bare"));
}

static void a_bare_lock_stays_held_until_its_unlock_is_certain(void) {
    ANSWERS(MEMLOCK_OK, mutex_lock("bare", 30));
    freeze();
    CHECK(mutex_unlock("bare") < 0);
    CHECK(mutex_unlock("bare") < 0);
    thaw();
    /* Even if one of the two above was carried out after all: then it was not lost, but unlocked. */
    ANSWERS(MEMLOCK_OK, mutex_unlock("bare"));
    ANSWERS(MEMLOCK_NOT_HELD, mutex_unlock("bare"));
    CHECK(!plain_has("lock:bare"));
}

static void an_extension_that_nobody_confirms_is_not_counted_on(void) {
    memlock_lock *lock;
    int64_t before, after;
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, "extended", 30000, 0, &lock));
    freeze();
    ANSWERS(MEMLOCK_OK, memlock_lock_remaining_ms(lock, &before));
    CHECK(memlock_lock_extend(lock, 600000) < 0);
    ANSWERS(MEMLOCK_OK, memlock_lock_remaining_ms(lock, &after));
    CHECK(after > 0 && after <= before);
    thaw();
    while (memlock_lock_extend(lock, 60000) != MEMLOCK_OK) check_pause_ms(10);
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
}

static void *wait_for_the_dead(void *unused) {
    (void)unused;
    memlock_lock *lock;
    const int answer = memlock_mutex_lock(client, "taken", 30000, -1, &lock);
    CHECK((answer == MEMLOCK_UNREACHABLE || answer == MEMLOCK_UNKNOWN) && lock == NULL);
    return NULL;
}

/* The last test: it kills the server. */
static void a_dead_server_ends_every_wait_and_no_process(void) {
    memlock_lock *lock;
    memlock_semaphore *semaphore;
    memlock_permit *permit;
    CHECK(plain_add("lock:taken", 60));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(client, "held", 1, 30000, &semaphore));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire(semaphore, 1, 0, &permit));
    ANSWERS(MEMLOCK_OK, semaphore_acquire("bare", 30));
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, "held", 30000, 0, &lock));
    ANSWERS(MEMLOCK_OK, mutex_lock("bare", 30));
    const pthread_t waiter = check_start(wait_for_the_dead, NULL);
    check_pause_ms(50);
    CHECK(kill(check_server(), SIGKILL) == 0);
    check_join(waiter);
    /* The first of these writes into a connection whose other end is gone: SIGPIPE would end us here. */
    CHECK(memlock_lock_extend(lock, 30000) < 0);
    CHECK(memlock_unlock(lock) < 0);
    CHECK(mutex_unlock("bare") < 0);
    ANSWERS(MEMLOCK_UNREACHABLE, mutex_unlock("bare"));
    ANSWERS(MEMLOCK_UNREACHABLE, mutex_lock("other", 30));
    CHECK(memlock_permit_extend(permit, 30000) < 0);
    CHECK(memlock_permit_release(permit) < 0);
    memlock_semaphore_close(semaphore);
    CHECK(semaphore_release("bare") < 0);
    ANSWERS(MEMLOCK_UNREACHABLE, semaphore_set_up("other", 1, 30));
    ANSWERS(MEMLOCK_UNREACHABLE, semaphore_acquire("other", 30));
    ANSWERS(MEMLOCK_UNREACHABLE, semaphore_acquire_nonblock("other", 30));
    ANSWERS(MEMLOCK_UNREACHABLE, semaphore_tear_down("other"));
    ANSWERS(MEMLOCK_UNREACHABLE, distinct_list_set_up("other", 30));
    ANSWERS(MEMLOCK_UNREACHABLE, distinct_list_insert("other", "key"));
    ANSWERS(MEMLOCK_UNREACHABLE, distinct_list_tear_down("other"));
}

static void dropping_many_handles_waits_once_for_a_server_that_hangs(void) {
    enum { MANY = 20 };
    memlock_client *own = impatient(0);
    memlock_semaphore *semaphore;
    memlock_lock *locks[MANY], *renewed[MANY];
    memlock_permit *permits[MANY];
    char name[32];
    struct check_watch watch;
    int number;
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(own, "dropped", MANY, 30000, &semaphore));
    for (number = 0; number < MANY; number++) {
        snprintf(name, sizeof name, "dropped %d", number);
        ANSWERS(MEMLOCK_OK, memlock_mutex_lock(own, name, 30000, 0, &locks[number]));
        snprintf(name, sizeof name, "renewed %d", number);
        ANSWERS(MEMLOCK_OK, memlock_mutex_lock(own, name, 30000, 0, &renewed[number]));
        ANSWERS(MEMLOCK_OK, memlock_lock_renew(renewed[number], -1, NULL, NULL));
        ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire(semaphore, 1, 0, &permits[number]));
    }
    freeze();
    check_watch_start(&watch);
    for (number = 0; number < MANY; number++) {
        memlock_lock_drop(locks[number]);
        memlock_lock_drop(renewed[number]);
        memlock_permit_drop(permits[number]);
    }
    CHECK(check_watch_end_ms(&watch) < 6000);
    thaw();
    memlock_lock_drop(NULL);
    memlock_permit_drop(NULL);
    /* A call is tried, and finds the server there again. */
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(own, "another", 30000, 10000, &locks[0]));
    memlock_lock_drop(locks[0]);
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(own, "another", 30000, 0, &locks[0]));
    ANSWERS(MEMLOCK_OK, memlock_unlock(locks[0]));
    memlock_semaphore_close(semaphore);
    memlock_client_close(own);
}

int main(void) {
    char url[256];
    snprintf(url, sizeof url, "memcached://127.0.0.1:%d?io_timeout=1s", plain_port());
    setenv("MEMLOCK_URL", url, 1);
    client = impatient(0);
    RUN(a_closed_port_is_unreachable);
    RUN(a_silent_port_is_unreachable_too);
    RUN(what_a_frozen_server_did_is_unknown_and_mended_later);
    RUN(dropping_many_handles_waits_once_for_a_server_that_hangs);
    RUN(permits_that_a_frozen_server_gave_come_back);
    RUN(a_bare_permit_stays_held_until_its_release_is_certain);
    RUN(a_bare_lock_stays_held_until_its_unlock_is_certain);
    RUN(an_extension_that_nobody_confirms_is_not_counted_on);
    RUN(a_dead_server_ends_every_wait_and_no_process);
    memlock_client_close(client);
    return 0;
}
