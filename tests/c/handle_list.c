/* The distinct list by handle: ids, batches, walks, sessions. */

#include "check.h"
#include "memcached_text.h"

enum { MANY = 2500 };

static memlock_client *client;

static memlock_list *fresh(const char *session) {
    memlock_list *list = NULL;
    ANSWERS(MEMLOCK_OK, memlock_list_set_up(client, session, 60000, &list));
    CHECK(list != NULL);
    return list;
}

static void done_with(memlock_list *list) {
    ANSWERS(MEMLOCK_OK, memlock_list_tear_down(list));
    memlock_list_close(list);
}

static uint64_t count(memlock_list *list) {
    uint64_t number = (uint64_t)-1;
    ANSWERS(MEMLOCK_OK, memlock_list_count(list, &number));
    return number;
}

static void a_duplicate_is_told_the_first_ones_id(void) {
    memlock_list *list = fresh("ids"), *other;
    uint64_t id = 0;
    ANSWERS(MEMLOCK_EXISTS, memlock_list_set_up(client, "ids", 60000, &other));
    CHECK(other != NULL && count(list) == 0);
    ANSWERS(MEMLOCK_OK, memlock_list_insert(list, "one", 3, &id));
    CHECK(id == 1);
    ANSWERS(MEMLOCK_OK, memlock_list_insert(other, "two", 3, &id));
    CHECK(id == 2);
    REFUSES(MEMLOCK_DUPLICATE, memlock_list_insert(other, "one", 3, &id));
    CHECK(id == 1);
    REFUSES(MEMLOCK_DUPLICATE, memlock_list_insert(list, "two", 3, NULL));
    ANSWERS(MEMLOCK_OK, memlock_list_id(list, "two", 3, &id));
    CHECK(id == 2);
    ANSWERS(MEMLOCK_OK, memlock_list_id(list, "three", 5, &id));
    CHECK(id == 0);
    CHECK(count(list) == 2 && count(other) == 2);
    memlock_list_close(other);
    done_with(list);
}

static void keys_are_any_bytes(void) {
    static char longest[65537];
    memset(longest, 'k', sizeof longest);
    const memlock_bytes keys[] = {
        {"\0", 1}, {"\0\0", 2}, {"a\0b", 3}, {"a\0c", 3}, {"a", 1}, {" ", 1}, {"\r\n", 2}, {"\xff\xfe", 2},
        {"%00", 3}, {"\r\nflush_all\r\n", 13}, {longest, 65536}, {longest, 200}, {longest, 201},
    };
    const size_t many = sizeof keys / sizeof *keys;
    memlock_list *list = fresh("bytes");
    uint64_t id;
    for (size_t i = 0; i < many; i++) {
        ANSWERS(MEMLOCK_OK, memlock_list_insert(list, keys[i].data, keys[i].len, &id));
        CHECK(id == i + 1);
    }
    for (size_t i = 0; i < many; i++) {
        ANSWERS(MEMLOCK_DUPLICATE, memlock_list_insert(list, keys[i].data, keys[i].len, &id));
        CHECK(id == i + 1);
    }
    memlock_walk *walk;
    ANSWERS(MEMLOCK_OK, memlock_list_walk(list, &walk));
    const char *key;
    size_t length;
    for (size_t i = 0; i < many; i++) {
        ANSWERS(MEMLOCK_OK, memlock_walk_next(walk, &id, &key, &length));
        CHECK(id == i + 1 && length == keys[i].len && memcmp(key, keys[i].data, length) == 0);
    }
    ANSWERS(MEMLOCK_OK, memlock_walk_next(walk, &id, &key, &length));
    CHECK(key == NULL && length == 0);
    memlock_walk_close(walk);
    ANSWERS(MEMLOCK_INVALID, memlock_list_insert(list, "", 0, &id));
    ANSWERS(MEMLOCK_INVALID, memlock_list_insert(list, longest, 65537, &id));
    ANSWERS(MEMLOCK_INVALID, memlock_list_id(list, "", 0, &id));
    CHECK(count(list) == many);
    done_with(list);
}

/* Key i of the batch below; every fifth repeats one from before. */
static int number_of(int i) { return i % 5 == 4 ? i / 5 : i; }

static void a_batch_answers_each_key_in_its_order(void) {
    static char text[MANY][16];
    static memlock_bytes keys[MANY];
    static memlock_insertion done[MANY];
    static uint64_t ids[MANY];
    memlock_list *list = fresh("batch");
    for (int i = 0; i < MANY; i++) {
        keys[i].len = (size_t)snprintf(text[i], sizeof text[i], "key %d", number_of(i));
        keys[i].data = text[i];
    }
    ANSWERS(MEMLOCK_OK, memlock_list_insert_many(list, keys, MANY, done));
    uint64_t firsts = 0;
    for (int i = 0; i < MANY; i++) {
        const bool first = ids[number_of(i)] == 0;
        ANSWERS(first ? MEMLOCK_OK : MEMLOCK_DUPLICATE, done[i].answer);
        if (first) ids[number_of(i)] = done[i].id, firsts++;
        CHECK(done[i].id != 0 && done[i].id == ids[number_of(i)]);
    }
    CHECK(count(list) == firsts);
    ANSWERS(MEMLOCK_OK, memlock_list_insert_many(list, keys, MANY, done));
    for (int i = 0; i < MANY; i++) {
        REFUSES(MEMLOCK_DUPLICATE, done[i].answer);
        CHECK(done[i].id == ids[number_of(i)]);
    }
    CHECK(count(list) == firsts);
    done_with(list);
}

static void a_walk_goes_by_ids_and_ends_where_it_began(void) {
    memlock_list *list = fresh("walk");
    char key[16];
    for (int i = 1; i <= 600; i++) {
        const int length = snprintf(key, sizeof key, "key %d", i);
        ANSWERS(MEMLOCK_OK, memlock_list_insert(list, key, (size_t)length, NULL));
    }
    memlock_walk *walk;
    ANSWERS(MEMLOCK_OK, memlock_list_walk(list, &walk));
    ANSWERS(MEMLOCK_OK, memlock_list_insert(list, "late", 4, NULL));
    memlock_list_close(list);
    uint64_t id = 0;
    const char *found;
    size_t length;
    for (uint64_t expected = 1; expected <= 600; expected++) {
        ANSWERS(MEMLOCK_OK, memlock_walk_next(walk, &id, &found, &length));
        snprintf(key, sizeof key, "key %d", (int)expected);
        CHECK(id == expected && length == strlen(key) && memcmp(found, key, length) == 0);
    }
    for (int i = 0; i < 3; i++) {
        ANSWERS(MEMLOCK_OK, memlock_walk_next(walk, &id, &found, &length));
        CHECK(found == NULL && id == 0 && length == 0);
    }
    memlock_walk_close(walk);
}

static void a_walk_can_be_left_early(void) {
    memlock_list *list = fresh("left");
    ANSWERS(MEMLOCK_OK, memlock_list_insert(list, "a", 1, NULL));
    ANSWERS(MEMLOCK_OK, memlock_list_insert(list, "b", 1, NULL));
    memlock_walk *walk;
    uint64_t id;
    const char *key;
    size_t length;
    ANSWERS(MEMLOCK_OK, memlock_list_walk(list, &walk));
    ANSWERS(MEMLOCK_OK, memlock_walk_next(walk, &id, &key, &length));
    memlock_walk_close(walk);
    done_with(list);
}

static void without_a_session_everything_is_not_found(void) {
    memlock_list *list;
    memlock_walk *walk = NULL;
    memlock_bytes key = {"key", 3};
    memlock_insertion done = {77, 77};
    uint64_t number;
    ANSWERS(MEMLOCK_OK, memlock_list_open(client, "nowhere", &list));
    for (int round = 0; round < 2; round++) {
        ANSWERS(MEMLOCK_NOT_FOUND, memlock_list_insert(list, "key", 3, &number));
        ANSWERS(MEMLOCK_NOT_FOUND, memlock_list_insert_many(list, &key, 1, &done));
        CHECK(done.id == 77 && done.answer == 77);
        ANSWERS(MEMLOCK_NOT_FOUND, memlock_list_id(list, "key", 3, &number));
        ANSWERS(MEMLOCK_NOT_FOUND, memlock_list_count(list, &number));
        ANSWERS(MEMLOCK_NOT_FOUND, memlock_list_walk(list, &walk));
        CHECK(walk == NULL);
        ANSWERS(MEMLOCK_NOT_FOUND, memlock_list_tear_down(list));
        memlock_list_close(list);
        /* The second time by a handle whose session was torn down. */
        list = fresh("torn");
        ANSWERS(MEMLOCK_OK, memlock_list_insert(list, "key", 3, NULL));
        ANSWERS(MEMLOCK_OK, memlock_list_tear_down(list));
    }
    memlock_list_close(list);
}

static void a_handle_that_set_up_stays_with_its_session_and_an_open_one_follows(void) {
    memlock_list *bound = fresh("generations"), *following, *next;
    ANSWERS(MEMLOCK_OK, memlock_list_open(client, "generations", &following));
    ANSWERS(MEMLOCK_OK, memlock_list_insert(following, "old", 3, NULL));
    ANSWERS(MEMLOCK_OK, memlock_list_tear_down(bound));
    next = fresh("generations");
    ANSWERS(MEMLOCK_NOT_FOUND, memlock_list_insert(bound, "late", 4, NULL));
    ANSWERS(MEMLOCK_NOT_FOUND, memlock_list_tear_down(bound));
    ANSWERS(MEMLOCK_OK, memlock_list_insert(following, "old", 3, NULL));
    CHECK(count(next) == 1 && count(following) == 1);
    memlock_list_close(bound);
    memlock_list_close(following);
    done_with(next);
}

static void a_walk_whose_session_ends_says_so(void) {
    memlock_list *list = fresh("ends");
    for (int i = 0; i < 300; i++) {
        char key[16];
        const int length = snprintf(key, sizeof key, "%d", i);
        ANSWERS(MEMLOCK_OK, memlock_list_insert(list, key, (size_t)length, NULL));
    }
    memlock_walk *walk;
    uint64_t id;
    const char *key;
    size_t length;
    ANSWERS(MEMLOCK_OK, memlock_list_walk(list, &walk));
    ANSWERS(MEMLOCK_OK, memlock_walk_next(walk, &id, &key, &length));
    done_with(list);
    /* What was read ahead still comes; then not the end, as if those had been all. */
    int answer = MEMLOCK_OK;
    while (answer == MEMLOCK_OK) {
        answer = memlock_walk_next(walk, &id, &key, &length);
        CHECK(answer != MEMLOCK_OK || (key != NULL && id < 300));
    }
    ANSWERS(MEMLOCK_NOT_FOUND, answer);
    CHECK(key == NULL && id == 0 && length == 0);
    memlock_walk_close(walk);
}

static void a_list_outlives_its_client(void) {
    memlock_client *closed;
    memlock_list *list;
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &closed));
    ANSWERS(MEMLOCK_OK, memlock_list_set_up(closed, "outlives", 60000, &list));
    memlock_client_close(closed);
    ANSWERS(MEMLOCK_OK, memlock_list_insert(list, "key", 3, NULL));
    done_with(list);
}

int main(void) {
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &client));
    RUN(a_duplicate_is_told_the_first_ones_id);
    RUN(keys_are_any_bytes);
    RUN(a_batch_answers_each_key_in_its_order);
    RUN(a_walk_goes_by_ids_and_ends_where_it_began);
    RUN(a_walk_can_be_left_early);
    RUN(without_a_session_everything_is_not_found);
    RUN(a_handle_that_set_up_stays_with_its_session_and_an_open_one_follows);
    RUN(a_walk_whose_session_ends_says_so);
    RUN(a_list_outlives_its_client);
    memlock_client_close(client);
    return 0;
}
