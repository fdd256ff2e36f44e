/* NULL for every pointer of every function, and what the last error says of it. */

#include "check.h"

static memlock_client *client;
static memlock_list *list;
static memlock_lock *lock;
static memlock_walk *walk;
static memlock_wait *wait;
static memlock_semaphore *semaphore;
static memlock_permit *permit;

/* The call must refuse, and must name the argument that was NULL. */
#define REFUSED(argument, call) (ANSWERS(MEMLOCK_INVALID, call), SAYS(argument))

/* And leaves NULL in the handle, whatever was there. */
#define LEAVES_NULL(handle, argument, call) \
    (handle = (void *)&(handle), REFUSED(argument, call), (handle) == NULL ? (void)0 : FAIL("not NULL: %s", #call))

static void clients_take_no_null(void) {
    memlock_client *opened;
    REFUSED("url", memlock_init(NULL));
    LEAVES_NULL(opened, "url", memlock_client_open(NULL, &opened));
    REFUSED("client", memlock_client_open("memory://null", NULL));
    REFUSED("client", memlock_client_open(NULL, NULL));
    memlock_client_close(NULL);
    /* NULL is the default client here. */
    ANSWERS(MEMLOCK_OK, memlock_client_cancel_waits(NULL));
}

static void mutexes_take_no_null(void) {
    memlock_lock *taken;
    memlock_owner owner;
    int64_t left;
    uint64_t fence;
    char sql[MEMLOCK_SQL_SIZE] = "?";
    LEAVES_NULL(taken, "client", memlock_mutex_lock(NULL, "x", 30000, 0, &taken));
    LEAVES_NULL(taken, "name", memlock_mutex_lock(client, NULL, 30000, 0, &taken));
    REFUSED("lock", memlock_mutex_lock(client, "x", 30000, 0, NULL));
    REFUSED("lock", memlock_unlock(NULL));
    ANSWERS(MEMLOCK_NOT_HELD, memlock_lock_drop(NULL));
    REFUSED("lock", memlock_lock_extend(NULL, 30000));
    REFUSED("lock", memlock_lock_remaining_ms(NULL, &left));
    REFUSED("remaining_ms", memlock_lock_remaining_ms(lock, NULL));
    REFUSED("lock", memlock_lock_fence(NULL, &fence));
    REFUSED("fence", memlock_lock_fence(lock, NULL));
    REFUSED("lock", memlock_lock_release_sql(NULL, sql, sizeof sql));
    ANSWERS(MEMLOCK_INVALID, memlock_lock_release_sql(lock, NULL, sizeof sql));
    ANSWERS(MEMLOCK_CONFIG, memlock_lock_release_sql(lock, sql, sizeof sql));
    CHECK(sql[0] == '\0');
    REFUSED("client", memlock_mutex_owner(NULL, "held", &owner));
    REFUSED("name", memlock_mutex_owner(client, NULL, &owner));
    REFUSED("owner", memlock_mutex_owner(client, "held", NULL));
    REFUSED("client", memlock_mutex_force_unlock(NULL, "held", "token"));
    REFUSED("name", memlock_mutex_force_unlock(client, NULL, "token"));
    REFUSED("token", memlock_mutex_force_unlock(client, "held", NULL));
}

static void waits_take_no_null(void) {
    memlock_wait *opened;
    memlock_lock *taken;
    LEAVES_NULL(opened, "client", memlock_wait_open(NULL, &opened));
    REFUSED("wait", memlock_wait_open(client, NULL));
    REFUSED("wait", memlock_wait_open(NULL, NULL));
    REFUSED("wait", memlock_wait_cancel(NULL));
    memlock_wait_close(NULL);
    LEAVES_NULL(taken, "client", memlock_mutex_lock_wait(NULL, "x", 30000, 0, wait, &taken));
    LEAVES_NULL(taken, "name", memlock_mutex_lock_wait(client, NULL, 30000, 0, wait, &taken));
    REFUSED("lock", memlock_mutex_lock_wait(client, "x", 30000, 0, wait, NULL));
    REFUSED("lock", memlock_mutex_lock_wait(NULL, NULL, 0, -2, NULL, NULL));
    /* NULL is no handle here. */
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock_wait(client, "x", 30000, 0, NULL, &taken));
    ANSWERS(MEMLOCK_OK, memlock_unlock(taken));
    ANSWERS(MEMLOCK_BUSY, memlock_mutex_lock_wait(client, "held", 30000, 0, NULL, &taken));
    ANSWERS(MEMLOCK_TIMED_OUT, memlock_mutex_lock_wait(client, "held", 30000, 1, NULL, &taken));
    CHECK(taken == NULL);
}

static void semaphores_take_no_null(void) {
    memlock_semaphore *opened;
    memlock_permit *taken;
    memlock_holder holder;
    uint32_t number;
    size_t count;
    LEAVES_NULL(opened, "client", memlock_semaphore_open(NULL, "x", 1, 30000, &opened));
    LEAVES_NULL(opened, "name", memlock_semaphore_open(client, NULL, 1, 30000, &opened));
    REFUSED("semaphore", memlock_semaphore_open(client, "x", 1, 30000, NULL));
    LEAVES_NULL(opened, "client", memlock_semaphore_open_with(NULL, "x", 1, 30000, 0, &opened));
    LEAVES_NULL(opened, "name", memlock_semaphore_open_with(client, NULL, 1, 30000, 0, &opened));
    REFUSED("semaphore", memlock_semaphore_open_with(client, "x", 1, 30000, 0, NULL));
    LEAVES_NULL(opened, "mismatch", memlock_semaphore_open_with(client, "x", 1, 30000, -1, &opened));
    LEAVES_NULL(opened, "mismatch", memlock_semaphore_open_with(client, "x", 0, 30000, 3, &opened));
    LEAVES_NULL(taken, "semaphore", memlock_semaphore_acquire(NULL, 1, 0, &taken));
    REFUSED("permit", memlock_semaphore_acquire(semaphore, 1, 0, NULL));
    LEAVES_NULL(taken, "semaphore", memlock_semaphore_acquire_wait(NULL, NULL, 0, wait, &taken));
    REFUSED("permit", memlock_semaphore_acquire_wait(semaphore, NULL, 0, wait, NULL));
    REFUSED("permit", memlock_semaphore_acquire_wait(NULL, NULL, -2, NULL, NULL));
    REFUSED("semaphore", memlock_semaphore_set_up(NULL, 60000));
    REFUSED("semaphore", memlock_semaphore_tear_down(NULL));
    REFUSED("semaphore", memlock_semaphore_resize(NULL, 1));
    REFUSED("semaphore", memlock_semaphore_permits(NULL, &number));
    REFUSED("permits", memlock_semaphore_permits(semaphore, NULL));
    REFUSED("semaphore", memlock_semaphore_available(NULL, &number));
    REFUSED("available", memlock_semaphore_available(semaphore, NULL));
    REFUSED("semaphore", memlock_semaphore_holders(NULL, &holder, 1, &count));
    REFUSED("holders", memlock_semaphore_holders(semaphore, NULL, 1, &count));
    REFUSED("count", memlock_semaphore_holders(semaphore, &holder, 1, NULL));
    memlock_semaphore_close(NULL);
    /* NULL is one permit and no handle here. */
    ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire_wait(semaphore, NULL, 0, NULL, &taken));
    ANSWERS(MEMLOCK_OK, memlock_permit_count(taken, &number));
    CHECK(number == 1);
    ANSWERS(MEMLOCK_OK, memlock_permit_release(taken));
}

static void permits_take_no_null(void) {
    int64_t left;
    uint32_t number;
    REFUSED("permit", memlock_permit_release(NULL));
    ANSWERS(MEMLOCK_NOT_HELD, memlock_permit_drop(NULL));
    REFUSED("permit", memlock_permit_extend(NULL, 30000));
    REFUSED("permit", memlock_permit_remaining_ms(NULL, &left));
    REFUSED("remaining_ms", memlock_permit_remaining_ms(permit, NULL));
    REFUSED("permit", memlock_permit_count(NULL, &number));
    REFUSED("permits", memlock_permit_count(permit, NULL));
    ANSWERS(MEMLOCK_OK, memlock_permit_remaining_ms(permit, &left));
    CHECK(left > 0);
}

static void counters_take_no_null(void) {
    uint64_t number;
    REFUSED("client", memlock_counter_set_up(NULL, "counter", 1));
    REFUSED("key", memlock_counter_set_up(client, NULL, 1));
    REFUSED("client", memlock_counter_try(NULL, "counter"));
    REFUSED("key", memlock_counter_try(client, NULL));
    REFUSED("client", memlock_counter_retry(NULL, "counter", 0, wait));
    REFUSED("key", memlock_counter_retry(client, NULL, 0, wait));
    REFUSED("client", memlock_counter_park(NULL, "counter", 0, 0, wait));
    REFUSED("key", memlock_counter_park(client, NULL, 0, 0, wait));
    REFUSED("client", memlock_counter_release(NULL, "counter"));
    REFUSED("key", memlock_counter_release(client, NULL));
    REFUSED("client", memlock_counter_available(NULL, "counter", &number));
    REFUSED("key", memlock_counter_available(client, NULL, &number));
    REFUSED("available", memlock_counter_available(client, "counter", NULL));
}

static void lists_take_no_null(void) {
    memlock_list *opened;
    memlock_insertion done;
    memlock_bytes key = {"key", 3}, nowhere = {NULL, 3};
    uint64_t number;
    LEAVES_NULL(opened, "client", memlock_list_open(NULL, "x", &opened));
    LEAVES_NULL(opened, "session", memlock_list_open(client, NULL, &opened));
    REFUSED("list", memlock_list_open(client, "x", NULL));
    LEAVES_NULL(opened, "client", memlock_list_set_up(NULL, "x", 60000, &opened));
    LEAVES_NULL(opened, "session", memlock_list_set_up(client, NULL, 60000, &opened));
    REFUSED("list", memlock_list_set_up(client, "x", 60000, NULL));
    REFUSED("list", memlock_list_insert(NULL, "key", 3, &number));
    REFUSED("key", memlock_list_insert(list, NULL, 3, &number));
    REFUSED("key", memlock_list_insert(list, NULL, 0, &number));
    REFUSED("list", memlock_list_insert_many(NULL, &key, 1, &done));
    ANSWERS(MEMLOCK_INVALID, memlock_list_insert_many(list, NULL, 1, &done));
    ANSWERS(MEMLOCK_INVALID, memlock_list_insert_many(list, &key, 1, NULL));
    REFUSED("key", memlock_list_insert_many(list, &nowhere, 1, &done));
    ANSWERS(MEMLOCK_OK, memlock_list_insert_many(list, NULL, 0, NULL));
    REFUSED("list", memlock_list_id(NULL, "key", 3, &number));
    REFUSED("key", memlock_list_id(list, NULL, 3, &number));
    REFUSED("id", memlock_list_id(list, "key", 3, NULL));
    REFUSED("list", memlock_list_count(NULL, &number));
    REFUSED("count", memlock_list_count(list, NULL));
    REFUSED("list", memlock_list_tear_down(NULL));
    memlock_list_close(NULL);
}

static void walks_take_no_null(void) {
    memlock_walk *begun;
    uint64_t id;
    const char *key;
    size_t length;
    LEAVES_NULL(begun, "list", memlock_list_walk(NULL, &begun));
    REFUSED("walk", memlock_list_walk(list, NULL));
    REFUSED("walk", memlock_walk_next(NULL, &id, &key, &length));
    REFUSED("id", memlock_walk_next(walk, NULL, &key, &length));
    REFUSED("key", memlock_walk_next(walk, &id, NULL, &length));
    REFUSED("len", memlock_walk_next(walk, &id, &key, NULL));
    memlock_walk_close(NULL);
    /* None of those took a step. */
    ANSWERS(MEMLOCK_OK, memlock_walk_next(walk, &id, &key, &length));
    CHECK(id == 1 && length == 5 && memcmp(key, "first", 5) == 0);
}

static void what_cannot_be_done_to_an_opened_list_is_invalid(void) {
    memlock_list *opened;
    const int64_t bad[] = {0, 999, -1, INT64_MIN, 31622400001, INT64_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ANSWERS(MEMLOCK_INVALID, memlock_list_set_up(client, "x", bad[i], &opened));
        CHECK(opened == NULL);
    }
    uint64_t number;
    memlock_bytes impossible = {"key", (size_t)-1};
    memlock_insertion done;
    ANSWERS(MEMLOCK_INVALID, memlock_list_insert(list, "key", (size_t)-1, &number));
    ANSWERS(MEMLOCK_INVALID, memlock_list_id(list, "key", (size_t)-1, &number));
    ANSWERS(MEMLOCK_INVALID, memlock_list_insert_many(list, &impossible, 1, &done));
    ANSWERS(MEMLOCK_INVALID, memlock_list_insert_many(list, &impossible, (size_t)-1, &done));
}

static void a_bad_url_is_told_what_would_be_good(void) {
    const struct {
        const char *url, *says;
    } bad[] = {
        {"", "scheme"},
        {"rebus://localhost", "memcached://"},
        {"memcached://", "host"},
        {"memcached://localhost:70000", "port"},
        {"memcached://localhost?nonsense=1", "io_timeout"},
        {"memcached://localhost?notify=nonsense", "notify=off"},
        {"memory://here?notify=nonsense", "notify=off"},
        {"memcached://user:password@localhost", "user"},
        {"memcached://\xff", "UTF-8"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memlock_client *opened;
        ANSWERS(MEMLOCK_CONFIG, memlock_client_open(bad[i].url, &opened));
        SAYS(bad[i].says);
        CHECK(opened == NULL);
    }
}

static void no_error_contains_a_password(void) {
    const char *urls[] = {
        "memcached://user:s3cret@localhost",
        "memcached://localhost?password=a&pool=s3cret",
        "redis://user:s3cret@localhost/x",
        "redis://s3cret@localhost",
        "redis://user:s3cret",
        "redis:user:s3cret%40localhost",
        "redis://user:s3cret\xff@localhost",
        "redis+unix:///socket?password=s3cret&db=x",
        "mysql://user:s3cret@tcp(localhost:3306)/db",
        "postgresql://localhost/db?user=u&password=a%40s3cret&port=x",
        "postgresql+psycopg2://user:s3cret@localhost/db",
        "sqlite:///user:s3cret@localhost/db",
        "host=localhost user=u password=s3cret",
        "user:s3cret",
        "s3cret",
    };
    for (size_t i = 0; i < sizeof urls / sizeof *urls; i++) {
        memlock_client *opened;
        ANSWERS(MEMLOCK_CONFIG, memlock_client_open(urls[i], &opened));
        CHECK(!strstr(memlock_last_error(), "s3cret"));
        ANSWERS(MEMLOCK_CONFIG, memlock_init(urls[i]));
        CHECK(!strstr(memlock_last_error(), "s3cret"));
    }
}

static void *an_error_of_its_own(void *unused) {
    (void)unused;
    CHECK(memlock_last_error()[0] == '\0');
    ANSWERS(MEMLOCK_CONFIG, memlock_init("memcached://of-this-thread:x"));
    SAYS("of-this-thread");
    return NULL;
}

/* Names are stored and shown. */
static void names_have_no_password_in_them(void) {
    static const char url[] = "redis://app:hunter2@host";
    memlock_lock *taken;
    memlock_semaphore *opened;
    memlock_list *made;
#define HIDDEN(call) \
    (REFUSED("URL", call), strstr(memlock_last_error(), "hunter2") ? FAIL("%s", memlock_last_error()) : (void)0)
    HIDDEN(memlock_mutex_lock(client, url, 30000, 0, &taken));
    HIDDEN(memlock_semaphore_open(client, url, 1, 30000, &opened));
    HIDDEN(memlock_list_set_up(client, url, 30000, &made));
    HIDDEN(memlock_counter_set_up(client, url, 1));
    HIDDEN(mutex_lock(url, 30));
    HIDDEN(mutex_unlock(url));
    HIDDEN(semaphore_acquire(url, 30));
    HIDDEN(semaphore_release(url));
    HIDDEN(distinct_list_set_up(url, 30));
    /* An item of a list may be anything. */
    ANSWERS(MEMLOCK_OK, memlock_list_insert(list, url, strlen(url), NULL));
#undef HIDDEN
}

static void the_last_error_is_the_threads_own(void) {
    ANSWERS(MEMLOCK_CONFIG, memlock_init("memcached://of-the-main-thread:x"));
    check_in_thread(an_error_of_its_own, NULL);
    SAYS("of-the-main-thread");
}

static void every_answer_has_a_sentence(void) {
    for (int answer = MEMLOCK_INTERNAL; answer <= MEMLOCK_RECOVERING; answer++) {
        const char *sentence = memlock_describe(answer);
        CHECK(strlen(sentence) > 4 && sentence[strlen(sentence) - 1] == '.');
        for (int other = MEMLOCK_INTERNAL; other < answer; other++) {
            CHECK(strcmp(sentence, memlock_describe(other)) != 0);
        }
    }
    CHECK(memlock_describe(12345) != NULL && memlock_describe(-12345) != NULL);
    CHECK(memlock_version()[0] >= '0' && memlock_version()[0] <= '9');
}

int main(void) {
    ANSWERS(MEMLOCK_OK, memlock_client_open(check_url(), &client));
    ANSWERS(MEMLOCK_OK, memlock_mutex_lock(client, "held", 30000, 0, &lock));
    ANSWERS(MEMLOCK_OK, memlock_list_set_up(client, "session", 60000, &list));
    ANSWERS(MEMLOCK_OK, memlock_list_insert(list, "first", 5, NULL));
    ANSWERS(MEMLOCK_OK, memlock_list_walk(list, &walk));
    ANSWERS(MEMLOCK_OK, memlock_wait_open(client, &wait));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_open(client, "semaphore", 2, 30000, &semaphore));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_acquire(semaphore, 1, 0, &permit));
    RUN(clients_take_no_null);
    RUN(mutexes_take_no_null);
    RUN(waits_take_no_null);
    RUN(semaphores_take_no_null);
    RUN(permits_take_no_null);
    RUN(counters_take_no_null);
    RUN(lists_take_no_null);
    RUN(walks_take_no_null);
    RUN(what_cannot_be_done_to_an_opened_list_is_invalid);
    RUN(a_bad_url_is_told_what_would_be_good);
    RUN(no_error_contains_a_password);
    RUN(names_have_no_password_in_them);
    RUN(the_last_error_is_the_threads_own);
    RUN(every_answer_has_a_sentence);
    ANSWERS(MEMLOCK_OK, memlock_permit_release(permit));
    ANSWERS(MEMLOCK_OK, memlock_semaphore_tear_down(semaphore));
    memlock_semaphore_close(semaphore);
    memlock_wait_close(wait);
    memlock_walk_close(walk);
    ANSWERS(MEMLOCK_OK, memlock_list_tear_down(list));
    memlock_list_close(list);
    ANSWERS(MEMLOCK_OK, memlock_unlock(lock));
    memlock_client_close(client);
    return 0;
}
