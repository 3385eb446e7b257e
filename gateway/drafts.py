"""Whether models that draft speak the language of those that they draft for, as far as both are on this machine."""

from collections.abc import Iterator

from backends.catalogue import ModelError, here
from backends.tokenizer import same_vocabulary
from gateway.config import Config
from gateway.strictyaml import Path as Place


def faults(config: Config) -> Iterator[tuple[Place, str]]:
    """Why engines would not start, by the place in the configuration. Of models that are not here nothing is said."""
    for i, tier in enumerate(config.tiers):
        for j, engine in enumerate(tier.engines):
            draft = engine.speculation.draft
            if draft is None or (model := here(engine.model)) is None or (other := here(draft)) is None:
                continue
            place = ("tiers", i, "engines", j, "speculation", "draft")
            try:
                if not same_vocabulary(model, other):
                    yield place, f"{draft} has another vocabulary than {engine.model}"
            except ModelError as error:
                yield place, str(error)
