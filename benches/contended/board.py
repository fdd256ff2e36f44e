"""The board: shared memory in which the processes of a race record their actions and times.

In 64-bit words, and in this order (worker.h has the same layout as structs):

  16 words       start and stop (0 until they are set), number of processes, capacity of a log,
                 hold, permits (1: a lock); in the second half, for a lock, the holder: 1 + its
                 index, 0 for none
  16 a process   ready, start of the current wait (0 for none), turns in its log, clashes (turns
                 with too many holders), processor time; for a semaphore, whether the process
                 holds a permit: 1 + the number of its turn, 0 if not
  logs           for each process `room` turns of 4 words: asked, entered, left, fence

All times are nanoseconds of CLOCK_MONOTONIC, which is one clock for all processes. Each process
has a separate log, so that two simultaneous holders cannot corrupt each other's records.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import NamedTuple

HEAD = PER_PROCESS = 16
PER_TURN = 4
WORD = 8


class Acquisition(NamedTuple):
    """One acquisition by the process with that index."""

    entered_ns: int
    left_ns: int
    asked_ns: int
    fence: int
    process: int


class Board:
    """The board, for the harness and for Python workers."""

    START, STOP, PROCESSES, ROOM, HOLD, PERMITS, INSIDE = 0, 1, 2, 3, 4, 5, 8
    _READY, _ASKED, _TURNS, _CLASHES, _CPU, _WITHIN = range(6)

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.words = memoryview(mmap.mmap(fd, size)).cast("Q")

    @classmethod
    def new(cls, processes: int, room: int, hold_ns: int, permits: int) -> Board:
        """Return a new board in shared memory, which a child inherits with its `fd`."""
        size = (HEAD + processes * (PER_PROCESS + room * PER_TURN)) * WORD
        fd = os.memfd_create("board")
        os.truncate(fd, size)
        board = cls(fd, size)
        words = board.words
        words[cls.PROCESSES], words[cls.ROOM], words[cls.HOLD] = processes, room, hold_ns
        words[cls.PERMITS] = permits
        return board

    @classmethod
    def of_fd(cls, fd: int) -> Board:
        """Return the board that the harness created."""
        return cls(fd, os.fstat(fd).st_size)

    def close(self) -> None:
        """Release the memory of the harness."""
        self.words.release()
        os.close(self.fd)

    @property
    def start_ns(self) -> int:
        """The common start; 0 until it is set."""
        return self.words[self.START]

    @property
    def stop_ns(self) -> int:
        """The end of the race; 0 until then."""
        return self.words[self.STOP]

    @property
    def processes(self) -> int:
        """The number of contending processes."""
        return self.words[self.PROCESSES]

    @property
    def hold_ns(self) -> int:
        """The duration of each hold."""
        return self.words[self.HOLD]

    @property
    def permits(self) -> int:
        """The maximum number of simultaneous holders."""
        return self.words[self.PERMITS]

    def all_ready(self) -> bool:
        """Return whether every process is connected and waits for the start."""
        return all(self.words[self._of(i, self._READY)] for i in range(self.processes))

    def set_ready(self, index: int) -> None:
        """Record that this process waits for the start."""
        self.words[self._of(index, self._READY)] = 1

    def all_had_a_turn(self) -> bool:
        """Return whether every process has acquired and released the lock."""
        return all(self.words[self._of(i, self._TURNS)] for i in range(self.processes))

    def set_cpu_ns(self, index: int, cpu_ns: int) -> None:
        """Record the processor time of this process in the race."""
        self.words[self._of(index, self._CPU)] = cpu_ns

    def asked_at(self, index: int) -> int:
        """Return the index of the word with the start of this process's wait."""
        return self._of(index, self._ASKED)

    def enter(self, index: int, turn: int) -> None:
        """Record that this process is a holder, and count a clash if there are too many."""
        words = self.words
        if words[self.PERMITS] == 1:
            clash = words[self.INSIDE] != 0
            words[self.INSIDE] = 1 + index
        else:
            words[self._of(index, self._WITHIN)] = 1 + turn
            clash = self._crowded()
        words[self._of(index, self._CLASHES)] += clash

    def leave(self, index: int) -> None:
        """Record that this process is no longer a holder."""
        words = self.words
        if words[self.PERMITS] == 1:
            words[self._of(index, self._CLASHES)] += words[self.INSIDE] != 1 + index
            words[self.INSIDE] = 0
        else:
            words[self._of(index, self._WITHIN)] = 0

    def log(self, index: int, number: int, turn: tuple[int, int, int, int]) -> None:
        """Write turn (asked, entered, left, fence) to the log at that number."""
        at = self._log_of(index) + number * PER_TURN
        if number == self.words[self.ROOM]:
            raise RuntimeError(f"the log of {number} turns is full")
        words = self.words
        words[at], words[at + 1], words[at + 2], words[at + 3] = turn
        words[self._of(index, self._TURNS)] = number + 1

    def turns(self) -> list[Acquisition]:
        """Return all turns of all processes, in the order of their entries."""
        return sorted(turn for index in range(self.processes) for turn in self._turns_of(index))

    def open_waits(self) -> list[int]:
        """Return the starts of the waits that were not over at the stop."""
        asked = (self.words[self.asked_at(index)] for index in range(self.processes))
        return [since for since in asked if since]

    def clashes(self) -> int:
        """Return how often a process found too many holders."""
        return sum(self.words[self._of(i, self._CLASHES)] for i in range(self.processes))

    def cpu_ns(self) -> int:
        """Return the processor time of all processes in the race."""
        return sum(self.words[self._of(index, self._CPU)] for index in range(self.processes))

    def _crowded(self) -> bool:
        """Return whether there are more holders than permits.

        The processes cannot be read atomically. But a process that is a holder in the same turn in
        two consecutive reads was a holder at all times between them.
        """
        looks = slice(self._of(0, self._WITHIN), self._of(self.processes, 0), PER_PROCESS)
        first, second = self.words[looks].tolist(), self.words[looks].tolist()
        return sum(one != 0 and one == other for one, other in zip(first, second)) > self.permits

    def _of(self, index: int, word: int) -> int:
        return HEAD + index * PER_PROCESS + word

    def _log_of(self, index: int) -> int:
        return HEAD + self.processes * PER_PROCESS + index * self.words[self.ROOM] * PER_TURN

    def _turns_of(self, index: int) -> Iterator[Acquisition]:
        at, count = self._log_of(index), self.words[self._of(index, self._TURNS)]
        log = self.words[at : at + count * PER_TURN].tolist()
        for asked, entered, left, fence in zip(*[iter(log)] * PER_TURN):
            yield Acquisition(entered, left, asked, fence, index)
