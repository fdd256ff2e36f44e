"""The input: copies of files, cut into units of work, and a direct count of their words."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import DemoError

ROOT = Path(__file__).resolve().parents[3]
DEFAULT = (ROOT, Path("/usr/share/common-licenses"))

# A word, as in the workers: a longest run of these, with A to Z converted to a to z.
WORD = re.compile(rb"[A-Za-z\x80-\xff]+")
NOT_IN_WORD = re.compile(rb"[^A-Za-z\x80-\xff]")

# The longest key of a distinct list. A file with a longer "word" is not text.
LONGEST_WORD = 65536

# Directories with build output.
BUILT = {"target", "__pycache__"}


@dataclass(frozen=True)
class Unit:
    """A piece of a file that only one worker processes."""

    offset: int
    length: int
    path: Path


@dataclass
class Corpus:
    """All the input, copied to `directory`, because the files may change during the run."""

    directory: Path
    files: int = 0
    skipped: int = 0
    units: list[Unit] = field(default_factory=list)
    words: Counter[bytes] = field(default_factory=Counter)

    def write_plan(self, path: Path) -> None:
        """Write the units for the workers: one per line, in the order of their numbers."""
        with open(path, "wb") as plan:
            for unit in self.units:
                plan.write(b"%d %d %s\n" % (unit.offset, unit.length, os.fsencode(unit.path)))

    def add(self, text: bytes, unit_size: int) -> None:
        """Add the content of a file, if it is text and contains words."""
        words = Counter(WORD.findall(text.lower()))
        if not words:
            return
        if b"\0" in text or len(max(words, key=len)) > LONGEST_WORD:
            self.skipped += 1
            return
        copy = self.directory / f"input-{self.files}"
        copy.write_bytes(text)
        self.files += 1
        self.words += words
        self.units += (Unit(start, end - start, copy) for start, end in _cut(text, unit_size))


def read(given: Sequence[Path], unit_size: int, directory: Path) -> Corpus:
    """Read files, and all files below directories, except hidden files and build output."""
    corpus = Corpus(directory)
    try:
        for path in sorted({path.resolve() for path in _files(given)}):
            corpus.add(path.read_bytes(), unit_size)
    except OSError as error:
        raise DemoError(f"{error.filename} cannot be read: {error.strerror}.") from error
    if not corpus.units:
        raise DemoError("There is not a single word in the input.")
    return corpus


def _files(given: Sequence[Path]) -> Iterator[Path]:
    for path in given or (path for path in DEFAULT if path.exists()):
        if not path.is_dir():
            yield path
            continue
        for directory, below, names in os.walk(path):
            below[:] = (name for name in below if name not in BUILT and not name.startswith("."))
            found = (Path(directory, name) for name in names if not name.startswith("."))
            yield from (path for path in found if path.is_file())


def _cut(text: bytes, size: int) -> Iterator[tuple[int, int]]:
    """Cut at the first end of a word after each `size` bytes."""
    start = 0
    while start < len(text):
        boundary = NOT_IN_WORD.search(text, start + size)
        end = boundary.start() if boundary else len(text)
        yield start, end
        start = end
