"""The command `headrace`. Mistakes of the operator end in one plain line each on stderr and status 2.

Each module has one command, or one family: `add` says how it is called. What only a command needs is imported when it
runs, so that --help is quick.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version

from gateway.cli import calibrate, configuration, evaluate, explain, keys, models, plan, replay, serve, top

FAILED = 2
Command = Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status."""
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except BrokenPipeError:
        # Or flushing it at exit would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (ValueError, OSError) as error:
        # What an operator can mend: our errors of that kind are ValueErrors. Anything else shows where it came from.
        print(error, file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _run(words: list[str]) -> int:
    """Raises what the command does."""
    if words[:1] == ["train"]:
        from classifier.train import main as train

        return train(words[1:])
    if words[:2] == ["evaluate", "router"]:
        from classifier.evaluate import main as evaluate_router

        return evaluate_router(words[2:])
    if words[:1] == ["quantize"]:  # needs torch, which nothing here imports
        quantize = [sys.executable, "-m", "backends.quantize", *words[1:]]
        os.execve(sys.executable, quantize, {"GOMP_SPINCOUNT": "2000", **os.environ})  # see the Makefile
    options = _parser().parse_args(words)
    command: Command = options.command
    return command(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace", description="A cascading multi-model LLM gateway.")
    parser.add_argument("--version", action="version", version=f"headrace {version('headrace')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (
        serve.add,
        models.add,
        keys.add,
        configuration.add,
        explain.add,
        calibrate.add,
        evaluate.add,
        replay.add,
        plan.add,
        top.add,
    ):
        add(commands)
    commands.add_parser("quantize", help="write a model in fewer bits; see headrace quantize --help")
    commands.add_parser("train", help="fit the classifier on graded outcomes; see headrace train --help")
    return parser
