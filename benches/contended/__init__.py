"""The parts of benches/run-contended."""
