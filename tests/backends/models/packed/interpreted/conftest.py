"""Packed models through the kernels for GPUs on a CPU, see `kernels/interpreted`."""

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
