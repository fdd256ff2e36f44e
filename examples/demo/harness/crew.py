"""Starts and monitors the workers, kills one of them, and waits for the others."""

from __future__ import annotations

import contextlib
import queue
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from . import DemoError
from .show import Progress

# The victim is killed this long after the others have started: they have tried its unit by then.
KILL_AFTER_S = 0.5

# A worker waits for a unit for at most 10 s, so that some output appears within this time.
STUCK_AFTER_S = 30.0


@dataclass(eq=False)
class Worker:
    """A worker's process and its output files."""

    name: str
    language: str
    report: Path
    errors: Path
    process: subprocess.Popen[str]
    is_victim: bool

    def go(self) -> None:
        """Start the work."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("\n")
            self.process.stdin.close()

    def why(self) -> str:
        """Return the error message of a failed worker."""
        said = self.errors.read_text(errors="replace").strip()
        code = self.process.returncode
        how = signal.Signals(-code).name if code and code < 0 else f"exit status {code}"
        return f"{self.name} failed ({how}): {said or 'it said nothing.'}"


@dataclass
class Crew:
    """All workers of a run. As a context manager it kills the remaining ones at the end."""

    commands: dict[str, list[str]]
    url: str
    plan: Path
    units: int
    directory: Path
    workers: list[Worker] = field(default_factory=list)
    # The output of the workers, line by line; None when a worker has ended.
    _said: queue.Queue[tuple[Worker, str | None]] = field(default_factory=queue.Queue)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.process.kill()
            worker.process.wait()

    def run(self, per_language: int, victims_language: str, progress: Progress) -> int:
        """Run the workers. Return when the victim was certainly dead, in ns of the boot clock."""
        languages = [language for language in self.commands for _ in range(per_language)]
        for place, language in enumerate(languages):
            first = place * self.units // len(languages)
            self._start(f"{language} {place % per_language + 1}", language, first)
        victim = self._start("The victim", victims_language, self.units // 2, is_victim=True)
        for _ in self.workers:
            self._expect("ready")
        counts = ", ".join(f"{per_language} in {language}" for language in self.commands)
        progress.say(f"The workers are ready: {counts}, and the victim in {victims_language}.")

        victim.go()
        unit = self._expect("holding ").replace("holding ", "", 1)
        progress.say(f"The victim (pid {victim.process.pid}) holds {unit}; the others start.")
        for worker in self.workers:
            if worker is not victim:
                worker.go()
        return self._watch(victim, unit, progress)

    def _watch(self, victim: Worker, unit: str, progress: Progress) -> int:
        kill_at = time.monotonic() + KILL_AFTER_S
        stuck_at = time.monotonic() + STUCK_AFTER_S
        killed = done = 0
        working = len(self.workers)
        while working:
            if not killed and time.monotonic() >= kill_at:
                victim.process.kill()
                victim.process.wait()
                killed = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
                progress.say(f"The victim is killed (SIGKILL) in the middle of {unit}.")
            if time.monotonic() >= stuck_at:
                raise DemoError(f"No worker has moved for {STUCK_AFTER_S:.0f} s.")
            waiting = killed and done == self.units - 1
            progress.update(done, self.units, f"; the lease of {unit} runs on" if waiting else "")
            try:
                worker, line = self._said.get(timeout=0.05)
            except queue.Empty:
                continue
            stuck_at = time.monotonic() + STUCK_AFTER_S
            if line is None:
                working -= 1
                if worker.process.wait() != 0 and not (killed and worker is victim):
                    raise DemoError(worker.why())
            elif line.startswith("done "):
                done += 1
                if line == f"done {unit}":
                    progress.say(f"{worker.name} has taken over {unit} and done it.")
        return killed

    def _expect(self, start: str) -> str:
        try:
            worker, line = self._said.get(timeout=STUCK_AFTER_S)
        except queue.Empty:
            raise DemoError(f"No worker has said {start!r} for {STUCK_AFTER_S:.0f} s.") from None
        if line is None or not line.startswith(start):
            worker.process.kill()
            worker.process.wait()
            raise DemoError(worker.why())
        return line

    def _start(self, name: str, language: str, first: int, is_victim: bool = False) -> Worker:
        report = self.directory / f"report-{len(self.workers)}"
        errors = report.with_suffix(".err")
        command = [*self.commands[language], self.url, str(self.plan), str(report), str(first)]
        with open(errors, "wb") as stderr:
            process = subprocess.Popen(
                command + (["--stall"] if is_victim else []),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        worker = Worker(name, language, report, errors, process, is_victim)
        self.workers.append(worker)
        threading.Thread(target=self._listen, args=(worker,), daemon=True).start()
        return worker

    def _listen(self, worker: Worker) -> None:
        assert worker.process.stdout is not None
        for line in worker.process.stdout:
            self._said.put((worker, line.rstrip("\n")))
        self._said.put((worker, None))
