"""Our engine against `transformers` generate: the same weights, dtype and threads, in one run.

Sixteen requests with prompts and answers of 16 to 256 tokens (seeded, mixed) arrive at once. The peer runs them one
after another, and as one padded batch. Tokens per second count only the tokens that were asked for.
"""

import dataclasses
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from backends.engine.engine import Engine
from backends.engine.runner import load_runner
from backends.models.checkpoint import open_checkpoint
from backends.wire import Band, EngineConfig, Sampling, Submit
from benchmarks.engine_options import model_folder
from benchmarks.pages import as_engines_are_started
from benchmarks.report import Report, arguments, machine, paired, publish

MODEL = "smollm2-135m-instruct"
REQUESTS = 16
SHORTEST, LONGEST = 16, 256
KV_BLOCKS = 16 * 2 * LONGEST // 16 + 64


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    prompt: list[int]
    answer: int  # tokens


def workload(seed: int, vocabulary: int) -> list[Work]:
    """Random ids, so that no prompt shares a prefix with another."""
    draw = random.Random(seed)
    return [
        Work(
            [draw.randrange(1000, vocabulary) for _ in range(draw.randint(SHORTEST, LONGEST))],
            draw.randint(SHORTEST, LONGEST),
        )
        for _ in range(REQUESTS)
    ]


class Ours:
    """The engine in this process, as its own loop drives it."""

    def __init__(self, folder: Path, threads: int) -> None:
        self.config = EngineConfig(
            name="bench", model=str(folder), socket="", vocabulary="",
            kv_blocks=KV_BLOCKS, cores=threads, interactive_sequences=REQUESTS,
            bands=(Band(rows=REQUESTS, ttft_ms=1000),), step_budget_ms=1000,  # the whole load at once, nobody waits
        )  # fmt: skip
        self.runner, _, self.vocabulary, self.context = load_runner(self.config)
        self.runner.set_threads(threads)
        self.fill: dict[str, float] = {}

    def run(self, works: list[Work]) -> float:
        """Tokens per second. Each run starts with an empty prefix cache."""
        engine = Engine(
            self.config, self.runner, [b"x"] * self.vocabulary, frozenset(), self.vocabulary, self.context
        )
        for number, work in enumerate(works):
            sampling = Sampling(max_tokens=work.answer, temperature=0.0, ignore_eos=True)
            refused = engine.submit(b"", Submit(id=str(number), prompt=work.prompt, sampling=sampling))
            if refused is not None:
                raise RuntimeError(refused.message)
        count, used, steps = 0, 0.0, 0
        started = time.perf_counter()
        while engine.has_work:
            count += sum(len(output.ids) for _, output in engine.step())
            load = engine.load()
            used += 1 - load.blocks_free / load.blocks_total
            steps += 1
        seconds = time.perf_counter() - started
        assert count == sum(work.answer for work in works)
        load = engine.load()
        self.fill = {
            "steps": steps,
            "rows per step": round(load.step_rows / steps, 1),
            "tokens per step": round(load.step_tokens / steps, 1),
            "KV blocks in use": round(used / steps, 2),
        }
        return count / seconds


class Transformers:
    """The same weights in a Hugging Face model, and in the same type."""

    def __init__(self, folder: Path, threads: int, dtype: torch.dtype) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        torch.set_num_threads(threads)
        with tempfile.TemporaryDirectory() as copy:
            (Path(copy) / "config.json").write_bytes((folder / "config.json").read_bytes())
            config = AutoConfig.from_pretrained(copy)
        checkpoint = open_checkpoint(folder)
        self.model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        weights = {name: checkpoint.load(name, dtype) for name in checkpoint.names()}
        missing, unexpected = self.model.load_state_dict(weights, strict=False)
        if unexpected or set(missing) - {"lm_head.weight"}:
            raise RuntimeError(f"weights do not match: {missing} {unexpected}")
        self.model.tie_weights()
        self.model.generation_config.eos_token_id = None  # answers have the length that was asked for
        self.model.eval()

    def generate(self, ids: Any, mask: Any, tokens: int) -> None:
        with torch.inference_mode():
            self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
            )

    def one_after_another(self, works: list[Work]) -> float:
        started = time.perf_counter()
        for work in works:
            ids = torch.tensor([work.prompt])
            self.generate(ids, torch.ones_like(ids), work.answer)
        return sum(work.answer for work in works) / (time.perf_counter() - started)

    def static_batch(self, works: list[Work]) -> float:
        """Padded on the left, and run until the longest answer is complete."""
        width = max(len(work.prompt) for work in works)
        ids = torch.tensor([[0] * (width - len(work.prompt)) + work.prompt for work in works])
        mask = torch.tensor([[0] * (width - len(work.prompt)) + [1] * len(work.prompt) for work in works])
        started = time.perf_counter()
        self.generate(ids, mask, max(work.answer for work in works))
        return sum(work.answer for work in works) / (time.perf_counter() - started)


def main() -> None:
    parser = arguments(__doc__ or "", threads=2)
    options = parser.parse_args()
    folder = model_folder(parser, MODEL)
    as_engines_are_started("benchmarks.engine")  # the peer gets the same
    ours = Ours(folder, options.threads)
    peer = Transformers(folder, options.threads, ours.runner.dtype)
    name = f"transformers {str(ours.runner.dtype).removeprefix('torch.')}"
    ours.run(workload(0, ours.vocabulary)[:4])  # compiles kernels, fills allocators
    peer.one_after_another(workload(0, ours.vocabulary)[:1])
    alone, batched = [], []
    for seed in range(1, 2 if options.quick else 6):
        works = workload(seed, ours.vocabulary)
        # One after another, the rate does not hang on how many there are, so a quick run takes four.
        alone.append((ours.run(works), peer.one_after_another(works[:4] if options.quick else works)))
        batched.append((ours.run(works), peer.static_batch(works)))
    rows = [
        paired(
            "concurrent 16 against one after another",
            alone,
            peer_name=f"{name}, one by one",
            unit="tokens/s",
            details=ours.fill,
        ),
        paired(
            "concurrent 16 against static batch",
            batched,
            peer_name=f"{name}, padded batch of 16",
            unit="tokens/s",
        ),
    ]
    publish(Report(name="engine", machine=machine(), rows=rows), options.json)


if __name__ == "__main__":
    main()
