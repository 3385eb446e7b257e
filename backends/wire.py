"""The messages between a gateway and an engine process, and what an engine is started with.

Transport: msgpack in frames (see `backends.frames`) over a Unix socket that the engine listens on. Any number of
gateways connect, submit work and get `Outputs` back, and once they subscribe `Stored`, `Evicted`, `Snapshot` and
`Load`, all in the order in which it happened. The engine sees token ids only. Nothing here is pickled, and an unknown
field is refused.
"""

from pathlib import Path
from typing import Literal

import msgspec

MAX_SOCKET_PATH = 107  # sun_path of unix(7), less its final zero

MAX_ANSWERS = 8  # to one prompt
MAX_TOP = 20  # alternatives told with each token
MAX_BIASED = 1024  # tokens with a bias
MAX_GRAMMAR = 131_072  # characters of a grammar's source
# Between the parts of JSON that is held to a schema: one space, or the end of a line and its indentation. It is enough
# for what people write, and a model that has lost its way cannot fill the answer with blanks.
WHITESPACE = r" |\n[ \t]{0,40}"

MAX_DRAFT = 16  # tokens

FinishReason = Literal["stop", "length", "abort", "deadline", "error"]
Traffic = Literal["interactive", "batch"]
Quantization = Literal["none", "auto", "int8", "int4", "w8a8", "fp8"]
KVFormat = Literal["auto", "fp32", "bf16", "int8", "int4", "fp8"]
DraftMethod = Literal["ngram", "draft"]  # looked up in prompt and answer, or said by a smaller model
GateReason = Literal["probing", "pays", "unprofitable", "crowded"]


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of everything on the wire; the tag `type` names the message."""


class Grammar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an answer has to be a sentence of: a JSON schema, a regular expression, or a grammar in llguidance's
    dialect of Lark, which knows control tokens by their names (`<|im_start|>`) and schemas (`%json {…}`)."""

    kind: Literal["json_schema", "regex", "lark"]
    source: str


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """How to choose tokens and when to stop. The gateway has checked the ranges and filled in every default."""

    max_tokens: int  # 0: the prompt is only read
    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0  # 1: off
    top_k: int = 0  # 0: off
    seed: int = 0  # unsigned 64 bits; the gateway draws one where the client gave none
    stop: tuple[str, ...] = ()  # matched on the bytes of the vocabulary; never part of the text
    stop_token_ids: tuple[int, ...] = ()  # besides the model's own end tokens
    ignore_eos: bool = False
    min_p: float = 0.0  # 0: off
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0  # 1: off
    logit_bias: dict[int, float] = {}  # by token id
    min_tokens: int = 0  # before which no end token and no stop string ends the answer
    n: int = 1  # answers to one prompt; the first is that of n = 1, the others' seeds are derived
    logprobs: int | None = None  # report each token's, and so many of the likeliest ones'; None: none
    prompt_logprobs: bool = False  # the prompt's too; then nothing of it is taken from the prefix cache
    grammar: Grammar | None = None  # which the whole answer obeys
    signals: bool = False  # report how sure the model was of each token of the first answer


class Score(msgspec.Struct, frozen=True, array_like=True):
    """Natural logarithms of probabilities, by the model alone: before temperature, penalties and the like."""

    logprob: float
    top: list[tuple[int, float]] = []  # the likeliest tokens with theirs, best first


class Signal(msgspec.Struct, frozen=True, array_like=True):
    """How sure the model alone was of one token that it chose, whatever temperature, penalties or a grammar made of it.

    Natural logarithms. `forced`: the grammar left no other token, so that it tells nothing of the model.
    """

    logprob: float
    margin: float | None  # between the logits of the two likeliest tokens
    entropy: float | None  # of the distribution; None where a remote server does not tell
    forced: bool = False


class Submit(Message, frozen=True, kw_only=True):
    """Start generating. `id` is unique for its sender; answers carry it back."""

    id: str
    prompt: list[int]
    sampling: Sampling
    task: str = ""  # what kind of request it is: by that it is learnt whether drafts pay; empty: unknown
    salt: bytes = b""  # namespace of the prefix cache, derived by the gateway from the tenant
    tenant: str = ""  # opaque tag: whose turn it is, and whose share of the blocks
    session: str = ""  # likewise, within the tenant
    weight: float = 1.0  # of the tenant's turns
    traffic: Traffic = (
        "interactive"  # somebody waits for the words, or nobody does: then it comes after those
    )
    priority: int = 0  # smaller runs first
    timeout: float | None = None  # seconds from arrival; then finish "deadline"
    steps: bool = False  # tell the steps of its answers in their timings


class Abort(Message, frozen=True, kw_only=True):
    """Stop a generation wherever it is; no further output follows. Unknown ids are ignored."""

    id: str


class Subscribe(Message, frozen=True):
    """Ask for a `Load` at once and whenever it changes; with `keys` for a `Snapshot` before it, and its changes."""

    keys: bool


MAX_STEPS = 2048  # told of one sequence


class StepRun(msgspec.Struct, frozen=True, array_like=True):
    """One step in which a sequence was. Unix seconds; `tokens`: of the sequence, `rows` and `total`: of the step."""

    began: float
    ended: float
    tokens: int
    rows: int
    total: int


class Timings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Unix seconds on the engine's clock. `steps`: the first `MAX_STEPS`, where they were asked for."""

    arrived: float
    scheduled: float | None = None
    first_token: float | None = None
    finished: float | None = None
    steps: tuple[StepRun, ...] = ()


class Output(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one step added to one answer of a generation.

    `trim` (last output only): how many bytes at the end of the whole text belong to a matched stop string.
    Ids that might be the beginning of a stop string are held back until it is decided.
    """

    id: str
    index: int = 0  # which of the generation's n answers
    ids: list[int] = []
    scores: list[Score] = []  # of `ids`, where they were asked for
    signals: list[Signal] = []  # likewise
    prompt: list[Score] = []  # of the prompt from its second token on, in the first output of answer 0
    finish: FinishReason | None = None
    trim: int = 0
    cached: int = 0  # prompt tokens found in the prefix cache; valid from the first output on
    error: str | None = None  # with finish "error": a sentence for the log, free of prompt text
    fault: str | None = None  # instead of `error`, where the request is to blame: as the message of `Refused`
    timings: Timings | None = None  # with finish


class Outputs(Message, frozen=True):
    """Everything one step has for one gateway."""

    items: list[Output]


class Refused(Message, frozen=True, kw_only=True):
    """A submission that cannot run. `code`: context_length_exceeded | overloaded | invalid."""

    id: str
    code: str
    message: str
    retry_after: float | None = None  # seconds, of an overloaded engine: when it may have room


class Stored(Message, frozen=True, kw_only=True):
    """Blocks that entered the prefix cache, as chained keys (see `prefixcache.affinity.block_keys`)."""

    engine: str
    keys: list[bytes]


class Evicted(Message, frozen=True, kw_only=True):
    """Blocks that left the prefix cache."""

    engine: str
    keys: list[bytes]


class Snapshot(Message, frozen=True, kw_only=True):
    """All blocks now in the prefix cache; replaces what was known of this engine."""

    engine: str
    block_size: int
    keys: list[bytes]


# Upper ends of what is counted by size, those of vLLM 0.33: seconds between two tokens, and tokens of a step.
GAPS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
STEP_SIZES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


REFUSALS = ("requests", "tokens")  # of which too many wait


class GateState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether one way to draft pays for one kind of task, see `engine.speculation.gate`."""

    method: DraftMethod
    task: str
    tokens: int  # of a draft; 0: none are made, but now and then to find out
    acceptance: float  # share of the drafted tokens that are accepted, given those before them
    gain: float  # expected times as many tokens in the same time
    reason: GateReason


class Load(Message, frozen=True, kw_only=True):
    """How busy the engine is, and its counters since it started. Published on change, at most every 100 ms."""

    engine: str
    incarnation: str  # new for each start of the process
    running: int
    waiting: int
    blocks_total: int
    blocks_free: int
    blocks_cached: int  # in the tree and not in use by a sequence
    prompt_tokens: int
    cached_tokens: int
    generation_tokens: int
    prefix_queries: int  # tokens looked up
    prefix_hits: int  # tokens found
    preemptions: int
    steps: int
    step_tokens: int  # tokens run in all steps, for the mean fill of a batch
    step_rows: int
    finished: dict[str, int]  # by finish reason
    running_batch: int = 0  # of `running`, those of batch traffic
    paused: int = 0  # of `running`, those that stand back for interactive ones
    waiting_batch: int = 0
    waiting_tokens: int = 0
    band: int = 0  # of EngineConfig.bands, the one in force
    first_in_time: tuple[int, ...] = ()  # interactive answers by band that began within its target
    first_late: tuple[int, ...] = ()  # and those that did not
    streams: int = 0  # interactive answers of two tokens and more
    streams_at_pace: int = 0  # of those, the ones with 20 tokens a second
    gaps: tuple[int, ...] = ()  # between two tokens of an answer, by GAPS, the last one for longer ones
    gap_seconds: float = 0.0  # all of them together
    step_sizes: tuple[int, ...] = ()  # steps by STEP_SIZES, the last one for larger ones
    step_error: float = 0.0  # by which share of itself the last steps' predicted time was wrong
    deferred: int = 0  # of `waiting`, those whose grammar is being compiled
    refused: dict[str, int] = {}  # requests that found no place in the queue, by `REFUSALS`
    step_budget: float = 0.0  # seconds that the last step was to take at most; 0: nothing could be foretold
    drafts: int = 0  # that were verified
    drafted_tokens: int = 0  # of them all
    accepted_tokens: int = 0
    accepted_by_position: tuple[int, ...] = ()  # in the draft; empty where nobody drafts
    gates: tuple[GateState, ...] = ()


ToEngine = Submit | Abort | Subscribe
Event = Stored | Evicted | Snapshot | Load
FromEngine = Outputs | Refused | Event


class Band(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How many sequences run at a time while fewer than `below` wait; None: however many."""

    below: int | None = None
    rows: int
    ttft_ms: float  # within which 95 of 100 answers should begin


BANDS = (
    Band(below=10, rows=8, ttft_ms=200),
    Band(below=50, rows=32, ttft_ms=400),
    Band(rows=128, ttft_ms=1000),
)


class Speculation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Tokens are drafted, and verified many at a time; no answer changes by it."""

    method: Literal["off", "ngram", "draft", "both"] = "off"
    draft: str | None = None  # the model that drafts, as EngineConfig.model, with the same vocabulary
    draft_quantization: Quantization | None = (
        None  # of its weights; None: as those of the model that verifies
    )
    max_tokens: int = 8  # of a draft, 1 to MAX_DRAFT; none is longer than a block
    max_sequences: int = 8  # that get tokens in a step; beside more nothing is drafted
    gated: bool = True  # only as far as it is measured to pay; False: always, to measure what that does


class Vocabulary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an engine is told of its tokens: a file of msgpack."""

    data: list[bytes]  # by id; empty for control tokens and for ids that stand for nothing
    names: dict[int, str]  # of control tokens, which a grammar can ask for: `<|im_start|>`


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything an engine process is started with; the supervisor writes it as one JSON file."""

    name: str  # of the replica: "7b/0"
    model: str  # folder with config.json and *.safetensors, or a .gguf file
    socket: str  # path of the Unix socket that it listens on
    vocabulary: str  # file with a `Vocabulary`
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    quantization: Quantization = "none"  # of the weights, see `backends.models.formats`
    kv_cache: KVFormat = "auto"  # of keys and values; auto: as it computes
    device: str = "cpu"
    tensor_parallel: int = 1  # ranks, processes that compute each step together; on GPUs each has its own
    block_size: int = 16
    kv_blocks: int = 512
    max_model_len: int | None = None  # None: the model's own, or what the blocks hold if that is less
    max_sequences: int = 128  # rows in one step
    bands: tuple[Band, ...] = BANDS  # rows by length of the queue
    interactive_sequences: int = 16  # rows in a step with an interactive request among them
    token_budget: int = 512  # tokens in one step
    # Milliseconds of a step with prompts in it, as far as they can be foretold. None: twice those without, and without
    # any decoding row half of what the band has to the first token.
    step_budget_ms: float | None = None
    max_waiting: int = 256  # beyond: refused as overloaded, see `engine.queue_limits`
    max_waiting_tokens: int = 1_000_000  # likewise, of prompts
    tenant_share: float = 0.5  # of the blocks, for one tenant while others wait or have need of what it keeps
    session_share: float = 0.25  # of the blocks, for what one session keeps while others have need of it
    cores: int = 2  # threads when this engine works alone, of all its ranks together
    speculation: Speculation = Speculation()
    step_timeout: float = 60.0  # seconds that a step may take before the engine is taken to hang
    lease: str | None = None  # file shared by the engines of one host, see `backends.engine.lease`


def ranks_path(socket: str) -> Path:
    """The file through which the ranks of the engine at `socket` find each other. Raises as `socket_path`."""
    return socket_path(socket).with_suffix(".ranks")


def socket_path(socket: str) -> Path:
    """Raises ValueError for a path that is not absolute, or longer than a Unix socket can have."""
    if not socket.startswith("/"):
        raise ValueError(f"socket {socket!r}: the path must be absolute")
    if len(socket.encode()) > MAX_SOCKET_PATH:
        raise ValueError(f"socket {socket!r}: the path has at most {MAX_SOCKET_PATH} bytes")
    return Path(socket)


def encode(message: Message) -> bytes:
    """One message as msgpack."""
    return _encoder.encode(message)


def decode_to_engine(data: bytes) -> ToEngine:
    """Raises msgspec.ValidationError or msgspec.DecodeError on anything that is not a `ToEngine`."""
    return _to_engine.decode(data)


def decode_from_engine(data: bytes) -> FromEngine:
    """Raises msgspec.ValidationError or msgspec.DecodeError on anything that is not a `FromEngine`."""
    return _from_engine.decode(data)


_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
