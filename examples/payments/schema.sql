-- Invoices and payments, in cents.
PRAGMA journal_mode = WAL;

CREATE TABLE invoice (
    number INTEGER PRIMARY KEY,
    cents  INTEGER NOT NULL CHECK (cents > 0),
    -- The newest fence that any worker has presented for this invoice.
    fence  INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE payment (
    invoice INTEGER NOT NULL REFERENCES invoice,
    cents   INTEGER NOT NULL,
    fence   INTEGER NOT NULL,
    worker  TEXT    NOT NULL,
    at      TEXT    NOT NULL DEFAULT CURRENT_TIMESTAMP
);

-- The fence check. It is part of the schema, so that no writer can bypass it. A presented fence
-- remains the newest until a greater one is presented,
CREATE TRIGGER fences_rise BEFORE UPDATE OF fence ON invoice WHEN NEW.fence < OLD.fence
BEGIN SELECT RAISE(ABORT, 'a newer holder has shown its fence'); END;

-- and a payment requires the newest fence. "IS NOT" is also true for an unknown invoice.
CREATE TRIGGER the_newest_pays BEFORE INSERT ON payment
WHEN NEW.fence IS NOT (SELECT fence FROM invoice WHERE number = NEW.invoice)
BEGIN SELECT RAISE(ABORT, 'a newer holder has shown its fence'); END;

-- A second safeguard: one invoice has at most one payment, whatever the fences are.
CREATE UNIQUE INDEX paid_once ON payment (invoice);
