"""`headrace top`: what the page shows, at a terminal."""

import argparse
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import httpx

    from gateway.cli.arguments import Commands
    from gateway.dashboard.state import State

WIDTH = 118  # where there is no terminal
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # another screen, without a cursor
HOME, END_LINE, END_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


def add(commands: "Commands") -> None:
    parser = commands.add_parser("top", help="watch a running gateway at a terminal")
    parser.add_argument(
        "--url", type=_url, default="http://127.0.0.1:8080", help="of the gateway (default: %(default)s)"
    )
    parser.add_argument(
        "--key-env",
        default="HEADRACE_KEY",
        metavar="NAME",
        help="the variable with an admin's key (%(default)s)",
    )
    parser.add_argument("--interval", type=_interval, default=1.0, metavar="SECONDS", help="(default: 1)")
    parser.add_argument("--once", action="store_true", help="print it once and end")
    parser.set_defaults(command=run)


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise argparse.ArgumentTypeError("must be http://HOST:PORT or https://HOST:PORT")
    return text


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError("must be from 0.1 to 3600 seconds")
    return seconds


def run(options: argparse.Namespace) -> int:
    """Raises OSError where the gateway does not answer, ValueError where it refuses."""
    import httpx

    key = os.environ.get(options.key_env)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=options.url, headers=headers, timeout=5, trust_env=False) as client:
        state = _state(client)
        if options.once:
            print(_frame(state, height=None))
            return 0
        print(ENTER, end="")
        try:
            _watch(client, state, options.interval)
        finally:
            print(LEAVE, end="", flush=True)
    return 0


def _watch(client: "httpx.Client", state: "State", interval: float) -> None:
    """Until Ctrl-C. A gateway that goes away may come back; what it said last stays on the screen."""
    trouble = ""
    while True:
        height = shutil.get_terminal_size().lines
        lines = [*([trouble] if trouble else []), *_frame(state, height - bool(trouble)).split("\n")]
        print(HOME + "\n".join(line + END_LINE for line in lines) + END_SCREEN, end="", flush=True)
        time.sleep(interval)
        try:
            state, trouble = _state(client), ""
        except OSError as error:
            trouble = f"{error}. Trying again."


def _state(client: "httpx.Client") -> "State":
    import httpx
    import msgspec

    from gateway.dashboard.state import State

    try:
        answer = client.get("/dashboard/state")
    except httpx.HTTPError as error:
        raise OSError(f"{client.base_url} does not answer: {error}") from error
    if answer.status_code == 503:
        raise OSError(f"{client.base_url} takes nothing now: {_refusal(answer)}")
    if answer.status_code != 200:
        raise ValueError(f"{client.base_url} refuses with {answer.status_code}: {_refusal(answer)}")
    try:
        return msgspec.json.decode(answer.content, type=State)
    except msgspec.DecodeError as error:
        raise ValueError(f"{client.base_url} is no gateway of this version: {error}") from error


def _refusal(answer: "httpx.Response") -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "no gateway answers there"


def _frame(state: "State", height: int | None) -> str:
    from gateway.dashboard.terminal import render

    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return render(state, shutil.get_terminal_size((WIDTH, 40)).columns, height, colour=colour)
