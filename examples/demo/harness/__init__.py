"""The modules of examples/demo/run.

| module | what it does |
| --- | --- |
| `corpus` | finds the input, cuts it into units, counts its words directly |
| `tools` | reports missing programs, compiles the workers |
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
    """The reason why the demo cannot continue, as a sentence."""
