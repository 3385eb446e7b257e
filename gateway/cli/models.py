"""`headrace models`: pull and list models."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.cli.arguments import Commands


def add(commands: "Commands") -> None:
    parser = commands.add_parser("models", help="pull and list models")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    pull = actions.add_parser("pull", help="download, check and convert models")
    pull.add_argument("names", nargs="*", metavar="NAME", help="of the catalogue")
    pull.add_argument("--preset", help="all models of this preset")
    pull.set_defaults(command=pull_models)
    actions.add_parser("list", help="what the catalogue has").set_defaults(command=list_models)


def pull_models(options: argparse.Namespace) -> int:
    """Models that are there are left alone."""
    from gateway.configfile import load_preset

    names = list(options.names)
    if options.preset is not None or not names:
        names += load_preset(options.preset or "laptop").models
    return pull_missing(names, say=True)


def pull_missing(models: Sequence[str], *, say: bool = False) -> int:
    """Pull those of the catalogue that are missing; folders and files of the operator's own are left to `resolve`."""
    from backends.catalogue import CATALOGUE, find
    from backends.pull import Bar, pull

    for name in dict.fromkeys(models):
        if not say and name not in CATALOGUE:
            continue
        entry = find(name)
        if not entry.present:
            with Bar() as bar:
                pull(entry, bar)
        if say:
            print(f"{name}: {entry.folder}")
    return 0


def list_models(options: argparse.Namespace) -> int:
    """One line per model of the catalogue."""
    from backends.catalogue import CATALOGUE

    width = max(map(len, CATALOGUE))
    for entry in CATALOGUE.values():
        state = "pulled" if entry.present else "absent"
        print(f"{entry.name:{width}}  {entry.size / 1e6:7.1f} MB  {state}  {entry.licence}")
        for source in entry.sources:
            print(f"{'':{width}}  from {source}")
    return 0
