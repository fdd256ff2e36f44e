"""The parts of benches/run."""
