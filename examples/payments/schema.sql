-- Invoices and payments, in cents.
PRAGMA journal_mode = WAL;

CREATE TABLE invoice (
    number INTEGER PRIMARY KEY,
    cents  INTEGER NOT NULL CHECK (cents > 0)
);

CREATE TABLE payment (
    invoice INTEGER NOT NULL REFERENCES invoice,
    cents   INTEGER NOT NULL,
    fence   INTEGER NOT NULL,
    worker  TEXT    NOT NULL,
    at      TEXT    NOT NULL DEFAULT CURRENT_TIMESTAMP
);

-- The newest fence that any worker has presented, for each invoice: memlock.fence_table_ddl().
CREATE TABLE memlock_fences (
    resource TEXT NOT NULL PRIMARY KEY,
    fence    INTEGER NOT NULL
);

-- A second safeguard: one invoice has at most one payment, whatever the fences are.
CREATE UNIQUE INDEX paid_once ON payment (invoice);
