"""What all scenarios have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from .crew import Crew
    from .show import Progress
    from .verdict import Expected

# The guard of all URLs. A lease of 3 s is not longer.
GUARD_S = 4

# With -M a full server answers with an error; without it, locks would be evicted. With -F no client
# can delete all locks.
FLAGS = ("-M", "-F", "-m", "64", "-t", "2")


class Scenario(ABC):
    """Servers, and what happens to them. Its servers are killed when the `with` statement ends."""

    # The head of the scenario's columns in the table.
    title: ClassVar[str]

    def __enter__(self) -> Scenario:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    @abstractmethod
    def url(self) -> str:
        """What the workers connect to."""

    @abstractmethod
    def close(self) -> None:
        """End the servers."""

    @abstractmethod
    def again(self) -> Scenario:
        """Return the same scenario with new servers."""

    @abstractmethod
    def prepare(self, crew: Crew, progress: Progress) -> None:
        """Wait until the servers grant locks."""

    @abstractmethod
    def disturb(self, crew: Crew, progress: Progress) -> None:
        """Do to the servers what the workers' locks have to outlive."""

    @abstractmethod
    def expected(self) -> Expected:
        """Return what the workers may expect."""
