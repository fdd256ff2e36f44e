"""What examples/demo/run is made of.

| module | what it does |
| --- | --- |
| `corpus` | finds the input, cuts it into units, counts its words the plain way |
| `tools` | says what is not installed, compiles the workers |
| `crew` | starts the workers, kills one, waits for the others |
| `journal` | reads the workers' reports |
| `verdict` | checks the reports against each other and against the input |
| `show` | progress, and the table at the end |
"""

from __future__ import annotations

import sys
from pathlib import Path

# For private_memcached, which the benchmarks use too.
sys.path.append(str(Path(__file__).resolve().parents[3] / "tests" / "support"))


class DemoError(Exception):
    """Why the demo cannot go on, in a sentence."""
