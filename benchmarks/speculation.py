"""Our engine with speculation against the same engine without, at batch 1, task by task.

Prompts: HumanEval for code, Spec-Bench for the rest, from the folder that HEADRACE_DATA names. Each is answered twice,
with and without, right after each other, at temperature 0, and the tokens per second from the first token on are
compared. The gate is on, and learns from prompt to prompt as in an engine that serves. Unless it has to be quick, the
prompts are asked again, up to three times in all, while it is not clear on which side of the floor the median is.

The details have the share of drafted tokens that were accepted, beside the one usual for a draft model a fraction as
large, in how many of all steps something was drafted, the ratio in CPU time, which a busy machine disturbs less, and
in how many answers a token came out another way: in none with weights of integers. With others that may happen where
two are all but equally likely: the details tell how much likelier (the logarithm of it) the first one was there,
without speculation.
"""

import argparse
import gzip
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, get_args

import msgspec

from backends.engine.engine import Engine
from backends.engine.runner import load_runner
from backends.engine.speculation.drafters import drafters_for
from backends.prompt import ChatMessage, Prompt
from backends.tokenizer import Tokenizer, same_vocabulary
from backends.wire import EngineConfig, Load, Quantization, Sampling, Score, Speculation, Submit
from benchmarks.engine_options import QUANTIZATIONS, check_engine, check_tokenizer, model_folder, told
from benchmarks.report import Report, Row, arguments, at_least, machine, paired, positive, publish

TARGET = "qwen2.5-coder-1.5b-instruct"
DRAFT = "qwen2.5-coder-0.5b-instruct"
TOKENS = 128  # of an answer
FEW = 8  # tokens after the first ones: so few tell no rate
PROMPTS, QUICK_PROMPTS = 30, 2
LONGEST = 1500  # tokens of a prompt
FLOORS = {"code": 1.5}  # ratios that are wanted
FLOOR = 0.97  # of the other tasks
ROUNDS = 3  # at most, as told above
USUAL = {
    "code": "0.85-0.92",
    "translation": "0.80-0.88",
    "summarization": "0.72-0.80",
    "chat": "0.55-0.70",
    "creative": "0.45-0.65",
}
CATEGORIES = {
    "translation": {"translation"},
    "summarization": {"summarization"},
    "chat": {"reasoning", "extraction", "stem", "humanities"},
    "creative": {"writing", "roleplay"},
}
INSTRUCTION = "Complete the following function. Answer with the whole function.\n\n```python\n{}```"


def source(data: Path, task: str) -> Path:
    return data / ("humaneval.jsonl.gz" if task == "code" else "spec_bench_questions.jsonl.gz")


def texts(data: Path, task: str) -> Iterator[str]:
    """What users ask of that kind. Raises FileNotFoundError."""
    with gzip.open(source(data, task), "rt") as lines:
        for line in lines:
            entry = json.loads(line)
            if task == "code":
                yield INSTRUCTION.format(entry["prompt"])
            elif entry["category"] in CATEGORIES[task]:
                yield entry["turns"][0]


@dataclass(frozen=True, slots=True)
class Answer:
    ids: list[int]
    seconds: float  # after its first tokens …
    cpu_seconds: float
    later: int  # … for so many others

    @property
    def rate(self) -> float:
        return self.later / self.seconds

    @property
    def cpu_rate(self) -> float:
        return self.later / self.cpu_seconds


@dataclass(slots=True)
class Rival:
    """One engine, as its own loop drives it."""

    engine: Engine

    def answer(self, prompt: list[int], task: str, id: str, tokens: int) -> Answer:
        """Nothing of it is found in the prefix cache later."""
        sampling = Sampling(max_tokens=tokens, temperature=0.0)
        submit = Submit(id=id, prompt=prompt, sampling=sampling, task=task, salt=id.encode())
        refused = self.engine.submit(b"", submit)
        if refused is not None:
            raise RuntimeError(refused.message)
        said: list[int] = []
        started, cpu_started, first = time.perf_counter(), time.process_time(), 0
        while self.engine.has_work:
            ids = [id for _, output in self.engine.step() for id in output.ids]
            if not said:
                started, cpu_started, first = time.perf_counter(), time.process_time(), len(ids)
            said += ids
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
        return Answer(said, seconds, cpu_seconds, len(said) - first)

    def margin(self, ids: list[int], id: str) -> float:
        """How much likelier, as a logarithm, the likeliest token after these is than the next."""
        sampling = Sampling(max_tokens=1, temperature=0.0, logprobs=2)
        refused = self.engine.submit(b"", Submit(id=id, prompt=ids, sampling=sampling, salt=id.encode()))
        if refused is not None:
            raise RuntimeError(refused.message)
        scores: list[Score] = []
        while self.engine.has_work:
            scores += [score for _, output in self.engine.step() for score in output.scores]
        (_, first), (_, second) = scores[0].top[:2]
        return first - second


class Bench:
    """One model and its memory, for two engines that take turns."""

    def __init__(self, config: EngineConfig, tokens: int) -> None:
        self.tokens = tokens
        self._tokenizer = Tokenizer(Path(config.model))
        self._config = config
        self._vocabulary = self._tokenizer.vocabulary()
        self._loaded = load_runner(self._config, len(self._vocabulary))
        self._loaded[0].set_threads(2)
        self.ours = self._rival(self._config)
        self.peer = self._rival(msgspec.structs.replace(self._config, speculation=Speculation()))

    def _rival(self, config: EngineConfig) -> Rival:
        runner, eos, size, context = self._loaded
        drafters = drafters_for(config, size)
        return Rival(Engine(config, runner, self._vocabulary, eos, size, context, drafters=drafters))

    def prompts(self, data: Path, task: str, count: int) -> list[list[int]]:
        """The first ones that are not too long, as the model's template has them."""
        chats = (Prompt(messages=(ChatMessage(role="user", content=text),)) for text in texts(data, task))
        encoded = (self._tokenizer.encode_now(chat) for chat in chats)
        return list(islice((ids for ids in encoded if len(ids) <= LONGEST), count))

    def row(self, data: Path, task: str, most: int, rounds: int) -> Row | None:
        """`most`: prompts. They are asked `rounds` times at most. None where no answer is long enough to tell."""
        before, prompts = self.ours.engine.load(), self.prompts(data, task, most)
        pairs: list[tuple[Answer, Answer]] = []
        margins: list[float] = []
        for number in range(rounds * len(prompts)):
            if number % len(prompts) == 0 and is_clear(ratios(pairs), FLOORS.get(task, FLOOR)):
                break
            pairs.append(self._pair(prompts[number % len(prompts)], task, number, margins))
        rates = [(ours.rate, peer.rate) for ours, peer in pairs if tells(ours, peer)]
        if not rates:
            print(f"{task} is left out: none of {len(pairs)} answers is long enough to tell a rate")
            return None
        details = _details(before, self.ours.engine.load(), task)
        details |= {"answers": len(pairs), "median within": interval_of_median(ratios(pairs))}
        details |= {"ratio in CPU time": round(median(ratios(pairs, in_cpu_time=True)), 3)}
        details |= {"answers changed": len(margins), "margins there": margins}
        return paired(task, rates, peer_name="without speculation", unit="tokens/s", details=details)

    def _pair(self, prompt: list[int], task: str, number: int, margins: list[float]) -> tuple[Answer, Answer]:
        """With and without, in turn as the first one."""
        rivals = [self.ours, self.peer] if number % 2 else [self.peer, self.ours]
        answers = {id(each): each.answer(prompt, task, f"{task} {number}", self.tokens) for each in rivals}
        ours, peer = answers[id(self.ours)], answers[id(self.peer)]
        if ours.ids != peer.ids:
            same = len(os.path.commonprefix([ours.ids, peer.ids]))
            after = prompt + peer.ids[:same]
            margins.append(round(self.peer.margin(after, f"{task} {number} margin"), 4))
        return ours, peer


def tells(ours: Answer, peer: Answer) -> bool:
    return min(ours.later, peer.later) > FEW


def ratios(pairs: Sequence[tuple[Answer, Answer]], *, in_cpu_time: bool = False) -> list[float]:
    """Of the rates of answers that are long enough to tell one."""
    return [
        ours.cpu_rate / peer.cpu_rate if in_cpu_time else ours.rate / peer.rate
        for ours, peer in pairs
        if tells(ours, peer)
    ]


def interval_of_median(ratios: Sequence[float]) -> tuple[float, float]:
    """Where the median of all that might be measured is, 19 times out of 20: by ranks, whatever their law."""
    ranked = sorted(ratios)
    out = max(0, int(len(ranked) / 2 - 0.98 * len(ranked) ** 0.5))
    return round(ranked[out], 3), round(ranked[-1 - out], 3)


def is_clear(ratios: Sequence[float], floor: float) -> bool:
    """Whether the median is above or below."""
    if not ratios:
        return False
    low, high = interval_of_median(ratios)
    return low >= floor or high < floor


def _details(before: Load, after: Load, task: str) -> dict[str, Any]:
    drafts = after.drafts - before.drafts
    drafted = after.drafted_tokens - before.drafted_tokens
    accepted = after.accepted_tokens - before.accepted_tokens
    gates = {
        f"gate {gate.method}": f"{gate.reason}, {gate.tokens} tokens, α {gate.acceptance:.2f}, gain {gate.gain:.2f}"
        for gate in after.gates
        if gate.task == task
    }
    return {
        "accepted": round(accepted / drafted, 3) if drafted else None,
        "usual": USUAL[task],
        "drafts": drafts,
        "steps": after.steps - before.steps,
        "tokens per draft": round(drafted / drafts, 2) if drafts else None,
        "said per draft": round(1 + accepted / drafts, 2) if drafts else None,
        **gates,
    }


def config_of(parser: argparse.ArgumentParser, options: argparse.Namespace) -> EngineConfig:
    """As asked for, and known to be possible."""
    folder = model_folder(parser, options.target, "--target")
    config = EngineConfig(
        name="bench", model=str(folder), socket="", vocabulary="", kv_blocks=256, cores=2,
        speculation=Speculation(method=options.method), **told(options.quantization),
    )  # fmt: skip
    check_engine(parser, config)
    check_tokenizer(parser, folder, "--target")
    if options.method not in ("draft", "both"):
        return config
    draft, quantization = model_folder(parser, options.draft, "--draft"), options.draft_quantization
    own = msgspec.structs.replace(config, model=str(draft), quantization=quantization or config.quantization)
    check_engine(parser, own, "draft-")
    check_tokenizer(parser, draft, "--draft")
    if not same_vocabulary(folder, draft):
        parser.error(f"argument --draft: {options.draft} has another vocabulary than {options.target}")
    speculation = Speculation(method=options.method, draft=str(draft), draft_quantization=quantization)
    return msgspec.structs.replace(config, speculation=speculation)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--target", default=TARGET, help="the model that answers")
    parser.add_argument(
        "--quantization",
        choices=QUANTIZATIONS,
        default="int8",
        help="of its weights; %(default)s unless told",
    )
    parser.add_argument(
        "--draft-quantization", choices=get_args(Quantization),
        help="of those of the smaller model, which computes in the same type; as --quantization unless told",
    )  # fmt: skip
    methods = get_args(Speculation.__annotations__["method"])
    parser.add_argument("--method", choices=methods, default="both", help="how tokens are drafted")
    parser.add_argument("--draft", default=DRAFT, help="the smaller model")
    parser.add_argument(
        "--tokens", type=at_least(FEW + 2), default=TOKENS, help="of an answer; %(default)s unless told"
    )
    parser.add_argument(
        "--prompts", type=positive, help=f"of a task; {PROMPTS}, and {QUICK_PROMPTS} with --quick"
    )
    parser.add_argument(
        "--tasks", nargs="+", choices=list(USUAL), default=list(USUAL), help="all unless told"
    )
    options = parser.parse_args()
    config = config_of(parser, options)
    if "HEADRACE_DATA" not in os.environ:
        parser.error("HEADRACE_DATA has to name the folder with humaneval and spec_bench_questions")
    data = Path(os.environ["HEADRACE_DATA"])
    for task in ("code", *options.tasks):  # one prompt of code is for warming up
        if not source(data, task).is_file():
            parser.error(f"HEADRACE_DATA: there is no {source(data, task)}")
    bench = Bench(config, options.tokens)
    warm = bench.prompts(data, "code", 1)[0][:64]
    for rival in (bench.ours, bench.peer):
        rival.answer(warm, "", "warm", 24)  # the cost model needs a few steps before it foretells anything
    prompts, rounds = (QUICK_PROMPTS, 1) if options.quick else (PROMPTS, ROUNDS)
    found = [bench.row(data, task, options.prompts or prompts, rounds) for task in options.tasks]
    rows = [row for row in found if row is not None]
    publish(Report(name="speculation", machine=machine(), rows=rows), options.json)


if __name__ == "__main__":
    main()
