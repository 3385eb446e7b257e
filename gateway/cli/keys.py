"""`headrace keys`: keys for tenants.

A key is changed without downtime in three steps: `keys new`, and the lines that it prints stand beside the old key's;
clients take the new key; the old one is given a `not_after`, or goes.
"""

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.cli.arguments import Commands
    from gateway.config import Key


def add(commands: "Commands") -> None:
    parser = commands.add_parser("keys", help="make and list keys of tenants")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    new = actions.add_parser("new", help="make a key; it is shown once")
    new.add_argument("--tenant", type=_name, default="NAME", help="whose key it is")
    new.add_argument("--not-after", type=_moment, metavar="TIME", help="when it ends: 2030-01-31T12:00:00Z")
    listed = actions.add_parser("list", help="which keys a configuration knows, and until when")
    for action in (new, listed):
        action.add_argument(
            "--config", type=Path, metavar="FILE", required=True, help="of the gateways that know the keys"
        )
    new.set_defaults(command=make_key)
    listed.set_defaults(command=list_keys)


def _name(text: str) -> str:
    from msgspec import ValidationError, convert

    from gateway.config import Tenant

    try:
        return convert({"name": text}, Tenant).name
    except ValidationError:
        raise argparse.ArgumentTypeError("must be 1 to 64 letters, digits, '.', '_' or '-'") from None


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise argparse.ArgumentTypeError("must be a time with its zone, like 2030-01-31T12:00:00Z")
    if moment <= datetime.now(UTC):
        raise argparse.ArgumentTypeError("is over already, and the key would open nothing")
    return moment


def make_key(options: argparse.Namespace) -> int:
    """A key fits only gateways with the same secret, which the configuration says where to find."""
    from gateway.configfile import load_config
    from gateway.tenants import new_key, server_secret

    config = load_config(options.config)
    key, stored = new_key(server_secret(config))
    place = f"the variable {config.secret_env}" if config.secret_env else f"{config.state.folder}/secret"
    end = "" if options.not_after is None else f', not_after: "{options.not_after.isoformat()}"'
    print(f"Key, shown this once: {key}")
    print(f"It fits gateways whose secret is that in {place}.")
    print("For the configuration, which keeps only its digest:")
    print(f"tenants:\n  - name: {options.tenant}\n    keys:")
    print(f'      - {{prefix: "{stored.prefix}", digest: "{stored.digest}"{end}}}')
    return 0


def list_keys(options: argparse.Namespace) -> int:
    """One line per key: tenant, first characters, and whether it opens anything."""
    from gateway.configfile import load_config

    tenants = load_config(options.config).tenants
    width = max((len(tenant.name) for tenant in tenants), default=0)
    for tenant in tenants:
        for key in tenant.keys:
            print(f"{tenant.name:{width}}  {key.prefix}  {_state(key)}")
    return 0


def _state(key: "Key") -> str:
    if key.not_after is None:
        return "valid"
    ended = key.not_after <= datetime.now(UTC)
    return f"{'ended' if ended else 'valid until'} {key.not_after.isoformat()}"
