"""What a message calls a mutex or a semaphore."""

from __future__ import annotations


def subject_of(core: object) -> str:
    """Return the class and the name of an object that holds nothing."""
    return repr(core).removeprefix("<").removesuffix(" not held>")
