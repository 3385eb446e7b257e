"""`headrace explain`: where a prompt would go, and why, from a configuration or from a gateway that runs."""

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.cli.arguments import add_source, load

if TYPE_CHECKING:
    from gateway.cli.arguments import Commands

KEY = "HEADRACE_KEY"
TIMEOUT = 30.0  # seconds


def add(commands: "Commands") -> None:
    parser = commands.add_parser("explain", help="where a prompt would go, and why, without running it")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="what a user says")
    prompt.add_argument("--file", metavar="FILE", help="a file with it; - reads standard input")
    parser.add_argument("--model", default="auto", help="auto (the default), a tier's name or an alias")
    parser.add_argument("--max-tokens", type=_count, metavar="N", help="of the answer")
    parser.add_argument("--tenant", metavar="NAME", help="who asks (default: the anonymous tenant)")
    parser.add_argument("--url", help="ask the gateway that runs there, as the tenant of the key")
    parser.add_argument(
        "--key-env", default=KEY, metavar="VARIABLE", help=f"holds the key for --url (default: {KEY})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_source(parser)
    parser.set_defaults(command=explain)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 1_000_000_000):
        raise argparse.ArgumentTypeError("must be a whole number from 1 on")
    return int(text)


def explain(options: argparse.Namespace) -> int:
    """1 where the request would be refused, with the reason. Raises ValueError, OSError."""
    told = _ask(options) if options.url is not None else asyncio.run(_work_out(options))
    if "error" in told:
        print(told["error"]["message"], file=sys.stderr)
        return 1
    print(json.dumps(told, indent=2) if options.json else "\n".join(_words(told)))
    return 0


def _prompt(options: argparse.Namespace) -> str:
    if options.prompt is not None:
        text = options.prompt
    elif options.file == "-":
        text = sys.stdin.read()
    else:
        text = Path(options.file).read_text(encoding="utf-8")
    if not text.strip():
        raise ValueError("the prompt is empty")
    return str(text)


def _ask(options: argparse.Namespace) -> dict[str, Any]:
    """What `/v1/route` of the gateway answers."""
    import httpx

    for name in ("tenant", "config", "preset"):
        if getattr(options, name) is not None:
            raise ValueError(
                f"--{name}: not beside --url; the gateway there has its own, and its key says who asks"
            )
    body = {"model": options.model, "messages": [{"role": "user", "content": _prompt(options)}]}
    if options.max_tokens is not None:
        body["max_tokens"] = options.max_tokens
    key = os.environ.get(options.key_env)
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    address = f"{options.url.rstrip('/').removesuffix('/v1')}/v1/route"
    try:
        answer = httpx.post(address, json=body, headers=headers, timeout=TIMEOUT, trust_env=False)
        told = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise OSError(f"{address}: {error}") from error
    if not isinstance(told, dict) or not {"tier", "error"} & told.keys():
        raise OSError(f"{address}: answers {answer.status_code}, not as Headrace does")
    return told


async def _work_out(options: argparse.Namespace) -> dict[str, Any]:
    """As `/v1/route` answers, and what could not be known."""
    from backends.prompt import ChatMessage, Prompt
    from gateway.api.route import told
    from gateway.errors import ApiError, openai_error
    from gateway.rehearsal import UNKNOWN, rehearse

    prompt = Prompt(messages=(ChatMessage(role="user", content=_prompt(options)),))
    try:
        rehearsed = await rehearse(load(options), options.tenant, prompt, options.model, options.max_tokens)
    except ApiError as error:
        return openai_error(error)
    return {
        **told(rehearsed.decision),
        "left_out": rehearsed.left_out,
        "estimated": list(rehearsed.estimated),
        "unknown": list(UNKNOWN),
    }


def _judged(told: dict[str, Any]) -> str:
    if told["when"] == "never":
        return f"its answer is not judged: {told['reason']}"
    times = [f"after {tokens} tokens" for tokens in told["after"]] + ["at its end"] * told["at_end"]
    return f"its answer is judged {', '.join(times)}: below {told['threshold']:.2f} {told['next']} answers instead"


def _words(told: dict[str, Any]) -> list[str]:
    order, good = told["order"], told["good"]
    lines = [told["reason"]]
    if order[1:]:
        lines.append(f"if that fails: {', then '.join(order[1:])}")
    if told["task"] is not None:
        lines.append(f"task: {told['task']}")
    lines.append(f"{'tier':16} {'P(good)':>8} {'prompt tokens':>14} {'cached':>7}")
    for tier, tokens in told["prompt_tokens"].items():
        chance = f"{good[tier]:8.2f}" if tier in good else f"{'-':>8}"
        guess = " (estimated)" if tier in told.get("estimated", ()) else ""
        lines.append(f"{tier:16} {chance} {tokens:14,} {told['cached_tokens'][tier]:7,}{guess}")
    lines += [f"{tier:16} left out: {why}" for tier, why in told.get("left_out", {}).items()]
    lines += [f"shadow policy {name}: {tier}" for name, tier in told["shadows"].items()]
    if "judged" in told:
        lines.append(_judged(told["judged"]))
    if "unknown" in told:
        lines.append(f"Not known without a running gateway (--url): {', '.join(told['unknown'])}.")
    return lines
