/* Waiting in the queue: the order, the hand-over, and what is left in the queue. */

#include "check.h"
#include "memcached_text.h"
#include "queue.h"

static memlock_client *client;

static memlock_lock *locked_by(memlock_client *whose, const char *name, int64_t wait_ms) {
    memlock_lock *lock = NULL;
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(whose, name, 30000, wait_ms, &lock));
    return lock;
}

static uint64_t fence(const memlock_lock *lock) {
    uint64_t number = 0;
    ANSWERS(MEMLOCK_OK, memlock_lock_fence(lock, &number));
    return number;
}

/* What is guarded: never two inside, and fences that rise. */
struct room {
    const char *name;
    _Atomic int inside, passed;
    _Atomic uint64_t fence;
};

static void pass(struct room *room, memlock_lock *lock) {
    CHECK_SAFE(room->inside++ == 0);
    CHECK_SAFE(fence(lock) > room->fence);
    room->fence = fence(lock);
    room->passed++;
    CHECK_SAFE(room->inside-- == 1);
}

enum { IN_LINE = 12 };

struct follower {
    struct queue_thread self;
    memlock_client *client;
    struct room *room;
    int number;
};

static void *follow(void *argument) {
    struct follower *follower = argument;
    queue_here(&follower->self);
    memlock_lock *lock = locked_by(follower->client, follower->room->name, -1);
    CHECK(follower->room->passed == follower->number);
    pass(follower->room, lock);
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    return NULL;
}

static void starts_to_follow(struct follower *follower, memlock_client *whose, struct room *room, int number) {
    *follower = (struct follower){.client = whose, .room = room, .number = number};
    follower->self.thread = check_start(follow, follower);
    EVENTUALLY(queue_sleeps(&follower->self));
}

static void threads_of_one_client_come_in_their_order(void) {
    for (int round = 0; round < 10; round++) {
        struct follower followers[IN_LINE];
        struct room room = {.name = "order"};
        memlock_lock *lock = locked_by(client, "order", 0);
        for (int i = 0; i < IN_LINE; i++) starts_to_follow(&followers[i], client, &room, i);
        struct check_watch watch;
        check_watch_start(&watch);
        ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
        for (int i = 0; i < IN_LINE; i++) check_join(followers[i].self.thread);
        /* Each is notified. */
        CHECK(check_watch_end_ms(&watch) < TOLD_MS);
        CHECK(room.passed == IN_LINE);
        CHECK(queue_length("order") == 0 && !plain_has("lock:order"));
    }
}

/* The place in the queue that a client's threads shared must go with the last of them. */
static void after_the_last_thread_of_a_client_comes_the_next_client(void) {
    memlock_client *other;
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &other));
    for (int threads = 1; threads < 5; threads++) {
        struct follower followers[5];
        struct room room = {.name = "next"};
        memlock_lock *lock = locked_by(client, "next", 0);
        for (int i = 0; i < threads; i++) starts_to_follow(&followers[i], client, &room, i);
        QUEUE_BECOMES(1, "next");
        starts_to_follow(&followers[threads], other, &room, threads);
        QUEUE_BECOMES(2, "next");
        struct check_watch watch;
        check_watch_start(&watch);
        ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
        for (int i = 0; i <= threads; i++) check_join(followers[i].self.thread);
        CHECK(check_watch_end_ms(&watch) < TOLD_MS);
        CHECK(queue_length("next") == 0 && !plain_has("lock:next"));
    }
    memlock_client_close(other);
}

enum { MANY = 64, ROUNDS = 4 };

static void *pass_often(void *room) {
    for (int i = 0; i < ROUNDS; i++) {
        memlock_lock *lock = locked_by(client, ((struct room *)room)->name, -1);
        pass(room, lock);
        ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    }
    return NULL;
}

static void many_threads_share_one_mutex(void) {
    pthread_t threads[MANY];
    struct room room = {.name = "many"};
    for (int i = 0; i < MANY; i++) threads[i] = check_start(pass_often, &room);
    for (int i = 0; i < MANY; i++) check_join(threads[i]);
    CHECK(room.passed == MANY * ROUNDS);
    CHECK(queue_length("many") == 0 && !plain_has("lock:many"));
}

enum { TURNS = 100 };

struct player {
    memlock_client *client;
    struct room *room;
    int turns;
};

/* Releases only when the other one waits, so that every time is a hand-over. */
static void *play(void *argument) {
    struct player *player = argument;
    struct room *const room = player->room;
    for (bool over = false; !over; player->turns++) {
        memlock_lock *lock = locked_by(player->client, room->name, -1);
        over = room->passed >= TURNS;
        pass(room, lock);
        if (room->passed <= TURNS) EVENTUALLY(queue_length(room->name) > 0);
        ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    }
    return NULL;
}

static void two_clients_hand_over_to_each_other(void) {
    struct room room = {.name = "two"};
    struct player players[2];
    pthread_t threads[2];
    struct check_watch watch;
    check_watch_start(&watch);
    for (int i = 0; i < 2; i++) {
        players[i] = (struct player){.room = &room};
        ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &players[i].client));
        threads[i] = check_start(play, &players[i]);
    }
    for (int i = 0; i < 2; i++) check_join(threads[i]);
    /* By a message, and not by asking, which would take 100 ms and more. */
    CHECK(check_watch_end_ms(&watch) < TURNS * 80);
    for (int i = 0; i < 2; i++) {
        CHECK(players[i].turns > TURNS / 4);
        memlock_client_close(players[i].client);
    }
    CHECK(queue_length("two") == 0 && !plain_has("lock:two"));
}

struct visitor {
    struct queue_thread self;
    memlock_client *client;
    int64_t wait_ms;
    _Atomic bool ended;
};

static void *time_out(void *argument) {
    struct visitor *visitor = argument;
    memlock_lock *lock;
    queue_here(&visitor->self);
    struct check_watch watch;
    check_watch_start(&watch);
    const long long began = check_now_ms();
    ANSWERS(MEMLOCK_TIMED_OUT, memlock_mutex_lock(visitor->client, "late", 30000, visitor->wait_ms, &lock));
    visitor->ended = true;
    /* A clock of whole milliseconds may show one less. */
    CHECK(lock == NULL && check_now_ms() - began >= visitor->wait_ms - 1);
    CHECK(check_watch_end_ms(&watch) < visitor->wait_ms + 1000);
    return NULL;
}

static void starts_to_time_out(struct visitor *visitor, memlock_client *whose, int64_t wait_ms) {
    *visitor = (struct visitor){.client = whose, .wait_ms = wait_ms};
    visitor->self.thread = check_start(time_out, visitor);
    /* On a busy machine the wait may be over before it was seen. */
    EVENTUALLY(visitor->ended || queue_sleeps(&visitor->self));
}

/* At the head of the queue, behind another thread, and behind another client. */
static void a_wait_lasts_as_long_as_it_was_told_wherever_it_stands(void) {
    const int64_t limits[] = {50, 400};
    memlock_client *other;
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &other));
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        memlock_lock *lock = locked_by(other, "late", 0);
        struct visitor alone = {.client = client, .wait_ms = limits[i]}, first, second, third;
        time_out(&alone);
        CHECK(queue_length("late") == 0);
        /* Longer than the others, also on a busy machine. */
        starts_to_time_out(&first, client, limits[i] + 1500);
        QUEUE_BECOMES(1, "late");
        starts_to_time_out(&second, client, limits[i]);
        starts_to_time_out(&third, other, limits[i]);
        check_join(second.self.thread);
        check_join(third.self.thread);
        /* Those that gave up have left the queue, and the first one still stands in it. */
        CHECK(queue_length("late") == 1);
        check_join(first.self.thread);
        CHECK(queue_length("late") == 0);
        ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
        CHECK(!plain_has("lock:late"));
    }
    memlock_client_close(other);
}

/* A thread that gives up its place in the queue to another must not remove it. */
static void the_next_one_gets_the_lock_although_the_first_gave_up(void) {
    struct room room = {.name = "late"};
    struct visitor first;
    struct follower second;
    memlock_lock *lock = locked_by(client, "late", 0);
    starts_to_time_out(&first, client, 100);
    starts_to_follow(&second, client, &room, 0);
    check_join(first.self.thread);
    QUEUE_BECOMES(1, "late");
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    check_join(second.self.thread);
    CHECK(room.passed == 1 && queue_length("late") == 0);
}

int main(void) {
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &client));
    RUN(threads_of_one_client_come_in_their_order);
    RUN(after_the_last_thread_of_a_client_comes_the_next_client);
    RUN(many_threads_share_one_mutex);
    RUN(two_clients_hand_over_to_each_other);
    RUN(a_wait_lasts_as_long_as_it_was_told_wherever_it_stands);
    RUN(the_next_one_gets_the_lock_although_the_first_gave_up);
    memlock_client_close(client);
    return 0;
}
