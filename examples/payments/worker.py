"""Pays invoices. Many workers run at once, and each invoice is paid once.

    sqlite3 DATABASE < schema.sql
    python worker.py URL DATABASE [--lease SECONDS]

A mutex excludes other workers while the holder runs. It cannot do more: a worker that is stopped
for longer than its lease (a suspended machine, swapping, Ctrl-Z) continues where it was stopped,
possibly immediately before its write, when another worker has had the invoice for long. A lock that
expires cannot prevent this; the table can. Each grant has a fence, a number greater than those of
all earlier grants, and the table refuses all but the newest fence that was presented. Therefore

1. memlock.check_fence() presents the fence when the invoice is read, in the same transaction: from
   then on no earlier holder can pay, even before this worker has paid;
2. it checks the fence again in the transaction that pays;
3. `lost` is checked before, which saves a useless attempt, and proves nothing.

Before it pays, a worker writes `approve <invoice> <cents>` and reads a line, `yes` or another: this
represents work that takes time and must not be done concurrently. The worker prints one line for
each action: `pays`, `paid` and `refused`, with the invoice and the fence or the reason; `lost`, as
soon as the loss is known; `busy`, if another worker holds the invoice for too long.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import memlock

MAX_HOLD = 3600  # seconds: an unanswered question does not block an invoice forever
PATIENCE = 60  # seconds: how long to wait for an invoice that another worker holds
BUSY = 30  # seconds: how long to wait for another transaction


class RefusedError(Exception):
    """The table refused the write, with the reason."""


class Ledger:
    """The invoices and payments."""

    def __init__(self, path: str, *, checks_fences: bool) -> None:
        """Open the database that schema.sql has created."""
        self._checks_fences = checks_fences
        # Transactions are explicit, and the file must exist.
        uri = f"{Path(path).absolute().as_uri()}?mode=rw"
        self._db = sqlite3.connect(uri, BUSY, isolation_level=None, uri=True)
        # A payment is on disk before it is reported.
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("PRAGMA foreign_keys = ON")

    def unpaid(self) -> list[int]:
        """Return the unpaid invoices."""
        rows = self._db.execute(
            "SELECT number FROM invoice WHERE number NOT IN (SELECT invoice FROM payment)"
        )
        return [number for (number,) in rows]

    def claim(self, number: int, fence: int) -> int | None:
        """Present the fence, and read the amount: None if the invoice is paid."""
        with self._transaction():
            self._check(number, fence)
            row = self._db.execute(
                "SELECT cents FROM invoice WHERE number = ?1"
                " AND NOT EXISTS (SELECT 1 FROM payment WHERE invoice = ?1)",
                (number,),
            ).fetchone()
        return row[0] if row else None

    def pay(self, number: int, cents: int, fence: int, worker: str) -> None:
        """Pay the invoice atomically."""
        with self._transaction():
            self._check(number, fence)
            self._db.execute(
                "INSERT INTO payment (invoice, cents, fence, worker) VALUES (?, ?, ?, ?)",
                (number, cents, fence, worker),
            )

    def _check(self, number: int, fence: int) -> None:
        if self._checks_fences:
            memlock.check_fence(self._db, f"invoice:{number}", fence)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        # IMMEDIATE: rows that are read here cannot change before the write.
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if isinstance(error, (memlock.Fenced, sqlite3.IntegrityError)):
                raise RefusedError(str(error)) from None
            raise


class Worker:
    """Pays invoices, one after the other."""

    def __init__(self, client: memlock.Client, ledger: Ledger, lease: float) -> None:
        """All workers use the same server and the same ledger."""
        self.client = client
        self.ledger = ledger
        self.lease = lease
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.declined: set[int] = set()

    def work(self) -> None:
        """Pay all unpaid invoices: first those that are free, then those that were busy."""
        for patience in (0, PATIENCE):
            for number in self.ledger.unpaid():
                if number not in self.declined:
                    self.attend(number, patience)

    def attend(self, number: int, patience: float) -> None:
        """Pay an invoice, unless another worker holds it for all of `patience`."""
        mutex = self.client.mutex(
            f"invoice:{number}",
            lease=self.lease,
            timeout=patience,
            renew=True,
            max_hold=MAX_HOLD,
            on_lost=lambda why: say("lost", number, why),
        )
        try:
            with mutex:
                try:
                    self.pay(number, mutex)
                except RefusedError as error:
                    say("refused", number, error)
        except memlock.TimedOut:
            say("busy", number)
        except memlock.LockLost:
            # Payments made so far remain; on_lost has reported the loss.
            pass

    def pay(self, number: int, mutex: memlock.Mutex) -> None:
        """Pay the invoice that this worker holds."""
        fence = mutex.fence
        cents = self.ledger.claim(number, fence)
        if cents is None:
            return
        if not is_approved(number, cents):
            self.declined.add(number)
            return
        if mutex.lost:
            return
        say("pays", number, fence)
        self.ledger.pay(number, cents, fence, self.name)
        say("paid", number, fence)


def is_approved(number: int, cents: int) -> bool:
    """Ask for approval, and wait for the answer."""
    say("approve", number, cents)
    answer = sys.stdin.readline()
    if not answer:
        sys.exit("worker.py: nobody answers")
    return answer.strip() == "yes"


def say(*words: object) -> None:
    """Write a line without buffering: a killed worker cannot flush."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Pay all unpaid invoices."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("database")
    parser.add_argument("--lease", type=float, default=30, help="seconds (30)")
    parser.add_argument("--no-fences", action="store_true", help="do without the fence check")
    options = parser.parse_args()
    client = memlock.connect(options.url)
    ledger = Ledger(options.database, checks_fences=not options.no_fences)
    Worker(client, ledger, options.lease).work()


if __name__ == "__main__":
    try:
        main()
    except (memlock.Error, sqlite3.Error) as error:
        sys.exit(f"worker.py: {error}")
