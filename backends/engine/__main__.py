"""`python -m backends.engine CONFIG.json [--parent PID]`: run one engine until a signal ends it.

With `--parent` the engine dies with that process, however it ends (prctl(2), PR_SET_PDEATHSIG; Linux).
"""

import argparse
import ctypes
import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from backends.engine.process import serve
from backends.wire import EngineConfig

PR_SET_PDEATHSIG = 1
SPIN_COUNT = 2000  # short: a thread that waits longer sleeps, and leaves its core to the other engines


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Raises whatever keeps the engine from starting; the interpreter then prints it and exits with status 1."""
    parser = argparse.ArgumentParser(prog="python -m backends.engine")
    parser.add_argument("config", type=Path, help="JSON file, see backends.wire.EngineConfig")
    parser.add_argument("--parent", type=int, help="process to die with")
    options = parser.parse_args(arguments)
    if options.parent is not None:
        die_with(options.parent)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    run(msgspec.json.decode(options.config.read_bytes(), type=EngineConfig))


def run(config: EngineConfig) -> NoReturn:
    """Load the model and serve it."""
    os.environ.update(thread_environment(config.cores))
    # Only now: OpenMP and numba read the environment when torch and numba are imported.
    from backends.engine.engine import Engine
    from backends.engine.runner import load_runner

    vocabulary = msgspec.msgpack.decode(Path(config.vocabulary).read_bytes(), type=list[bytes])
    runner, eos, vocab_size, max_model_len = load_runner(config)
    engine = Engine(config, runner, vocabulary, eos, vocab_size, max_model_len)
    serve(config, engine, runner.set_threads)


def thread_environment(cores: int) -> dict[str, str]:
    """How the thread pools of the numeric libraries behave in an engine; they never spin for long."""
    return {
        "OMP_NUM_THREADS": str(cores),
        "GOMP_SPINCOUNT": str(SPIN_COUNT),
        "KMP_BLOCKTIME": "0",
        "MKL_NUM_THREADS": str(cores),
        "NUMBA_NUM_THREADS": str(cores),
        "OPENBLAS_NUM_THREADS": "1",
    }


def die_with(parent: int) -> None:
    """Be killed when `parent` ends; at once if it has ended already. Raises OSError where that is impossible."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        raise SystemExit(f"process {parent}, which started this engine, is gone")


if __name__ == "__main__":
    main()
