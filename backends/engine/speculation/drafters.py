"""The drafters that an engine is started with."""

import msgspec

from backends.engine.runner import load_runner
from backends.engine.speculation.drafter import Drafter
from backends.engine.speculation.model_drafter import ModelDrafter
from backends.engine.speculation.ngram import NgramDrafter
from backends.wire import EngineConfig


def drafters_for(config: EngineConfig, vocab_size: int) -> list[Drafter]:
    """In the order in which they are to be asked: what costs nothing goes first.

    `vocab_size`: of the model that verifies. Raises as `load_runner`, and ValueError for a model that cannot draft.
    """
    drafters: list[Drafter] = []
    if config.speculation.method in ("ngram", "both"):
        drafters.append(_ngram())
    if config.speculation.method in ("draft", "both"):
        drafters.append(_model(config, vocab_size))
    return drafters


def _ngram() -> NgramDrafter:
    drafter = NgramDrafter()
    drafter.warm_up()
    return drafter


def _model(config: EngineConfig, vocab_size: int) -> ModelDrafter:
    asked, draft = config.speculation, config.speculation.draft
    if draft is None:
        raise ValueError(f"speculation.draft: method {asked.method} needs a model")
    smaller = msgspec.structs.replace(
        config,
        name=f"{config.name} draft",
        model=draft,
        max_model_len=None,
        tensor_parallel=1,  # the first rank drafts alone: it is the one that samples
        quantization=asked.draft_quantization or config.quantization,
    )
    runner, _, size, length = load_runner(smaller, vocab_size)
    if size != vocab_size:
        raise ValueError(f"speculation.draft: {draft} has {size} tokens, the model {vocab_size}")
    if runner.border is not None:
        raise ValueError(
            f"speculation.draft: {draft} rotates long sequences in another way, which is not supported"
        )
    return ModelDrafter(runner, config.kv_blocks, length)
