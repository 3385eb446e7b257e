"""`headrace serve`: the gateway and its engines, until a signal."""

import argparse
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from gateway.cli.arguments import add_source, load
from gateway.cli.models import pull_missing

if TYPE_CHECKING:
    from gateway.cli.arguments import Commands
    from gateway.config import Config


def add(commands: "Commands") -> None:
    parser = commands.add_parser("serve", help="run the gateway and its engines")
    add_source(parser)
    parser.add_argument("--host", help="instead of the configuration's")
    parser.add_argument("--port", type=_port, help="instead of the configuration's; 0 takes a free one")
    parser.add_argument(
        "--workers", type=_workers, metavar="N", help="processes that serve, instead of the configuration's"
    )
    parser.set_defaults(command=run)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise argparse.ArgumentTypeError("must be a number from 0 to 65535")
    return int(text)


def _workers(text: str) -> int:
    from gateway.config import MAX_WORKERS

    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_WORKERS):
        raise argparse.ArgumentTypeError(f"must be a number from 1 to {MAX_WORKERS}")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Pull what is missing, start everything, serve until a signal."""
    from backends.backend import BackendError
    from backends.supervisor import EngineStartError
    from gateway.logs import configure_logging
    from gateway.server import run
    from gateway.workers.crew import WorkerStartError

    def read() -> "Config":
        return _with_address(load(options), options)

    config = read()
    configure_logging(config.telemetry.log_level, config.telemetry.log_format)
    pull_missing(config.models)
    try:
        run(_serve(config, read) if config.server.workers == 1 else _serve_by_workers(config, read))
    except (EngineStartError, WorkerStartError, BackendError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _with_address(config: "Config", options: argparse.Namespace) -> "Config":
    """The configuration with `--host`, `--port` and `--workers`, as strictly checked as if they stood in the file."""
    from msgspec.structs import replace

    from gateway.configfile import check_config

    given = {
        name: value for name in ("host", "port", "workers") if (value := getattr(options, name)) is not None
    }
    config = replace(config, server=replace(config.server, **given))
    check_config(config, "command line")
    return config


async def _serve(config: "Config", read: "Callable[[], Config]") -> None:
    from gateway.app import create_gateway
    from gateway.drain import Drain
    from gateway.server import Door, bind, serve

    server, drain = config.server, Drain()
    with ExitStack() as listeners:
        listener = listeners.enter_context(bind(server.host, server.port))
        second = None
        if server.admin is not None:
            second = listeners.enter_context(bind(server.admin.host, server.admin.port))
        gateway = create_gateway(config, drain, read)
        doors = [Door(gateway.front, listener)]
        if gateway.admin is not None and second is not None:
            doors.append(Door(gateway.admin, second))

        def opened() -> None:
            _announce(config, _port_of(listener), None if second is None else _port_of(second))

        await serve(doors, drain, server.drain_timeout, opened, gateway.reloads.hang_up)


async def _serve_by_workers(config: "Config", read: "Callable[[], Config]") -> None:
    from gateway.workers.parent import serve

    await serve(config, read, lambda port, admin_port: _announce(config, port, admin_port))


def _port_of(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port


def _announce(config: "Config", port: int, admin_port: int | None) -> None:
    """Everything is ready: say where."""
    server = config.server
    watched = _url(server.host, port)
    lines = [_ready(config, watched)]
    if server.admin is not None and admin_port is not None:
        watched = _url(server.admin.host, admin_port)
        lines.append(f"Metrics and administration: {watched}")
    lines.append(f"Watch it at {watched}/dashboard")
    print("\n".join(lines), flush=True)


def _url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


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
