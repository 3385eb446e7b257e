"""Whether the models are what engines can run, and fit what is asked of them, as far as they are on this machine."""

from collections.abc import Iterator
from pathlib import Path

from backends.catalogue import CATALOGUE, ModelError, here
from backends.tokenizer import Tokenizer, same_vocabulary
from gateway.config import Config, Engine
from gateway.planning.subject import subject
from gateway.strictyaml import Path as Place


def faults(config: Config) -> Iterator[tuple[Place, str]]:
    """Why engines would not start, by the place in the configuration. Of models that are not here nothing is said."""
    for i, tier in enumerate(config.tiers):
        for j, engine in enumerate(tier.engines):
            for field, reason in _misfits(engine):
                yield ("tiers", i, "engines", j, *field), reason


def _misfits(engine: Engine) -> Iterator[tuple[Place, str]]:
    draft = engine.speculation.draft
    broken = {
        field: _broken(name)
        for field, name in ((("model",), engine.model), (("speculation", "draft"), draft))
    }
    yield from ((field, reason) for field, reason in broken.items() if reason is not None)
    model, other = here(engine.model), None if draft is None else here(draft)
    if model is None or any(broken.values()):
        return
    if engine.max_model_len is not None and model.is_dir():
        most = subject(str(model)).config.max_positions
        if engine.max_model_len > most:
            yield (
                ("max_model_len",),
                f"{engine.max_model_len} is more than the {most} tokens of {engine.model}",
            )
    if other is not None and not same_vocabulary(model, other):
        yield ("speculation", "draft"), f"{draft} has another vocabulary than {engine.model}"


def _broken(name: str | None) -> str | None:
    """What is wrong with a model that is here, or is a file that is none."""
    if name is None:
        return None
    path = Path(name).expanduser()
    if name not in CATALOGUE and path.is_file() and path.suffix != ".gguf":
        return f"{name} is neither a folder nor a .gguf file"
    model = here(name)
    if model is None or not model.is_dir():
        return None
    missing = [file for file in ("config.json", "tokenizer.json") if not (model / file).is_file()]
    if missing:
        return f"{model} has no {missing[0]}"
    try:
        subject(str(model))
        Tokenizer(model)
    except (ModelError, ValueError) as error:
        return str(error).removeprefix("--model: ")
    return None
