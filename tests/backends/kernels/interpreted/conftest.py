"""Tests of kernels for GPUs on a CPU, which only Triton's interpreter runs: `test_interpreted.py` collects them."""

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
