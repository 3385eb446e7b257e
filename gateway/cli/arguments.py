"""What several commands are told alike."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from gateway.config import Config

    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]


def add_source(parser: argparse.ArgumentParser) -> None:
    """Where the configuration comes from."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--preset", help="a configuration that comes with the package (default: laptop)")
    either.add_argument("--config", type=Path, metavar="FILE", help="a configuration file")


def load(options: argparse.Namespace) -> "Config":
    """The configuration that the options mean. Raises ConfigError."""
    from gateway.configfile import load_config, load_preset

    if options.config is not None:
        return load_config(options.config)
    return load_preset(options.preset or "laptop")
