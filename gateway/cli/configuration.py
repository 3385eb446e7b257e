"""`headrace config`: check a configuration, or print its JSON schema."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.cli.arguments import Commands


def add(commands: "Commands") -> None:
    parser = commands.add_parser("config", help="check a configuration, or print its JSON schema")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    check = actions.add_parser("check", help="list every mistake, with its line")
    check.add_argument("file", type=Path, metavar="FILE")
    check.set_defaults(command=check_file)
    actions.add_parser("schema", help="print the JSON schema").set_defaults(command=print_schema)


def check_file(options: argparse.Namespace) -> int:
    """Raises ConfigError, ValueError. Checked too are quality gates, models that draft, context lengths, the classifier
    and the calibration, as far as they are on this machine."""
    from gateway import fitting, learned, quality
    from gateway.configfile import load_config
    from gateway.live import shut, unadministered

    config = load_config(options.file, quality.faults, fitting.faults)
    try:
        notes = list(learned.checked(config))
    except ValueError as error:
        raise ValueError(f"{options.file}: {error}") from error
    print(f"{options.file}: no mistakes")
    told = shut(config)
    if told is None and config.tenants:  # without, nobody expects to administer it
        told = unadministered(config)
    if told is not None:
        notes.insert(0, told)
    for note in notes:
        print(f"{options.file}: {note}")
    for model in quality.unchecked(config):
        print(
            f"{options.file}: the quality gate of {model} is not checked, as the model is not on this machine"
        )
    return 0


def print_schema(options: argparse.Namespace) -> int:
    import msgspec

    from gateway.configfile import config_schema

    print(msgspec.json.format(msgspec.json.encode(config_schema()), indent=2).decode())
    return 0
