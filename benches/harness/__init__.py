"""The parts of benches/run."""

import sys
from pathlib import Path

# For private_memcached, which the demo uses too.
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "support"))
