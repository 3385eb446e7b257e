"""Measurements against a peer or a limit in the same run: `python -m benchmarks.NAME [--quick] [--json FILE]`."""
