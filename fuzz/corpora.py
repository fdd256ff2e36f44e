"""The fuzzers' corpora: one text file a target, one input a line.

A line is a name, a space, and the input with all that is no printable ASCII escaped as in a Python
string. An input without a name is one that the fuzzer found; "-" stands for its name.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

PACKED = Path(__file__).resolve().parent / "corpus"
FOUND = "-"


def escape(data: bytes) -> str:
    """Turn an input into text."""
    return data.decode("latin-1").encode("unicode_escape").decode("ascii")


def unescape(text: str) -> bytes:
    """Turn the text of an input back into the input."""
    return text.encode("ascii").decode("unicode_escape").encode("latin-1")


def name_of(data: bytes) -> str:
    """The file name that libFuzzer gives to an input."""
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def read(target: str) -> dict[str, bytes]:
    """The inputs of a target by their file names."""
    inputs = {}
    for line in (PACKED / f"{target}.txt").read_text(encoding="ascii").splitlines():
        name, _, text = line.partition(" ")
        data = unescape(text)
        inputs[name_of(data) if name == FOUND else name] = data
    return inputs


def write(target: str, inputs: dict[str, bytes]) -> None:
    """Write the packed corpus of a target: named inputs first, then the shortest."""

    def key(item: tuple[str, bytes]) -> tuple[bool, str, int, bytes]:
        name, data = item
        return (name == FOUND, name, len(data), data)

    named = ((FOUND if name == name_of(data) else name, data) for name, data in inputs.items())
    lines = [f"{name} {escape(data)}\n" for name, data in sorted(named, key=key)]
    (PACKED / f"{target}.txt").write_text("".join(lines), encoding="ascii")
    assert read(target) == inputs, f"{target}: what was written is not what was to be written"


def unpack(target: str, folder: Path) -> None:
    """Write the inputs of a target as files into an empty folder."""
    for name, data in read(target).items():
        (folder / name).write_bytes(data)
