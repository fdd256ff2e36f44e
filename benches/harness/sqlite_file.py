"""A private SQLite file."""

from __future__ import annotations

import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "target" / "bench"


class SqliteFile:
    """The URL of a file that does not exist yet, in a directory of its own until `close`."""

    def __init__(self) -> None:
        """On the file system of the build, since a temporary directory may be in memory."""
        FOLDER.mkdir(parents=True, exist_ok=True)
        self._folder = tempfile.TemporaryDirectory(prefix="sqlite-", dir=FOLDER)
        self.url = f"sqlite://{Path(self._folder.name) / 'locks.db'}"

    def close(self) -> None:
        """Delete the directory."""
        self._folder.cleanup()
