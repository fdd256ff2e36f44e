/* mariadb.c: lock+unlock pairs on MariaDB by libmariadb, see pairs.c. */
#include <mysql.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pairs.h"

#define USER "memlock"
#define DATABASE "bench"
#define LOCK_KEY "lock:bench"

static MYSQL *connection;

/* The harness's URLs: mariadb://USER@127.0.0.1:port/DATABASE, or …?socket=path. */
static void connect_to(const char *url)
{
    const char *socket = strstr(url, "socket=");
    if (socket != NULL)
        socket += strlen("socket=");
    connection = mysql_init(NULL);
    if (mysql_real_connect(connection, socket ? NULL : "127.0.0.1", USER, NULL, DATABASE,
                           socket ? 0 : port_of(url), socket, 0) == NULL)
        die("%s", mysql_error(connection));
}

static void raw_close(void)
{
    mysql_close(connection);
}

/* --- raw: the locks of a connection, which end with it ---------------------------------------- */

static void ask(const char *statement, size_t len)
{
    MYSQL_RES *result;
    if (mysql_real_query(connection, statement, len) != 0 ||
        (result = mysql_store_result(connection)) == NULL)
        die("%s: %s", statement, mysql_error(connection));
    MYSQL_ROW row = mysql_fetch_row(result);
    if (row == NULL || row[0] == NULL || strcmp(row[0], "1") != 0)
        die("%s was refused", statement);
    mysql_free_result(result);
}

static void raw_step(void)
{
    static const char lock[] = "SELECT GET_LOCK('" LOCK_KEY "', 0)";
    static const char unlock[] = "SELECT RELEASE_LOCK('" LOCK_KEY "')";
    ask(lock, sizeof lock - 1);
    ask(unlock, sizeof unlock - 1);
}

/* --- raw-row: a row, by two statements that commit themselves ---------------------------------- */

static void run(const char *statement, size_t len)
{
    if (mysql_real_query(connection, statement, len) != 0)
        die("%s: %s", statement, mysql_error(connection));
}

static void raw_row_open(const char *url)
{
    static const char create[] = "CREATE TABLE IF NOT EXISTS items (id VARBINARY(250) PRIMARY KEY, value BLOB NOT NULL,"
                                 " version BIGINT NOT NULL, expires DATETIME(6)) ENGINE=InnoDB";
    connect_to(url);
    run(create, sizeof create - 1);
}

static void change(const char *statement, int len)
{
    run(statement, (size_t)len);
    if (mysql_affected_rows(connection) != 1)
        die("%s changed no row", statement);
}

static void raw_row_step(void)
{
    static unsigned version;
    char text[512];
    int len = snprintf(text, sizeof text,
                       "INSERT IGNORE INTO items VALUES ('" LOCK_KEY "', '" VALUE
                       "', %u, NOW(6) + INTERVAL 30 SECOND)",
                       ++version);
    change(text, len);
    len = snprintf(text, sizeof text, "DELETE FROM items WHERE id = '" LOCK_KEY "' AND version = %u", version);
    change(text, len);
}

/* --- the contenders ------------------------------------------------------------------------- */

const struct contender contenders[] = {
    {"raw", "pair", 1, 16, connect_to, raw_step, raw_close},
    {"raw-row", "pair", 1, 16, raw_row_open, raw_row_step, raw_close},
    {0},
};
