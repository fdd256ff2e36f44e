/* postgresql.c: lock+unlock pairs on PostgreSQL by libpq, see pairs.c. */
#include <endian.h>
#include <libpq-fe.h>
#include <stdio.h>
#include <string.h>

#include "pairs.h"

#define LOCK_KEY "lock:bench"

static PGconn *connection;

static void connect_to(const char *url)
{
    connection = PQconnectdb(url);
    if (PQstatus(connection) != CONNECTION_OK)
        die("%s", PQerrorMessage(connection));
}

/* Ends the program unless the outcome is `wanted`. */
static PGresult *checked(PGresult *result, ExecStatusType wanted)
{
    if (PQresultStatus(result) != wanted)
        die("%s", PQerrorMessage(connection));
    return result;
}

static void run(const char *statement)
{
    PQclear(checked(PQexec(connection, statement), PGRES_COMMAND_OK));
}

static void prepare(const char *name, const char *statement, int parameters)
{
    PQclear(checked(PQprepare(connection, name, statement, parameters, NULL), PGRES_COMMAND_OK));
}

static void raw_close(void)
{
    PQfinish(connection);
}

/* --- raw: the advisory locks of a session, which end with its connection ---------------------- */

static void raw_open(const char *url)
{
    connect_to(url);
    prepare("lock", "SELECT pg_try_advisory_lock($1)", 1);
    prepare("unlock", "SELECT pg_advisory_unlock($1)", 1);
}

static void call(const char *name)
{
    const uint64_t key = htobe64(42);
    const char *const values[] = {(const char *)&key};
    const int lengths[] = {sizeof key}, formats[] = {1};
    PGresult *result = PQexecPrepared(connection, name, 1, values, lengths, formats, 1);
    checked(result, PGRES_TUPLES_OK);
    if (PQntuples(result) != 1 || *PQgetvalue(result, 0, 0) != 1)
        die("%s was refused", name);
    PQclear(result);
}

static void raw_step(void)
{
    call("lock");
    call("unlock");
}

/* --- raw-row: a row that a crash of the server may lose, as in memlock's table by default ------ */

static void raw_row_open(const char *url)
{
    connect_to(url);
    run("CREATE UNLOGGED TABLE IF NOT EXISTS items (key text PRIMARY KEY, value text NOT NULL, version bigint NOT NULL,"
        " expires timestamptz)");
    prepare("lock",
            "INSERT INTO items VALUES ($1, $2, $3, clock_timestamp() + interval '30 s')"
            " ON CONFLICT DO NOTHING",
            3);
    prepare("unlock", "DELETE FROM items WHERE key = $1 AND version = $2", 2);
}

static void change(const char *name, int parameters, const char *const *values)
{
    PGresult *result = PQexecPrepared(connection, name, parameters, values, NULL, NULL, 1);
    checked(result, PGRES_COMMAND_OK);
    if (strcmp(PQcmdTuples(result), "1") != 0)
        die("%s changed '%s' rows", name, PQcmdTuples(result));
    PQclear(result);
}

static void raw_row_step(void)
{
    static unsigned version;
    char number[16];
    snprintf(number, sizeof number, "%u", ++version);
    change("lock", 3, (const char *[]){LOCK_KEY, VALUE, number});
    change("unlock", 2, (const char *[]){LOCK_KEY, number});
}

/* --- the contenders ------------------------------------------------------------------------- */

const struct contender contenders[] = {
    {"raw", "pair", 1, 16, raw_open, raw_step, raw_close},
    {"raw-row", "pair", 1, 16, raw_row_open, raw_row_step, raw_close},
    {0},
};
