/* A worker of the demo, in C. worker.cpp, worker.py and worker.rs do the same steps; ../README.md
 * describes their behaviour and output.
 *
 *     worker URL PLAN REPORT FIRST [--stall]
 */

#include <memlock.h>

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LEASE_MS 3000      /* a dead worker's unit is free after this */
#define PATIENCE_MS 10000  /* how long to wait for a unit that another worker holds */
#define SESSION_MS 600000  /* the lists expire after this */

/* A piece of a file. */
struct unit { long offset; size_t length; char *path; };

static memlock_list *words, *done;
static FILE *report;
static bool stall;
static uint64_t units_done, words_read, words_new, units_busy;

static void die(const char *doing, const char *why)
{
    fprintf(stderr, "worker.c: %s: %s\n", doing, why);
    exit(1);
}

/* A negative answer is a failure, with a message; a positive answer is an ordinary "no". */
static void must(int answer, const char *doing)
{
    if (answer != MEMLOCK_OK) die(doing, answer < 0 ? memlock_last_error() : memlock_describe(answer));
}

static int64_t boot_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* A word is a longest run of ASCII letters and of bytes from 0x80 up; A to Z become a to z. */
static bool in_word(unsigned char byte)
{
    return byte >= 0x80 || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
}

static char *read_unit(const struct unit *unit)
{
    char *text = malloc(unit->length + 1);
    FILE *file = fopen(unit->path, "rb");
    if (!text || !file || fseek(file, unit->offset, SEEK_SET) != 0 ||
        fread(text, 1, unit->length, file) != unit->length)
        die(unit->path, "the unit cannot be read");
    fclose(file);
    return text;
}

static memlock_bytes *split(char *text, size_t length, size_t *count)
{
    memlock_bytes *found = malloc((length / 2 + 1) * sizeof *found);
    if (!found) die("splitting", "out of memory");
    *count = 0;
    for (size_t i = 0; i < length; i++) {
        if (!in_word(text[i])) continue;
        size_t start = i;
        for (; i < length && in_word(text[i]); i++)
            if (text[i] >= 'A' && text[i] <= 'Z') text[i] += 'a' - 'A';
        found[(*count)++] = (memlock_bytes){.data = text + start, .len = i - start};
    }
    return found;
}

/* One call for all words. The first inserter creates the id, and all inserters get the same id. */
static void insert(const memlock_bytes *keys, size_t count)
{
    memlock_insertion *insertions = malloc((count + 1) * sizeof *insertions);
    if (!insertions) die("inserting", "out of memory");
    must(memlock_list_insert_many(words, keys, count, insertions), "inserting words");
    for (size_t i = 0; i < count; i++) {
        bool is_new = insertions[i].answer == MEMLOCK_OK;
        words_new += is_new;
        fprintf(report, "id %" PRIu64 " %s %.*s\n", insertions[i].id, is_new ? "new" : "dup", (int)keys[i].len,
                keys[i].data);
    }
    words_read += count;
    free(insertions);
}

static void die_in_the_middle(const char *name)
{
    fflush(report);
    printf("holding %s\n", name);
    fflush(stdout);
    for (;;) pause();
}

static void count_words(const struct unit *unit, const char *name)
{
    size_t count;
    char *text = read_unit(unit);
    memlock_bytes *found = split(text, unit->length, &count);
    if (stall) {
        insert(found, count / 2);
        die_in_the_middle(name);
    }
    insert(found, count);
    free(found);
    free(text);
}

/* False if another worker holds the unit for all of `wait_ms`. */
static bool work_on(memlock_client *client, size_t number, const struct unit *unit, int64_t wait_ms)
{
    char name[32];
    snprintf(name, sizeof name, "unit:%zu", number);
    memlock_lock *lock;
    int answer = memlock_mutex_lock(client, name, LEASE_MS, wait_ms, &lock);
    if (answer == MEMLOCK_BUSY || answer == MEMLOCK_TIMED_OUT) return false;
    must(answer, name);

    uint64_t fence, id;
    must(memlock_lock_fence(lock, &fence), name);
    fprintf(report, "hold %zu %" PRIu64 " %" PRId64 "\n", number, fence, boot_clock_ns());
    must(memlock_list_id(done, name, strlen(name), &id), name);
    if (id == 0) {
        count_words(unit, name);
        /* Still under the mutex: the next holder must find the unit done. */
        must(memlock_list_insert(done, name, strlen(name), NULL), name);
        fprintf(report, "done %zu\n", number);
        printf("done %s\n", name);
        fflush(stdout);
        units_done++;
    }
    fprintf(report, "free %zu %" PRId64 "\n", number, boot_clock_ns());
    must(memlock_unlock(lock), name);
    return true;
}

static struct unit *read_plan(const char *path, size_t *count)
{
    struct unit *units = NULL;
    char *line = NULL;
    size_t room = 0;
    FILE *plan = fopen(path, "r");
    if (!plan) die(path, "the plan cannot be opened");
    *count = 0;
    while (getline(&line, &room, plan) > 0) {
        units = realloc(units, (*count + 1) * sizeof *units);
        struct unit *unit = units ? &units[(*count)++] : NULL;
        if (!unit || sscanf(line, "%ld %zu %m[^\n]", &unit->offset, &unit->length, &unit->path) != 3)
            die(path, "the plan cannot be read");
    }
    free(line);
    fclose(plan);
    return units;
}

int main(int argc, char **argv)
{
    if (argc < 5) die("usage", "worker URL PLAN REPORT FIRST [--stall]");
    size_t count, first = strtoul(argv[4], NULL, 10);
    struct unit *units = read_plan(argv[2], &count);
    if (!(report = fopen(argv[3], "wb"))) die(argv[3], "the report cannot be written");
    stall = argc > 5 && strcmp(argv[5], "--stall") == 0;

    memlock_client *client;
    must(memlock_client_open(argv[1], &client), "opening the client");
    /* MEMLOCK_OK: created; MEMLOCK_EXISTS: another worker created it. This worker has joined it. */
    if (memlock_list_set_up(client, "words", SESSION_MS, &words) < 0) die("words", memlock_last_error());
    if (memlock_list_set_up(client, "done", SESSION_MS, &done) < 0) die("done", memlock_last_error());

    /* All workers start at the same time: the demo answers when the last one is ready. */
    puts("ready");
    fflush(stdout);
    getchar();

    /* All units, from a different starting point in each worker; busy units come last. */
    size_t *left = malloc((count + 1) * sizeof *left);
    for (size_t i = 0; i < count; i++) {
        size_t number = (first + i) % count;
        if (!work_on(client, number, &units[number], 0)) left[units_busy++] = number;
    }
    for (size_t i = 0; i < units_busy; i++)
        if (!work_on(client, left[i], &units[left[i]], PATIENCE_MS)) die("waiting", "a unit never came free");

    fprintf(report, "total %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", units_done, words_read,
            words_new, units_busy);
    fclose(report);
    for (size_t i = 0; i < count; i++) free(units[i].path);
    free(units);
    free(left);
    memlock_list_close(done);
    memlock_list_close(words);
    memlock_client_close(client);
    return 0;
}
