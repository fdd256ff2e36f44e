"""How the message of a breach of safety begins: see safety.rs."""

from __future__ import annotations

MARKER = "SAFETY VIOLATED: "
