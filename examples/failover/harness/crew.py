"""Starts and watches the workers, and ends all that they have started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from . import PATIENCE_S, FailoverError, journal
from .journal import Hold, Journal
from .tools import COMMAND, HERE, PYTHON

POLL_S = 0.01
# A machine that is on time sleeps no longer than it was told to.
ON_TIME_S = 0.1

Found = TypeVar("Found")


@dataclass
class Worker:
    """A worker's process and its output files."""

    name: str
    report: Path
    errors: Path
    process: subprocess.Popen[bytes]

    def journal(self) -> Journal:
        """Read its report."""
        return journal.read(self.name, self.report)

    def why(self) -> str:
        """Return the error message of a failed worker."""
        said = self.errors.read_text(errors="replace").strip()
        code = self.process.returncode
        how = signal.Signals(-code).name if code and code < 0 else f"exit status {code}"
        return f"{self.name} failed ({how}): {said or 'it said nothing.'}"


@dataclass
class Crew:
    """All workers of a run. As a context manager it kills what is left of them at the end."""

    url: str
    directory: Path
    workers: list[Worker] = field(default_factory=list)
    # The longest time for which the machine did not run this program when it should have.
    stall_s: float = 0.0

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            # A worker has a process group of its own. That of a worker that was waited for may
            # be another's by now.
            if worker.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(worker.process.pid, signal.SIGKILL)
                worker.process.wait()

    def start(self, in_c: list[str]) -> None:
        """Start all workers, and wait until each has its own lock."""
        self._start("worker.c", in_c, [self.url])
        self._start("worker.py", [PYTHON, str(HERE / "worker.py")], [self.url])
        self._start("worker.sh", [str(HERE / "worker.sh")], [])
        self.wait_for("each worker had its own lock", lambda: all(it.own for it in self.journals()))

    def stop(self) -> None:
        """Let the workers end, after the turn that each may be at or wait for."""
        self._stop.touch()
        limit = time.monotonic() + PATIENCE_S
        while working := [it for it in self.workers if it.process.poll() is None]:
            if time.monotonic() > limit:
                raise FailoverError(f"{working[0].name} has not ended for {PATIENCE_S:.0f} s.")
            self.sleep(POLL_S)
        for worker in self.workers:
            if worker.process.returncode != 0:
                raise FailoverError(worker.why())

    def wait_for_turns(self, turns: int) -> None:
        """Wait until each worker has begun so many more turns."""
        before = {it.worker: len(it.jobs) for it in self.journals()}
        self.wait_for(
            f"each worker had {turns} more turns",
            lambda: all(len(it.jobs) >= before[it.worker] + turns for it in self.journals()),
        )

    def turns(self) -> int:
        """Return how many turns all workers together have begun."""
        return sum(len(it.jobs) for it in self.journals())

    def wait_for_a_turn(self, after: int) -> None:
        """Wait until the workers have begun more turns than these."""
        self.wait_for("a worker got `job` after a fault", lambda: self.turns() > after)

    def journals(self) -> list[Journal]:
        """Read all reports."""
        return [worker.journal() for worker in self.workers]

    def running(self, now: int) -> Hold | None:
        """Return the hold of `job` that goes on, if there is one.

        The shell reports when it began at the latest, which may be a moment ahead.
        """
        running = (it.running for it in self.journals())
        return next((hold for hold in running if hold and hold.ran(now)), None)

    def wait_for(self, what: str, found: Callable[[], Found]) -> Found:
        """Return what was found, as soon as it is true. A worker must not end before."""
        limit = time.monotonic() + PATIENCE_S
        while not (result := found()):
            for worker in self.workers:
                if worker.process.poll() is not None:
                    raise FailoverError(worker.why())
            if time.monotonic() > limit:
                raise FailoverError(f"It took longer than {PATIENCE_S:.0f} s until {what}.")
            self.sleep(POLL_S)
        return result

    def wait_for_grants(self) -> None:
        """Wait until the server grants new locks, as every waiter does."""
        command = [str(COMMAND), "run", "--lease", "1s", "probe", "--", "true"]
        with subprocess.Popen(
            command, env={**os.environ, "MEMLOCK_URL": self.url}, stderr=subprocess.PIPE, text=True
        ) as waiter:
            try:
                self.wait_for("the server granted a lock", lambda: waiter.poll() is not None)
            finally:
                waiter.kill()
            if waiter.returncode != 0:
                assert waiter.stderr is not None
                raise FailoverError(f"No lock was granted: {waiter.stderr.read().strip()}")

    def sleep(self, seconds: float) -> None:
        """Sleep, and notice if that took much longer."""
        began = time.monotonic()
        time.sleep(seconds)
        late = time.monotonic() - began - seconds
        if late > ON_TIME_S:
            self.stall_s = max(self.stall_s, late)

    @property
    def _stop(self) -> Path:
        return self.directory / "stop"

    def _start(self, name: str, command: list[str], arguments: list[str]) -> None:
        report, errors = (self.directory / f"{name}.{kind}" for kind in ("report", "errors"))
        path = f"{COMMAND.parent}:{os.environ.get('PATH', os.defpath)}"
        environment = {**os.environ, "MEMLOCK_URL": self.url, "PATH": path}
        environment.pop("MEMLOCK_NAME", None)
        with open(errors, "wb") as stderr:
            process = subprocess.Popen(
                [*command, *arguments, str(report), str(self._stop)],
                stdin=subprocess.DEVNULL,
                stderr=stderr,
                env=environment,
                # So that all processes of the shell can be ended together.
                start_new_session=True,
            )
        self.workers.append(Worker(name, report, errors, process))
