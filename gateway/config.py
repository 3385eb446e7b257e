"""The configuration file: its schema here, reading and checking it in `gateway.configfile`.

Every field is honoured; an unknown one is refused with its line and the nearest name.
"""

from typing import Literal

import msgspec


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class Server(_Section):
    host: str = "127.0.0.1"
    port: int = 8080
    drain_timeout: float = 10.0  # seconds that SIGTERM leaves to running requests; SIGINT leaves 3 at most
    max_body_bytes: int = 4 * 1024 * 1024
    body_timeout: float = 30.0  # seconds to receive a body
    keepalive_after: float = 15.0  # seconds without a byte after which a stream gets a comment
    default_timeout: float = 600.0  # seconds a request may take; `x-headrace-timeout-ms` can lower it
    default_max_tokens: int = 1024  # where a request names none


class Price(_Section):
    """Money per million tokens."""

    input: float = 0.0
    cached: float = 0.0
    output: float = 0.0


class Engine(_Section):
    """A replica of our own, in a process of its own."""

    model: str  # a catalogue name, a folder with config.json and safetensors, or a .gguf file
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "bfloat16"
    device: str = "cpu"
    kv_tokens: int = 16384  # room in the KV cache, a multiple of 16
    max_model_len: int | None = None
    max_sequences: int = 32
    token_budget: int = 512
    max_waiting: int = 256
    cores: int | None = None  # None: all of the machine


class Remote(_Section):
    """A replica behind an OpenAI-compatible server."""

    url: str  # http://host:port/v1
    model: str  # the name that server knows
    kind: Literal["vllm", "sglang", "tgi", "lmdeploy", "openai"] = "openai"
    api_key_env: str | None = None  # the environment variable that holds the key
    tokenizer: str | None = None  # folder with tokenizer.json; None: tokens are estimated
    context_length: int = 8192
    connect_timeout: float = 2.0
    read_timeout: float = 120.0  # seconds between two chunks
    max_in_flight: int = 256


class Tier(_Section):
    """Models of one size. Tiers are listed from the cheapest to the dearest."""

    name: str
    engines: tuple[Engine, ...] = ()
    remotes: tuple[Remote, ...] = ()
    price: Price = Price()


class Limits(_Section):
    """None: unlimited."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    parallel: int | None = None


class Key(_Section):
    """A key's digest, as `headrace keys new` prints it; the key itself is nowhere stored."""

    prefix: str  # the key's first characters, for look-up
    digest: str  # hex HMAC-SHA-256 under the server secret


class Tenant(_Section):
    name: str
    keys: tuple[Key, ...] = ()
    limits: Limits = Limits()
    tiers: tuple[str, ...] | None = None  # allowed tiers; None: all
    quality_floor: float = 0.7  # the cheapest tier whose P(good) reaches this is taken
    priority: int = 0  # smaller runs first


class State(_Section):
    """Where limits and sessions live: SQLite files in a folder, or Redis for many hosts."""

    folder: str = ".headrace"
    redis: str | None = None  # redis://host:port/0
    session_ttl: float = 30 * 24 * 3600.0  # seconds after the last turn


class Telemetry(_Section):
    otlp_endpoint: str | None = None  # http://collector:4318; None: no traces are exported
    service_name: str = "headrace"
    sample_ratio: float = 1.0
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class Config(_Section):
    tiers: tuple[Tier, ...]
    tenants: tuple[Tenant, ...] = ()
    anonymous: Tenant | None = None  # who calls without a known key; needs a loopback host
    aliases: dict[str, str] = {}  # model name → "auto" or a tier's name
    server: Server = Server()
    state: State = State()
    telemetry: Telemetry = Telemetry()
    secret_env: str | None = (
        None  # variable with the server secret (key digests, cache salts); None: a file in state.folder
    )
