"""What the parent of a gateway and its workers say to one another. Each question names what answers it."""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from backends.wire import EngineConfig
from gateway.config import Config
from gateway.dashboard.record import Record
from gateway.dashboard.share import Share
from gateway.reload import Version


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Told apart by the name of its class."""


class Start(_Message, frozen=True):
    """Parent to worker, the first: serve. Answered by Opened when it does, or Failed.

    `shared`: the folder of the metrics, `name`: the worker's in it; ports are those that are bound, never 0.
    """

    name: str
    shared: str
    config: Config
    engines: tuple[EngineConfig, ...]
    port: int
    admin_port: int | None


class Ping(_Message, frozen=True):
    """Parent to worker: are you there? Answered by Done."""


class Refresh(_Message, frozen=True):
    """Tell the shared metrics how you are now. Answered by Done."""


class Look(_Message, frozen=True):
    """What do you know? Answered by a Share."""


class Find(_Message, frozen=True):
    """Have you served this request? Answered by a Record or null."""

    id: str


class Check(_Message, frozen=True):
    """Parent to worker: could you hold this configuration? Answered by Done or Failed."""

    config: Config


class Hold(_Message, frozen=True):
    """Parent to worker: hold it from here on. Answered by Done."""

    config: Config


class Gather(_Message, frozen=True):
    """Worker to parent: ask all others, and yourself. Answered by an array of their answers."""

    question: Refresh | Look | Find


class Current(_Message, frozen=True):
    """Worker to parent: which configuration holds? Answered by Holds."""


class Reload(_Message, frozen=True):
    """Worker to parent: read the configuration again. Answered by Holds or Refusal."""


class Rollback(_Message, frozen=True):
    """Worker to parent: go back to the configuration before. Answered by Holds or Refusal."""


class Opened(_Message, frozen=True):
    """The worker serves."""


class Done(_Message, frozen=True):
    """So it is."""


class Failed(_Message, frozen=True):
    """It cannot be done; `reason`: for operators."""

    reason: str


class Holds(_Message, frozen=True):
    """Which configuration holds now."""

    version: Version


class Refusal(_Message, frozen=True):
    """What a client is to be told, see `gateway.errors.ApiError`."""

    status: int
    message: str
    code: str | None


ToWorker: TypeAlias = Start | Ping | Refresh | Look | Find | Check | Hold
ToParent: TypeAlias = Gather | Current | Reload | Rollback
Outcome: TypeAlias = Opened | Done | Failed
Changed: TypeAlias = Holds | Refusal

encode = msgspec.msgpack.Encoder().encode
to_worker = msgspec.msgpack.Decoder(ToWorker)
to_parent = msgspec.msgpack.Decoder(ToParent)
outcome = msgspec.msgpack.Decoder(Outcome)
changed = msgspec.msgpack.Decoder(Changed)
shares = msgspec.msgpack.Decoder(list[Share])
records = msgspec.msgpack.Decoder(list[Record | None])


def as_array(answers: Sequence[bytes]) -> bytes:
    """Answers as they came, as one array."""
    return encode([msgspec.Raw(answer) for answer in answers])
