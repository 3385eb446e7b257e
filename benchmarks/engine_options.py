"""Options that say which model an engine has and how it keeps the weights: what is wrong ends the program in one line,
before anything is measured.
"""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any, get_args

from backends.catalogue import ModelError, resolve
from backends.engine.runner import describe
from backends.models.formats import possible
from backends.tokenizer import Tokenizer
from backends.wire import EngineConfig, Quantization
from gateway.config import WHOLE

QUANTIZATIONS = (*get_args(Quantization), *WHOLE)  # as the gateway's file has them


def told(quantization: str) -> dict[str, Any]:
    """What an engine is told instead of a name of QUANTIZATIONS."""
    if quantization in WHOLE:
        return {"quantization": "none", "dtype": WHOLE[quantization]}
    return {"quantization": quantization}


def model_folder(parser: ArgumentParser, model: str, option: str | None = None) -> Path:
    """Where a model lies. `option`: by which it was named, unless it is the benchmark's own."""
    try:
        return resolve(model)
    except ModelError as error:
        parser.error(str(error) if option is None else f"argument {option}: {error}")


def check_engine(parser: ArgumentParser, config: EngineConfig, which: str = "") -> None:
    """Whether an engine could be so, without its weights. `which`: what the names of its options begin with."""
    try:
        possible(config.quantization, config.device)
    except ValueError as error:  # which begins with the field
        parser.error(f"argument --{which}{error}")
    try:
        describe(config)
    except (ValueError, OSError) as error:
        parser.error(f"{config.model}: {str(error).removeprefix(f'{config.model}: ')}")


def check_tokenizer(parser: ArgumentParser, folder: Path, option: str) -> None:
    """Whether a model has one that can be read."""
    try:
        Tokenizer(folder)
    except ModelError as error:
        parser.error(f"argument {option}: {error}")
