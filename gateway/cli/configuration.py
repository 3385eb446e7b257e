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
    """Raises ConfigError."""
    from gateway.configfile import load_config

    load_config(options.file)
    print(f"{options.file}: no mistakes")
    return 0


def print_schema(options: argparse.Namespace) -> int:
    import msgspec

    from gateway.configfile import config_schema

    print(msgspec.json.format(msgspec.json.encode(config_schema()), indent=2).decode())
    return 0
