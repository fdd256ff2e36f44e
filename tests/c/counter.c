/* The counter without leases: beside plain clients that use the same item. */

#include "check.h"
#include "queue.h"

enum { THREADS = 6, TURNS = 15 };

static memlock_client *client;

static uint64_t available(const char *key) {
    uint64_t free_ones = 0;
    ANSWERS(MEMLOCK_OK, memlock_counter_available(client, key, &free_ones));
    return free_ones;
}

static void it_is_set_up_once_and_what_is_there_stays(void) {
    ANSWERS(MEMLOCK_OK, memlock_counter_set_up(client, "once", 2));
    ANSWERS(MEMLOCK_EXISTS, memlock_counter_set_up(client, "once", 5));
    CHECK(available("once") == 2);
    CHECK(plain_has("once"));
    ANSWERS(MEMLOCK_OK, memlock_counter_set_up(client, "most", UINT64_MAX));
    CHECK(available("most") == UINT64_MAX);
}

static void it_counts_down_to_none_and_up_again(void) {
    ANSWERS(MEMLOCK_OK, memlock_counter_set_up(client, "counts", 2));
    ANSWERS(MEMLOCK_OK, memlock_counter_try(client, "counts"));
    ANSWERS(MEMLOCK_OK, memlock_counter_retry(client, "counts", 0, NULL));
    ANSWERS(MEMLOCK_BUSY, memlock_counter_try(client, "counts"));
    ANSWERS(MEMLOCK_BUSY, memlock_counter_retry(client, "counts", 0, NULL));
    ANSWERS(MEMLOCK_BUSY, memlock_counter_park(client, "counts", 0, 0, NULL));
    ANSWERS(MEMLOCK_TIMED_OUT, memlock_counter_retry(client, "counts", 20, NULL));
    ANSWERS(MEMLOCK_TIMED_OUT, memlock_counter_park(client, "counts", 0, 20, NULL));
    CHECK(queue_length_at("counts") == 0 && available("counts") == 0);
    ANSWERS(MEMLOCK_OK, memlock_counter_release(client, "counts"));
    ANSWERS(MEMLOCK_OK, memlock_counter_park(client, "counts", INT64_MIN, 0, NULL));
    /* A second release adds a permit: that cannot be noticed. */
    for (int i = 0; i < 3; i++) ANSWERS(MEMLOCK_OK, memlock_counter_release(client, "counts"));
    CHECK(available("counts") == 3);
}

static void a_plain_client_takes_part(void) {
    CHECK(strcmp(plain("set plain 7 0 1\r\n1\r\n"), "STORED") == 0);
    ANSWERS(MEMLOCK_OK, memlock_counter_try(client, "plain"));
    /* With its flags, by which plain clients know a value's type. */
    CHECK(strcmp(plain("get plain\r\n"), "VALUE plain 7 1") == 0);
    ANSWERS(MEMLOCK_BUSY, memlock_counter_try(client, "plain"));
    CHECK(strcmp(plain("incr plain 1\r\n"), "1") == 0);
    ANSWERS(MEMLOCK_OK, memlock_counter_retry(client, "plain", -1, NULL));
    CHECK(available("plain") == 0);
}

static void without_an_item_nothing_is_found(void) {
    uint64_t free_ones = 77;
    ANSWERS(MEMLOCK_CONFIG, memlock_init("the last error"));
    ANSWERS(MEMLOCK_NOT_FOUND, memlock_counter_try(client, "nowhere"));
    ANSWERS(MEMLOCK_NOT_FOUND, memlock_counter_retry(client, "nowhere", -1, NULL));
    ANSWERS(MEMLOCK_NOT_FOUND, memlock_counter_park(client, "nowhere", 0, -1, NULL));
    ANSWERS(MEMLOCK_NOT_FOUND, memlock_counter_release(client, "nowhere"));
    ANSWERS(MEMLOCK_NOT_FOUND, memlock_counter_available(client, "nowhere", &free_ones));
    CHECK(free_ones == 77 && !plain_has("nowhere"));
    SAYS("There is no counter \"nowhere\" on memcached at ");
}

static void what_is_no_number_is_left_alone(void) {
    uint64_t free_ones;
    CHECK(strcmp(plain("set words 0 0 5\r\nwords\r\n"), "STORED") == 0);
    ANSWERS(MEMLOCK_PROTOCOL, memlock_counter_try(client, "words"));
    SAYS("words");
    ANSWERS(MEMLOCK_PROTOCOL, memlock_counter_park(client, "words", 0, -1, NULL));
    ANSWERS(MEMLOCK_PROTOCOL, memlock_counter_release(client, "words"));
    ANSWERS(MEMLOCK_PROTOCOL, memlock_counter_available(client, "words", &free_ones));
    CHECK(strcmp(plain("get words\r\n"), "VALUE words 0 5") == 0);
}

static void what_no_item_can_be_called_is_invalid(void) {
    char key[512];
    uint64_t free_ones;
    memset(key, 'x', sizeof key - 1);
    key[sizeof key - 1] = '\0';
    const char *bad[] = {"", " ", "a b", "a\r\nflush_all\r\n", "\xff", key};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ANSWERS(MEMLOCK_INVALID, memlock_counter_set_up(client, bad[i], 1));
        ANSWERS(MEMLOCK_INVALID, memlock_counter_try(client, bad[i]));
        ANSWERS(MEMLOCK_INVALID, memlock_counter_retry(client, bad[i], 0, NULL));
        ANSWERS(MEMLOCK_INVALID, memlock_counter_park(client, bad[i], 0, 0, NULL));
        ANSWERS(MEMLOCK_INVALID, memlock_counter_release(client, bad[i]));
        ANSWERS(MEMLOCK_INVALID, memlock_counter_available(client, bad[i], &free_ones));
    }
    const int64_t waits[] = {-2, INT64_MIN};
    for (size_t i = 0; i < 2; i++) {
        ANSWERS(MEMLOCK_INVALID, memlock_counter_retry(client, "once", waits[i], NULL));
        ANSWERS(MEMLOCK_INVALID, memlock_counter_park(client, "once", 0, waits[i], NULL));
        SAYS("timeout_ms");
    }
}

struct waiter {
    const char *key;
    int64_t priority;
    memlock_wait *wait;
    int answer, place;
    pthread_t thread;
};

static _Atomic int places;

static void *park(void *argument) {
    struct waiter *self = (struct waiter *)argument;
    self->answer = memlock_counter_park(client, self->key, self->priority, -1, self->wait);
    if (self->answer != MEMLOCK_OK) return NULL;
    self->place = ++places;
    ANSWERS(MEMLOCK_OK, memlock_counter_release(client, self->key));
    return NULL;
}

static void *retry(void *argument) {
    struct waiter *self = (struct waiter *)argument;
    self->answer = memlock_counter_retry(client, self->key, -1, self->wait);
    return NULL;
}

/* Whether the last one was served first, and none of them had to find out by itself. */
static bool are_woken_by_priority(void) {
    struct waiter waiters[] = {
        {.key = "parked", .priority = -1},
        {.key = "parked"},
        {.key = "parked", .priority = 9},
    };
    places = 0;
    for (int i = 0; i < 3; i++) {
        waiters[i].thread = check_start(park, &waiters[i]);
        QUEUE_AT_BECOMES(i + 1, "parked");
    }
    struct check_watch watch;
    check_watch_start(&watch);
    ANSWERS(MEMLOCK_OK, memlock_counter_release(client, "parked"));
    int order = 0;
    for (int i = 0; i < 3; i++) {
        check_join(waiters[i].thread);
        ANSWERS(MEMLOCK_OK, waiters[i].answer);
        order = order * 10 + waiters[i].place;
    }
    const long long took = check_watch_end_ms(&watch);
    CHECK(available("parked") == 1);
    EVENTUALLY(queue_length_at("parked") == 0);
    ANSWERS(MEMLOCK_OK, memlock_counter_try(client, "parked"));
    return order == 321 && took < TOLD_MS;
}

/* A parked waiter inspects now and then by itself, since plain clients wake no waiter, and may find the permit that another
 * one is being woken for: now and then, on a busy machine often, but not always. */
static void parked_waiters_are_woken_by_priority(void) {
    ANSWERS(MEMLOCK_OK, memlock_counter_set_up(client, "parked", 0));
    for (int tries = 0; !are_woken_by_priority(); tries++) CHECK(tries < 12);
}

static void a_wait_ends_with_its_handle(void) {
    memlock_client *other;
    memlock_wait *theirs;
    struct waiter parked = {.key = "cancelled"}, trying;
    ANSWERS(MEMLOCK_OK, memlock_counter_set_up(client, "cancelled", 0));
    ANSWERS(MEMLOCK_OK, memlock_wait_open(client, &parked.wait));
    trying = parked;
    parked.thread = check_start(park, &parked);
    trying.thread = check_start(retry, &trying);
    QUEUE_AT_BECOMES(1, "cancelled");
    ANSWERS(MEMLOCK_OK, memlock_wait_cancel(parked.wait));
    check_join(parked.thread);
    check_join(trying.thread);
    ANSWERS(MEMLOCK_INTERRUPTED, parked.answer);
    ANSWERS(MEMLOCK_INTERRUPTED, trying.answer);
    CHECK(queue_length_at("cancelled") == 0);
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &other));
    ANSWERS(MEMLOCK_OK, memlock_wait_open(other, &theirs));
    ANSWERS(MEMLOCK_INVALID, memlock_counter_retry(client, "cancelled", 0, theirs));
    ANSWERS(MEMLOCK_INVALID, memlock_counter_park(client, "cancelled", 0, 0, theirs));
    memlock_wait_close(theirs);
    memlock_client_close(other);
    memlock_wait_close(parked.wait);
}

static _Atomic int inside;

static void *take_turns(void *number) {
    for (int i = 0; i < TURNS; i++) {
        const int answer = *(int *)number % 2 == 0 ? memlock_counter_retry(client, "shared", -1, NULL)
                                                   : memlock_counter_park(client, "shared", 0, -1, NULL);
        ANSWERS(MEMLOCK_OK, answer);
        CHECK(++inside <= 2);
        inside--;
        ANSWERS(MEMLOCK_OK, memlock_counter_release(client, "shared"));
    }
    return NULL;
}

static void no_more_than_there_are_permits_are_inside(void) {
    pthread_t threads[THREADS];
    static int numbers[THREADS];
    ANSWERS(MEMLOCK_OK, memlock_counter_set_up(client, "shared", 2));
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        threads[i] = check_start(take_turns, &numbers[i]);
    }
    for (int i = 0; i < THREADS; i++) check_join(threads[i]);
    CHECK(available("shared") == 2);
}

int main(void) {
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &client));
    RUN(it_is_set_up_once_and_what_is_there_stays);
    RUN(it_counts_down_to_none_and_up_again);
    RUN(a_plain_client_takes_part);
    RUN(without_an_item_nothing_is_found);
    RUN(what_is_no_number_is_left_alone);
    RUN(what_no_item_can_be_called_is_invalid);
    RUN(parked_waiters_are_woken_by_priority);
    RUN(a_wait_ends_with_its_handle);
    RUN(no_more_than_there_are_permits_are_inside);
    memlock_client_close(client);
    return 0;
}
