"""The board: shared memory on which the processes of a race tell what they did, and when.

In 64-bit words, and in this order (worker.h has the same as structs):

  16 words       start and stop (0 until they come), how many processes, room in a log, hold,
                 permits (1: a lock); in the second half, of a lock, who is inside: 1 + its index,
                 0 is nobody
  16 a process   ready, since when it has been asking (0 when it is not), turns in its log,
                 clashes (turns in which it saw too many inside), processor time; of a semaphore,
                 whether it is inside: 1 + the number of its turn, 0 when it is not
  logs           for each process `room` turns of 4 words: asked, entered, left, fence

All times are nanoseconds of CLOCK_MONOTONIC, which is one clock for all processes. Each process
has a log of its own, so that a lock that lets two in at once cannot spoil the record of it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import NamedTuple

HEAD = PER_PROCESS = 16
PER_TURN = 4
WORD = 8


class Turn(NamedTuple):
    """One acquisition, by the process of that index."""

    entered_ns: int
    left_ns: int
    asked_ns: int
    fence: int
    process: int


class Board:
    """The board, from the harness's side and from a Python worker's."""

    START, STOP, PROCESSES, ROOM, HOLD, PERMITS, INSIDE = 0, 1, 2, 3, 4, 5, 8
    _READY, _ASKED, _TURNS, _CLASHES, _CPU, _WITHIN = range(6)

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.words = memoryview(mmap.mmap(fd, size)).cast("Q")

    @classmethod
    def new(cls, processes: int, room: int, hold_ns: int, permits: int) -> Board:
        """A blank board in memory of its own, which a child inherits with its `fd`."""
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
        """The board that the harness made."""
        return cls(fd, os.fstat(fd).st_size)

    def close(self) -> None:
        """Give the harness's side of the memory back."""
        self.words.release()
        os.close(self.fd)

    @property
    def start_ns(self) -> int:
        """When all begin; 0 until that is known."""
        return self.words[self.START]

    @property
    def stop_ns(self) -> int:
        """When the race was over; 0 until then."""
        return self.words[self.STOP]

    @property
    def processes(self) -> int:
        """How many contend."""
        return self.words[self.PROCESSES]

    @property
    def hold_ns(self) -> int:
        """How long each holds the lock."""
        return self.words[self.HOLD]

    @property
    def permits(self) -> int:
        """How many may be inside at once."""
        return self.words[self.PERMITS]

    def all_ready(self) -> bool:
        """Whether every process is connected and waits for the start."""
        return all(self.words[self._of(i, self._READY)] for i in range(self.processes))

    def set_ready(self, index: int) -> None:
        """Say that this process waits for the start."""
        self.words[self._of(index, self._READY)] = 1

    def all_had_a_turn(self) -> bool:
        """Whether every process has had the lock and let it go."""
        return all(self.words[self._of(i, self._TURNS)] for i in range(self.processes))

    def set_cpu_ns(self, index: int, cpu_ns: int) -> None:
        """Say what this process used of the processor in the race."""
        self.words[self._of(index, self._CPU)] = cpu_ns

    def asked_at(self, index: int) -> int:
        """The word that says since when this process has been asking."""
        return self._of(index, self._ASKED)

    def enter(self, index: int, turn: int) -> None:
        """Say that this process is inside, and count if there are too many."""
        words = self.words
        if words[self.PERMITS] == 1:
            clash = words[self.INSIDE] != 0
            words[self.INSIDE] = 1 + index
        else:
            words[self._of(index, self._WITHIN)] = 1 + turn
            clash = self._crowded()
        words[self._of(index, self._CLASHES)] += clash

    def leave(self, index: int) -> None:
        """Say that this process is not inside any more."""
        words = self.words
        if words[self.PERMITS] == 1:
            words[self._of(index, self._CLASHES)] += words[self.INSIDE] != 1 + index
            words[self.INSIDE] = 0
        else:
            words[self._of(index, self._WITHIN)] = 0

    def log(self, index: int, number: int, turn: tuple[int, int, int, int]) -> None:
        """Write a turn (asked, entered, left, fence) as the one of that number."""
        at = self._log_of(index) + number * PER_TURN
        if number == self.words[self.ROOM]:
            raise RuntimeError(f"the log of {number} turns is full")
        words = self.words
        words[at], words[at + 1], words[at + 2], words[at + 3] = turn
        words[self._of(index, self._TURNS)] = number + 1

    def turns(self) -> list[Turn]:
        """All turns of all processes, in the order in which they were entered."""
        return sorted(turn for index in range(self.processes) for turn in self._turns_of(index))

    def open_waits(self) -> list[int]:
        """Since when those have been asking that were still asking when they stopped."""
        asked = (self.words[self.asked_at(index)] for index in range(self.processes))
        return [since for since in asked if since]

    def clashes(self) -> int:
        """How often a process saw too many inside."""
        return sum(self.words[self._of(i, self._CLASHES)] for i in range(self.processes))

    def cpu_ns(self) -> int:
        """What all processes used of the processor in the race."""
        return sum(self.words[self._of(index, self._CPU)] for index in range(self.processes))

    def _crowded(self) -> bool:
        """Whether more are inside than there are permits.

        There is no one moment at which all can be looked at: but who is inside by the same turn at
        both of two looks was so at all times between them.
        """
        looks = slice(self._of(0, self._WITHIN), self._of(self.processes, 0), PER_PROCESS)
        first, second = self.words[looks].tolist(), self.words[looks].tolist()
        return sum(one != 0 and one == other for one, other in zip(first, second)) > self.permits

    def _of(self, index: int, word: int) -> int:
        return HEAD + index * PER_PROCESS + word

    def _log_of(self, index: int) -> int:
        return HEAD + self.processes * PER_PROCESS + index * self.words[self.ROOM] * PER_TURN

    def _turns_of(self, index: int) -> Iterator[Turn]:
        at, count = self._log_of(index), self.words[self._of(index, self._TURNS)]
        log = self.words[at : at + count * PER_TURN].tolist()
        for asked, entered, left, fence in zip(*[iter(log)] * PER_TURN):
            yield Turn(entered, left, asked, fence, index)
