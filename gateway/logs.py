"""The log: one line per event on stderr, as JSON or for people, and one line for each request at its end.

Engines write into it too, by `backends.engine_log`.

No line ever holds prompt text, stop strings, or the messages of exceptions that may quote them: an error is its code.
"""

import logging
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

import msgspec

from backends.backend import Usage

# Libraries whose lines name addresses, or are one per request beside ours.
TALKATIVE = ("httpx", "httpcore", "urllib3", "opentelemetry", "asyncio")

# What would be a line for each message, and so each second, while a collector is down.
MONOTONOUS = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
)
SELDOM = 60.0  # seconds between two lines of one of them

_requests = logging.getLogger("headrace.request")


class JsonFormatter(logging.Formatter):
    """One JSON object per record: time, level, logger, message, and what `log_request` adds."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "headrace", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class TextFormatter(logging.Formatter):
    """The same for people at a terminal: time, level, logger, message, and name=value for each field."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).isoformat(sep=" ", timespec="milliseconds")
        fields = getattr(record, "headrace", {}).items()
        words = [f"{at} {record.levelname.lower():7} {record.name}: {record.getMessage()}"]
        words += [f"{key}={_quoted(value)}" for key, value in fields]
        line = " ".join(words).replace("\n", "\\n")  # one event, one line, whatever a message holds
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class Seldom(logging.Filter):
    """Lets a logger speak again `SELDOM` seconds after it has."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._next = -math.inf

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + SELDOM
        return True


def _quoted(value: object) -> str:
    text = str(value)
    return f'"{text}"' if " " in text else text


def configure_logging(level: str, form: Literal["json", "text"] = "json") -> None:
    """Send every logger's lines to stderr. Both as in `gateway.config.Telemetry`. May be repeated.

    Nothing is found out for a line that no line shows (docs.python.org, Logging HOWTO, "Optimization").
    """
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in MONOTONOUS:
        logger = logging.getLogger(name)
        if not logger.filters:
            logger.addFilter(Seldom())


def set_log_level(level: str) -> None:
    """As `configure_logging` has it, while everything runs."""
    logging.getLogger().setLevel(level.upper())


def log_request(
    *,
    request_id: str,
    trace_id: str | None,
    endpoint: str,
    status: int,
    seconds: float,
    code: str | None = None,
    tenant: str | None = None,
    tier: str | None = None,
    reason: str | None = None,
    task: str | None = None,
    usage: Usage | None = None,
    attempts: str | None = None,
    cost: float = 0.0,
    first_text: float | None = None,
) -> None:
    """The one line of a request, at its end. Times in seconds; what is not known is left out.

    `reason`: of the route, in words; `usage` and `cost`: of all attempts; `attempts`: what became of them;
    `first_text`: from the request's arrival to the first text of the answer.
    """
    fields = {
        "request_id": request_id,
        "trace_id": trace_id,
        "endpoint": endpoint,
        "tenant": tenant,
        "tier": tier,
        "reason": reason,
        "task": task,
        "status": status,
        "code": code,
        "attempts": attempts,
        "prompt_tokens": usage and usage.prompt_tokens,
        "cached_tokens": usage and usage.cached_tokens,
        "completion_tokens": usage and usage.completion_tokens,
        "cost": round(cost, 9) or None,
        "first_text": None if first_text is None else round(first_text, 6),
        "seconds": round(seconds, 6),
    }
    known = {key: value for key, value in fields.items() if value is not None}
    _requests.info("request", extra={"headrace": known})
