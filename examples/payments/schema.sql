-- What is owed, and what was paid: money in cents.
PRAGMA journal_mode = WAL;

CREATE TABLE invoice (
    number INTEGER PRIMARY KEY,
    cents  INTEGER NOT NULL CHECK (cents > 0),
    -- The newest fence that anybody has shown for this invoice.
    fence  INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE payment (
    invoice INTEGER NOT NULL REFERENCES invoice,
    cents   INTEGER NOT NULL,
    fence   INTEGER NOT NULL,
    worker  TEXT    NOT NULL,
    at      TEXT    NOT NULL DEFAULT CURRENT_TIMESTAMP
);

-- The fence check. It stands here and not in the workers, so that no writer can forget it. A fence that was shown stays the
-- newest until a greater one is shown,
CREATE TRIGGER fences_rise BEFORE UPDATE OF fence ON invoice WHEN NEW.fence < OLD.fence
BEGIN SELECT RAISE(ABORT, 'a newer holder has shown its fence'); END;

-- and who pays must have shown the newest. "IS NOT" is also true of an invoice that does not exist.
CREATE TRIGGER the_newest_pays BEFORE INSERT ON payment
WHEN NEW.fence IS NOT (SELECT fence FROM invoice WHERE number = NEW.invoice)
BEGIN SELECT RAISE(ABORT, 'a newer holder has shown its fence'); END;

-- A net below the net: of one invoice there is one payment, whatever fences say.
CREATE UNIQUE INDEX paid_once ON payment (invoice);
