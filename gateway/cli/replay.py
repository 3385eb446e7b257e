"""`headrace replay`: what other thresholds would have cost and kept on the requests of the last days."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.arguments import add_source, load

if TYPE_CHECKING:
    from gateway.cli.arguments import Commands
    from gateway.config import Config
    from gateway.learning.hindsight import Replayed

THRESHOLDS = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0)


def add(commands: "Commands") -> None:
    parser = commands.add_parser(
        "replay", help="what other thresholds would have cost and kept on the last days' requests"
    )
    add_source(parser)
    parser.add_argument(
        "--records", type=Path, metavar="FOLDER", help="instead of telemetry.records of the configuration"
    )
    parser.add_argument(
        "--threshold",
        type=_threshold,
        action="append",
        metavar="P",
        help="P(good) from which an answer is kept; may be given several times (default: a table of them)",
    )
    parser.add_argument("--days", type=_days, default=7.0, metavar="N", help="(default: 7)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=run)


def _threshold(text: str) -> float:
    return _between(text, 0.0, 1.0)


def _days(text: str) -> float:
    return _between(text, 0.001, 36_500.0)


def _between(text: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"must be from {low:g} to {high:g}")
    return value


def run(options: argparse.Namespace) -> int:
    """Raises ValueError, OSError."""
    from gateway.learning import hindsight

    config = load(options)
    past = hindsight.load(_folder(options, config), options.days)
    prices = {tier.name: tier.price for tier in config.tiers}
    found = {
        threshold: hindsight.replay(past, prices, list(prices), threshold)
        for threshold in options.threshold or THRESHOLDS
    }
    if not any(each.requests for each in found.values()):
        raise ValueError(f"no answer to a request of the last {options.days:g} days was judged")
    if options.json:
        print(json.dumps([_told(threshold, each) for threshold, each in found.items()], indent=2))
    else:
        print("\n".join(_table(found)))
    return 0


def _folder(options: argparse.Namespace, config: "Config") -> Path:
    if options.records is not None:
        return Path(options.records)
    if config.telemetry.records is None:
        raise ValueError("--records: the configuration keeps none; telemetry.records would name a folder")
    return Path(config.telemetry.records)


def _told(threshold: float, found: "Replayed") -> dict[str, float | int | None]:
    return {
        "threshold": threshold,
        "requests": found.requests,
        "kept": found.kept,
        "cost": round(found.cost, 9),
        "good": round(found.good / found.known, 4) if found.known else None,
        "estimated": found.estimated,
    }


def _table(found: dict[float, "Replayed"]) -> list[str]:
    """`kept`: by the first tier; `good`: the mean P(good)."""
    requests = max(each.requests for each in found.values())
    lines = [
        f"{requests:,} requests whose answers were judged, at today's prices",
        f"{'threshold':>9} {'kept':>7} {'cost':>14} {'P(good)':>8} {'estimated':>10}",
    ]
    for threshold, each in found.items():
        good = f"{each.good / each.known:8.3f}" if each.known else f"{'-':>8}"
        lines.append(
            f"{threshold:9.2f} {each.kept / each.requests:7.1%} {each.cost:14.6f} {good} "
            f"{each.estimated / each.requests:10.1%}"
        )
    return lines
