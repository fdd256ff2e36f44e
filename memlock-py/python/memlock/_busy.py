"""The response to a request whose lock is busy."""

from __future__ import annotations

import logging
from typing import Any

from memlock._memlock import TimedOut

_log = logging.getLogger("memlock")

# The log names the holder; the response does not.
busy_text = "Another request is being processed. Try again later."


def log_refused(error: TimedOut) -> None:
    """Log that a request was refused. The message names the lock and its holder."""
    _log.info("A request was refused. %s", str(error))


def check_retry_after(seconds: Any) -> None:
    """Raise TypeError for anything but a whole number."""
    if not isinstance(seconds, int):
        raise TypeError(f"retry_after must be a whole number of seconds, and not {seconds!r}")
