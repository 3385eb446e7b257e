"""`python -m backends.engine CONFIG.json [--parent PID]`: one engine with the model that the config names."""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from backends.engine.faults import with_fault
from backends.engine.process import Steps, main
from backends.wire import EngineConfig, Vocabulary


def build(config: EngineConfig) -> tuple[Steps, Callable[[int], None]]:
    """Load model and vocabulary. Raises what the loaders raise."""
    # Only now: OpenMP and numba read the environment when torch and numba are imported.
    from backends.engine.engine import Engine
    from backends.engine.runner import load_runner
    from backends.engine.speculation.drafters import drafters_for
    from backends.engine.trial import TriedCompiler

    vocabulary = msgspec.msgpack.decode(Path(config.vocabulary).read_bytes(), type=Vocabulary)
    load = load_runner
    if config.tensor_parallel > 1:
        from backends.engine.parallel.leader import lead as load
    runner, eos, vocab_size, max_model_len = load(config, len(vocabulary.data))
    served = with_fault(runner, os.environ)
    engine = Engine(
        config,
        served,
        vocabulary.data,
        eos,
        vocab_size,
        max_model_len,
        border=runner.border,
        compile=TriedCompiler(vocabulary, eos, vocab_size).compile,
        drafters=drafters_for(config, vocab_size),
        follow=runner.overlap if served is runner else None,
    )
    return engine, runner.set_threads


if __name__ == "__main__":
    main(build)
