"""`headrace keys`: keys for tenants."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.cli.arguments import Commands


def add(commands: "Commands") -> None:
    parser = commands.add_parser("keys", help="make keys for tenants")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    new = actions.add_parser("new", help="make a key; it is shown once")
    new.add_argument("--tenant", default="NAME", help="whose key it is")
    new.add_argument(
        "--config", type=Path, metavar="FILE", required=True, help="of the gateways that will know the key"
    )
    new.set_defaults(command=make_key)


def make_key(options: argparse.Namespace) -> int:
    """A key fits only gateways with the same secret, which the configuration says where to find."""
    from gateway.configfile import load_config
    from gateway.tenants import new_key, server_secret

    config = load_config(options.config)
    key, stored = new_key(server_secret(config))
    place = f"the variable {config.secret_env}" if config.secret_env else f"{config.state.folder}/secret"
    print(f"Key, shown this once: {key}")
    print(f"It fits gateways whose secret is that in {place}.")
    print("For the configuration, which keeps only its digest:")
    print(f"tenants:\n  - name: {options.tenant}\n    keys:")
    print(f'      - {{prefix: "{stored.prefix}", digest: "{stored.digest}"}}')
    return 0
