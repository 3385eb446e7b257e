"""The configuration file: its schema here, reading and checking it in `gateway.configfile`.

Every field is honoured; an unknown one is refused with its line and the nearest name.
"""

from datetime import datetime
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from backends.wire import Quantization
from classifier.tradeoff import GoalKind

Count = Annotated[int, Meta(ge=1)]
Allowance = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Seconds = Annotated[float, Meta(gt=0, le=366 * 24 * 3600.0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[float, Meta(gt=0, le=1)]
Money = Annotated[float, Meta(ge=0)]
Spending = Annotated[float, Meta(gt=0, le=8_000_000)]  # in billionths it is still exact where Lua counts
Text = Annotated[str, Meta(min_length=1)]
# A description completes "must be ..." where a pattern is not met.
Name = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$", description="1 to 64 letters, digits, '.', '_' or '-'"),
]
ModelName = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9._:/@-]{1,128}$", description="1 to 128 letters, digits or any of . _ : / @ -"),
]
Url = Annotated[
    str,
    Meta(
        pattern=r"^https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?(/\S*)?$",
        description="a URL that starts with http:// or https:// and holds no credentials",
    ),
]
RedisUrl = Annotated[
    str, Meta(pattern=r"^(rediss?|unix)://\S+$", description="a redis://, rediss:// or unix:// URL")
]
Variable = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="the name of an environment variable, never the secret itself",
    ),
]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$", description="64 lower-case hexadecimal digits")]
Moment = Annotated[datetime, Meta(tz=True)]
Percentage = Annotated[
    str,
    Meta(
        pattern=r"^([0-9]{1,2}(\.[0-9]{1,3})?|100)%$", description="a percentage from 0% to 100%, such as 2%"
    ),
]
Device = Annotated[str, Meta(pattern=r"^(cpu|cuda(:[0-9]+)?)$", description="cpu, cuda or cuda:N")]

DEFAULT_FLOOR = 0.7
MAX_WORKERS = 64


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What all parts of the file share."""


class AdminServer(_Section, frozen=True):
    """A port of its own for what operators ask: `/metrics`, `/admin/*`, the page; the main one has none of it then.

    On a loopback host it is open to whoever is on the machine, elsewhere only to admins' keys.
    """

    port: Annotated[int, Meta(ge=0, le=65535)]  # 0: any free one
    host: Text = "127.0.0.1"


class Server(_Section, frozen=True):
    host: Text = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8080  # 0: any free one
    admin: AdminServer | None = None  # None: on the main port
    # processes that serve requests; each keeps a processor core busy at most, beside the engines
    workers: Annotated[int, Meta(ge=1, le=MAX_WORKERS)] = 1
    # seconds that SIGTERM leaves to running requests; SIGINT leaves 3 at most
    drain_timeout: Annotated[float, Meta(ge=0, le=3600)] = 10.0
    max_body_bytes: Count = 4 * 1024 * 1024
    body_timeout: Seconds = 30.0  # seconds to receive a body
    keepalive_after: Seconds = 15.0  # seconds without a byte after which a stream gets a comment
    # seconds a request may take; `x-headrace-timeout-ms` can lower it, no longer than a lease of the limits
    default_timeout: Annotated[float, Meta(gt=0, le=600)] = 600.0
    restart_patience: Seconds = 30.0  # seconds that a request waits for an engine that is being started again
    default_max_tokens: Count = 1024  # where a request names none


class Price(_Section, frozen=True):
    """Money per million tokens."""

    input: Money = 0.0
    cached: Money = 0.0
    output: Money = 0.0


class Band(_Section, frozen=True):
    """How many requests run at a time while fewer than `below` wait; the last band of a table has no `below`."""

    rows: Count
    ttft_ms: Annotated[float, Meta(gt=0)]  # 95 of 100 answers should begin within it: a target, see /metrics
    below: Count | None = None


BANDS = (
    Band(below=10, rows=8, ttft_ms=200),
    Band(below=50, rows=32, ttft_ms=400),
    Band(rows=128, ttft_ms=1000),
)


class Speculation(_Section, frozen=True):
    """Tokens are drafted and verified many at a time, as far as it is measured to pay; no answer changes by it."""

    # ngram: looked up in prompt and answer; draft: said by a smaller model; both: by that where nothing is found
    method: Literal["off", "ngram", "draft", "both"] = "off"
    draft: Text | None = None  # the smaller model, as `model`; it has to have the same vocabulary
    # of its weights; None: as the engine's
    draft_quantization: Quantization | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=16)] = 8  # of a draft
    max_sequences: Count = 8  # that get tokens in a step; beside more nothing is drafted


# Quantizations that are none, and the dtype that each says instead.
WHOLE = {"bf16": "bfloat16", "fp32": "float32"}


class Engine(_Section, frozen=True):
    """A replica of our own, in a process of its own."""

    model: Text  # a catalogue name, a folder with config.json and safetensors, or a .gguf file
    # to compute in; auto: bfloat16 on GPUs and on CPUs with instructions for its products, float32 elsewhere
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    # of the weights; auto: as small as the file has them, 4 bits exactly, other integers in 8. GPUs multiply what the
    # file has as it is, whatever is said here; w8a8 and, on GPUs only, fp8 round the inputs of each product, too; bf16
    # and fp32 are whole weights, and the `dtype` of that name
    quantization: Literal[Quantization, "bf16", "fp32"] = "none"
    # of keys and values, the draft's too; auto: as it computes; int4 is for CPUs, fp8 for GPUs
    kv_cache: Literal["auto", "fp32", "bf16", "int8", "int4", "fp8"] = "auto"
    device: Device = "cpu"
    # processes that share the model and compute each step together, on GPUs with one each: `device: cuda`
    tensor_parallel: Annotated[int, Meta(ge=1, le=64)] = 1
    kv_tokens: Annotated[int, Meta(ge=16, multiple_of=16)] = 16384  # room in the KV cache, a multiple of 16
    max_model_len: Count | None = None
    max_sequences: Count = 128  # the most at a time, whatever the bands say
    # the batch by the length of the queue: small ones answer sooner, large ones do more work
    bands: Annotated[tuple[Band, ...], Meta(min_length=1)] = BANDS
    interactive_sequences: Count = 16  # the most at a time with an interactive request among them
    token_budget: Count = 512  # tokens of a step
    # milliseconds of a step with prompts in it; None: twice those of one without, so that streams keep their pace
    step_budget_ms: Annotated[float, Meta(gt=0)] | None = None
    speculation: Speculation = Speculation()
    # seconds that a step, which takes milliseconds, may last before the engine is taken to hang and started again
    step_timeout: Seconds = 60.0
    max_waiting: Count = 256  # requests in the queue; beyond: 503 with retry-after
    max_waiting_tokens: Count = 1_000_000  # likewise, tokens of their prompts
    # of the KV cache, for one tenant while others wait for room in it or keep something there
    tenant_share: Annotated[float, Meta(gt=0, le=1)] = 0.5
    session_share: Annotated[float, Meta(gt=0, le=1)] = 0.25  # likewise, for what one session keeps
    cores: Count | None = None  # None: all that the gateway itself may run on
    quality_gate: Percentage | None = None  # None: as the tier's

    @property
    def weights(self) -> str:
        """How the engine is told to keep them, see `backends.wire.Quantization`."""
        return "none" if self.quantization in WHOLE else self.quantization

    @property
    def computes(self) -> str:
        """The `dtype` that it is told."""
        return WHOLE.get(self.quantization, self.dtype)


class Remote(_Section, frozen=True):
    """A replica behind an OpenAI-compatible server."""

    url: Url  # http://host:port/v1
    model: Text  # the name that server knows
    kind: Literal["vllm", "sglang", "tgi", "lmdeploy", "openai"] = "openai"
    api_key_env: Variable | None = None  # the environment variable that holds the key
    api_key_file: Text | None = (
        None  # or the file, relative to the configuration file's; read again with each reload
    )
    tokenizer: Text | None = None  # folder with tokenizer.json; None: tokens are estimated
    context_length: Count = 8192
    connect_timeout: Seconds = 2.0
    read_timeout: Seconds = 120.0  # seconds between two chunks
    max_in_flight: Count = 256


class Cascade(_Section, frozen=True):
    """How a tier's answers to requests for `auto` are judged, before a dearer tier answers instead.

    A tenant's fields stand above those of the tier; what neither says is as noted here.
    """

    # hold: the beginning, before the first byte is sent (the default); end: whole answers; never
    when: Literal["hold", "end", "never"] | None = None
    hold_tokens: Count | None = None  # tokens that are held back at most; 32
    hold_ms: Annotated[float, Meta(gt=0, le=600_000)] | None = None  # milliseconds likewise; 1,500
    # P(good) from which an answer is kept; 0.5, or with a goal in the policy what a dearer tier's is worth at its cost
    threshold: Share | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=10)] | None = None  # of a request, failover included; 4
    speculative: bool | None = None  # the next tier reads the prompt while confidence sags; true


class Tier(_Section, frozen=True):
    """Models of one size. Tiers are listed from the cheapest to the dearest."""

    name: Name
    engines: tuple[Engine, ...] = ()
    remotes: tuple[Remote, ...] = ()
    price: Price = Price()
    cascade: Cascade = Cascade()
    # engines start only with models that are recorded to have lost no more than this against their whole weights, see
    # `headrace evaluate model`; None: with any
    quality_gate: Percentage | None = None


class Budget(_Section, frozen=True):
    """Money in the unit of the tiers' prices, per day and calendar month of UTC. None: unlimited.

    A request counts in the day in which it began; its worst case is reserved, what it really cost is kept.
    """

    per_day: Spending | None = None
    per_month: Spending | None = None
    # while the store does not answer: refuse requests (closed), or run them without counting their money (open)
    on_outage: Literal["closed", "open"] = "closed"


class Limits(_Section, frozen=True):
    """None: unlimited. A burst is what fits at once, as much as a minute's allowance where it is not given."""

    requests_per_minute: Allowance | None = None
    requests_burst: Allowance | None = None
    tokens_per_minute: Allowance | None = None  # of prompts and answers together
    tokens_burst: Allowance | None = None
    input_tokens_per_minute: Allowance | None = None
    input_tokens_burst: Allowance | None = None
    output_tokens_per_minute: Allowance | None = None
    output_tokens_burst: Allowance | None = None
    parallel: Allowance | None = None
    budget: Budget = Budget()


class Key(_Section, frozen=True):
    """A key's digest, as `headrace keys new` prints it; the key itself is nowhere stored.

    A tenant may have several at once: to change one without downtime, add the new key, then end the old one.
    """

    prefix: Text  # the key's first characters, for look-up
    digest: Digest  # hex HMAC-SHA-256 under the server secret
    not_after: Moment | None = None  # when it opens nothing any more


class Goal(NamedTuple):
    """What a policy weighs quality against cost for; `kind` is the name of its field."""

    kind: GoalKind
    value: float


class Policy(_Section, frozen=True):
    """How requests for `auto` choose their tier: by a floor, by one goal, or by a goal above a floor.

    By a floor alone, the cheapest tier whose P(good) reaches it is taken.
    """

    floor: Share | None = None  # 0.7 where nothing else is wanted
    cost_share: Positive | None = None  # of what the dearest tier alone would cost
    quality_share: Share | None = None  # of the dearest tier's expected quality, at the least cost
    small_share: Share | None = None  # of the requests, which the cheapest tier answers
    answer_worth: Annotated[float, Meta(gt=0)] | None = None  # money that one good answer is worth

    @property
    def goals(self) -> tuple[Goal, ...]:
        """At most one in a configuration that was checked."""
        named: tuple[tuple[GoalKind, float | None], ...] = (
            ("cost_share", self.cost_share),
            ("quality_share", self.quality_share),
            ("small_share", self.small_share),
            ("answer_worth", self.answer_worth),
        )
        return tuple(Goal(kind, value) for kind, value in named if value is not None)

    @property
    def least(self) -> float | None:
        """The floor that holds."""
        return DEFAULT_FLOOR if self.floor is None and not self.goals else self.floor


class Tenant(_Section, frozen=True):
    name: Name
    keys: tuple[Key, ...] = ()
    limits: Limits = Limits()
    tiers: Annotated[tuple[Name, ...], Meta(min_length=1)] | None = None  # allowed tiers; None: all
    policy: Policy = Policy()
    cascade: Cascade = Cascade()
    # most money that one request may cost at worst; tiers where it could cost more are left out
    max_request_price: Annotated[float, Meta(gt=0)] | None = None
    session_ttl: Seconds | None = None  # seconds after the last turn; None: as state.session_ttl
    # what its requests are: somebody waits for interactive ones, batch ones come after all of those
    traffic: Literal["interactive", "batch"] = "interactive"
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = (
        0  # among requests of the same traffic, smaller runs first
    )
    weight: Annotated[float, Meta(ge=0.01, le=100)] = (
        1.0  # its part of an engine while others of its priority wait
    )
    admin: bool = False  # may read /metrics, which names every tenant, and use /admin


class State(_Section, frozen=True):
    """Where limits and sessions live: SQLite files in a folder, or Redis for many hosts."""

    folder: Text = ".headrace"  # relative to the configuration file's own folder
    redis: RedisUrl | None = None  # redis://host:port/0
    redis_env: Variable | None = None  # or the variable that holds such a URL, for one with a password in it
    # gateways that share the store; each grants this part of a tenant's limits alone while the store does not answer
    gateways: Annotated[int, Meta(ge=1, le=10_000)] = 1
    session_ttl: Seconds = 30 * 24 * 3600.0  # seconds after the last turn
    # characters of one session, from which on it takes no further turn; each turn counts as 64 more
    session_characters: Count = 2_000_000


class Telemetry(_Section, frozen=True):
    # http://collector:4318, for traces and the gen_ai.* metrics; None: nothing is exported
    otlp_endpoint: Url | None = None
    otlp_metrics_every: Seconds | None = 60.0  # seconds; None: no metrics are exported
    service_name: Text = "headrace"
    sample_ratio: Share = 1.0
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] = "json"
    # a folder for one JSON line per request, without content; relative to the configuration file's own folder
    records: Text | None = None
    # Then a new file begins, as with each day.
    records_file_bytes: Annotated[int, Meta(ge=4096)] = 64 * 1024 * 1024
    records_keep_days: Count = 30
    vllm_old_names: bool = False  # also vllm:gpu_cache_usage_perc and vllm:num_running_seqs in /metrics


class ShadowSampling(_Section, frozen=True):
    """A share of the requests for `auto` is answered again, by the tier that was asked first and by the dearest one.

    Nobody waits for it, it runs only while the tiers have little to do, and no tenant pays for it.
    """

    share: Positive
    recordings: Text  # a file for outcomes without text, for `headrace calibrate`; as telemetry.records
    per_hour: Count = 60  # requests at most, of each worker
    max_waiting: Annotated[int, Meta(ge=1, le=10_000)] = 32  # likewise; they are held in memory
    max_load: Share = 0.25  # of what a replica runs at a time, beyond which it gets none of this


class Config(_Section, frozen=True):
    tiers: Annotated[tuple[Tier, ...], Meta(min_length=1)]
    tenants: tuple[Tenant, ...] = ()
    anonymous: Tenant | None = None  # who calls without a known key; needs a loopback host
    aliases: dict[ModelName, Name] = {}  # model name → "auto" or a tier's name
    server: Server = Server()
    state: State = State()
    telemetry: Telemetry = Telemetry()
    classifier: Text | None = None  # a folder that `headrace train` wrote; None: the one that ships
    calibration: Text | None = None  # a file of how far confidence can be trusted; None: no answer is judged
    # what a tenant's limits are charged: the attempts whose answers were judged and the one that answers, or that alone
    billing: Literal["attempts", "answer"] = "attempts"
    # policies that are decided and counted beside each request's own, and never followed
    shadow_policies: dict[Name, Policy] = {}
    shadow_sampling: ShadowSampling | None = None  # learning from live traffic, beside it
    # variable with the server secret (key digests, cache salts); None: a file in state.folder
    secret_env: Variable | None = None

    @property
    def models(self) -> list[str]:
        """All that engines of our own run, those that draft included."""
        engines = [engine for tier in self.tiers for engine in tier.engines]
        drafts = [engine.speculation.draft for engine in engines if engine.speculation.draft is not None]
        return [engine.model for engine in engines] + drafts
