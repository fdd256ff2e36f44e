"""The modules of examples/failover/run.

| module | what it does |
| --- | --- |
| `tools` | reports missing programs, compiles the worker in C |
| `crew` | starts the workers, watches them, ends them |
| `journal` | reads the workers' reports |
| `scenario` | what all scenarios have in common |
| `one_server` | a scenario: one server with a guard, killed and restarted |
| `three_servers` | a scenario: a quorum of three servers, one at a time killed or stopped |
| `verdict` | checks the reports against each other and against what happened to the servers |
| `show` | progress, and the table at the end |

A scenario says where the locks are (`url`), when the workers may start (`prepare`), what happens to
the servers while they work (`disturb`), and what they may expect of them (`expected`). All else is
the same for every scenario; examples/failover/run goes through them, and shows one table for all.
"""

from __future__ import annotations

import sys
from pathlib import Path

# For private_memcached, which the benchmarks use too.
sys.path.append(str(Path(__file__).resolve().parents[3] / "tests" / "support"))

# The limit for events that must happen, however slow the machine.
PATIENCE_S = 90.0


class FailoverError(Exception):
    """The reason why the demo cannot continue, as a sentence."""
