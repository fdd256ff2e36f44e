"""Pays what is owed. Many of these run at once, and each invoice is paid once.

    sqlite3 DATABASE < schema.sql
    python worker.py URL DATABASE [--lease SECONDS]

A mutex keeps the workers apart, for as long as they run. It cannot do more: one that stands still
for longer than its lease (a suspended machine, one that swaps, Ctrl-Z) goes on where it stood,
perhaps right before its write, when the invoice is another's long since. No lock that ends by
itself can prevent that; the table can. Each grant has a fence, a number greater than those of all
grants before, and the table refuses any but the newest that it was shown. So

1. the fence is shown when the invoice is read, in the same transaction: from then on nobody who
   held it before can pay, even while we have not paid yet;
2. it is checked in the transaction that pays (schema.sql);
3. `lost` is asked before, which saves a vain attempt, and proves nothing.

Before it pays, a worker writes `approve <invoice> <cents>` and reads a line, `yes` or another: this
stands for what takes its time, and what no two should do at once. What it does is a line each:
`pays`, `paid` and `refused`, with the invoice and the fence or the reason; `lost`, as soon as that
is known; `busy`, when another worker has the invoice for too long.
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

MAX_HOLD = 3600  # seconds: a question that nobody answers does not keep an invoice for ever
PATIENCE = 60  # seconds: how long to wait for an invoice that another worker has
BUSY = 30  # seconds: how long to wait for another's transaction


class RefusedError(Exception):
    """The table did not take it, with the reason."""


class Ledger:
    """The invoices and payments."""

    def __init__(self, path: str) -> None:
        """Open what schema.sql has set up."""
        # Transactions begin where it says so here, and nowhere else; and the file must be there.
        uri = f"{Path(path).absolute().as_uri()}?mode=rw"
        self._db = sqlite3.connect(uri, BUSY, isolation_level=None, uri=True)
        # What was paid is on the disk before anybody is told.
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("PRAGMA foreign_keys = ON")

    def unpaid(self) -> list[int]:
        """The invoices that are to be paid."""
        rows = self._db.execute(
            "SELECT number FROM invoice WHERE number NOT IN (SELECT invoice FROM payment)"
        )
        return [number for (number,) in rows]

    def claim(self, number: int, fence: int) -> int | None:
        """Show the fence, and read what is owed: None when it is paid."""
        with self._transaction():
            self._db.execute("UPDATE invoice SET fence = ? WHERE number = ?", (fence, number))
            row = self._db.execute(
                "SELECT cents FROM invoice WHERE number = ?1"
                " AND NOT EXISTS (SELECT 1 FROM payment WHERE invoice = ?1)",
                (number,),
            ).fetchone()
        return row[0] if row else None

    def pay(self, number: int, cents: int, fence: int, worker: str) -> None:
        """Pay it, as a whole or not at all."""
        with self._transaction():
            self._db.execute(
                "INSERT INTO payment (invoice, cents, fence, worker) VALUES (?, ?, ?, ?)",
                (number, cents, fence, worker),
            )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        # IMMEDIATE: what is read here is still so when we write.
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.IntegrityError):
                raise RefusedError(str(error)) from None
            raise


class Worker:
    """Pays invoices, one after the other."""

    def __init__(self, client: memlock.Client, ledger: Ledger, lease: float) -> None:
        """All workers are given the same server and the same ledger."""
        self.client = client
        self.ledger = ledger
        self.lease = lease
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.declined: set[int] = set()

    def work(self) -> None:
        """Pay all that is unpaid: first what nobody else has, and then what the others left."""
        for patience in (0, PATIENCE):
            for number in self.ledger.unpaid():
                if number not in self.declined:
                    self.attend(number, patience)

    def attend(self, number: int, patience: float) -> None:
        """Pay an invoice, unless another worker has it for all of `patience`."""
        mutex = self.client.mutex(
            f"invoice:{number}",
            lease=self.lease,
            wait=patience,
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
            # What was paid until then is paid, and the rest is another's: it was told by on_lost.
            pass

    def pay(self, number: int, mutex: memlock.Mutex) -> None:
        """Pay the invoice that we hold."""
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
    """Ask, and wait for the answer."""
    say("approve", number, cents)
    answer = sys.stdin.readline()
    if not answer:
        sys.exit("worker.py: nobody answers")
    return answer.strip() == "yes"


def say(*words: object) -> None:
    """Write a line, at once: who is killed says nothing any more."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Pay all that is unpaid."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("database")
    parser.add_argument("--lease", type=float, default=30, help="seconds (30)")
    options = parser.parse_args()
    client = memlock.connect(options.url)
    Worker(client, Ledger(options.database), options.lease).work()


if __name__ == "__main__":
    try:
        main()
    except (memlock.Error, sqlite3.Error) as error:
        sys.exit(f"worker.py: {error}")
