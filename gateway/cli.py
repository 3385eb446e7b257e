"""The command `headrace`. Mistakes of the operator end in one plain line each on stderr and status 2."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # loaded when a command needs them, so that --help is quick
    from gateway.config import Config

FAILED = 2
Command = Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["train"]:
        from classifier.train import main as train

        return train(words[1:])
    options = _parser().parse_args(words)
    command: Command = options.command
    try:
        return command(options)
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # or flushing it at exit would complain
        return 128 + signal.SIGPIPE
    except (ValueError, OSError) as error:
        # What an operator can mend: our errors of that kind are ValueErrors. Anything else shows where it came from.
        print(error, file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace", description="A cascading multi-model LLM gateway.")
    parser.add_argument("--version", action="version", version=f"headrace {version('headrace')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _serve_parser(commands.add_parser("serve", help="run the gateway and its engines"))
    _models_parser(commands.add_parser("models", help="pull and list models"))
    _keys_parser(commands.add_parser("keys", help="make keys for tenants"))
    _config_parser(commands.add_parser("config", help="check a configuration, or print its JSON schema"))
    commands.add_parser("train", help="fit the classifier on graded outcomes; see headrace train --help")
    return parser


def _source(parser: argparse.ArgumentParser) -> None:
    """Where the configuration comes from."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--preset", help="a configuration that comes with the package (default: laptop)")
    either.add_argument("--config", type=Path, metavar="FILE", help="a configuration file")


def _serve_parser(parser: argparse.ArgumentParser) -> None:
    _source(parser)
    parser.add_argument("--host", help="instead of the configuration's")
    parser.add_argument("--port", type=_port, help="instead of the configuration's; 0 takes a free one")
    parser.set_defaults(command=serve)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise argparse.ArgumentTypeError("must be a number from 0 to 65535")
    return int(text)


def _models_parser(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    pull = actions.add_parser("pull", help="download, check and convert models")
    pull.add_argument("names", nargs="*", metavar="NAME", help="of the catalogue")
    pull.add_argument("--preset", help="all models of this preset")
    pull.set_defaults(command=pull_models)
    actions.add_parser("list", help="what the catalogue has").set_defaults(command=list_models)


def _keys_parser(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    new = actions.add_parser("new", help="make a key; it is shown once")
    new.add_argument("--tenant", default="NAME", help="whose key it is")
    new.add_argument(
        "--config", type=Path, metavar="FILE", required=True, help="of the gateways that will know the key"
    )
    new.set_defaults(command=make_key)


def _config_parser(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    check = actions.add_parser("check", help="list every mistake, with its line")
    check.add_argument("file", type=Path, metavar="FILE")
    check.set_defaults(command=check_file)
    actions.add_parser("schema", help="print the JSON schema").set_defaults(command=print_schema)


def _load(options: argparse.Namespace) -> "Config":
    from gateway.configfile import load_config, load_preset

    if options.config is not None:
        return load_config(options.config)
    return load_preset(options.preset or "laptop")


def serve(options: argparse.Namespace) -> int:
    """Pull what is missing, start everything, serve until a signal."""
    from backends.backend import BackendError
    from backends.supervisor import EngineStartError
    from gateway.server import run
    from gateway.telemetry import configure_logging

    config = _with_address(_load(options), options)
    configure_logging(config.telemetry.log_level)
    _pull([engine.model for tier in config.tiers for engine in tier.engines])
    try:
        run(_serve(config))
    except (EngineStartError, BackendError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _with_address(config: "Config", options: argparse.Namespace) -> "Config":
    """The configuration with `--host` and `--port`, as strictly checked as if they stood in the file."""
    from msgspec.structs import replace

    from gateway.configfile import check_config

    given = {name: value for name in ("host", "port") if (value := getattr(options, name)) is not None}
    config = replace(config, server=replace(config.server, **given))
    check_config(config, "command line")
    return config


async def _serve(config: "Config") -> None:
    from gateway.app import create_app
    from gateway.drain import Drain
    from gateway.server import bind, serve

    server = config.server
    drain = Drain()
    with bind(server.host, server.port) as listener:
        host = f"[{server.host}]" if ":" in server.host else server.host
        url = f"http://{host}:{listener.getsockname()[1]}"
        app = create_app(config, drain)
        await serve(
            app, listener, drain, server.drain_timeout, lambda: print(_ready(config, url), flush=True)
        )


def _ready(config: "Config", url: str) -> str:
    """One line, and a command that works as it stands."""
    tiers = ", ".join(
        f"{tier.name} ({', '.join([*(e.model for e in tier.engines), *(r.model for r in tier.remotes)])})"
        for tier in config.tiers
    )
    key = "" if config.anonymous is not None else ' -H "authorization: Bearer $HEADRACE_KEY"'
    ask = '{"model": "auto", "messages": [{"role": "user", "content": "What is the capital of France?"}]}'
    return (
        f"Headrace is ready at {url}/v1 with {tiers}. Try:\n"
        f"curl {url}/v1/chat/completions{key} -H 'content-type: application/json' -d '{ask}'"
    )


def pull_models(options: argparse.Namespace) -> int:
    """Models that are there are left alone."""
    from gateway.configfile import load_preset

    names = list(options.names)
    if options.preset is not None or not names:
        preset = load_preset(options.preset or "laptop")
        names += [engine.model for tier in preset.tiers for engine in tier.engines]
    return _pull(names, say=True)


def _pull(models: Sequence[str], *, say: bool = False) -> int:
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


if __name__ == "__main__":
    sys.exit(main())
