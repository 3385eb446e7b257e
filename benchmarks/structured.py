"""What a grammar costs: answers held to a JSON schema against free ones, in the same engine and of the same lengths.

Eight requests at once, 64 tokens each, at temperature 1. The details tell how much of the steps the masks take, and
how long a schema takes to compile, its trial in another process included.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from unittest.mock import patch

from backends.engine.engine import Engine
from backends.engine.grammar import Constraint
from backends.engine.runner import load_runner
from backends.engine.trial import TriedCompiler
from backends.prompt import Prompt
from backends.tokenizer import Tokenizer
from backends.wire import EngineConfig, Grammar, Sampling, Submit, Vocabulary
from benchmarks.engine_options import model_folder
from benchmarks.report import Report, arguments, machine, paired, publish

MODEL = "smollm2-135m-instruct"
REQUESTS, TOKENS = 8, 64
PERSON = (
    '{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"},"tags":{"type":"array",'
    '"items":{"type":"string"}}},"required":["name","age","tags"],"additionalProperties":false}'
)
GRAMMARS = {
    "people": Grammar("json_schema", f'{{"type":"array","minItems":100,"items":{PERSON}}}'),
    "any JSON": Grammar("json_schema", '{"type":"array","minItems":1000}'),
    "words": Grammar("regex", "([a-z]{1,12} ){1000}"),
}


@contextmanager
def masks_timed() -> Iterator[list[float]]:
    """The seconds that each step of a constraint takes."""
    times: list[float] = []
    accept = Constraint.accept

    def timed(constraint: Constraint, token: int) -> None:
        started = time.perf_counter()
        accept(constraint, token)
        times.append(time.perf_counter() - started)

    with patch.object(Constraint, "accept", timed):
        yield times


class Bench:
    """The engine in this process, as its own loop drives it."""

    def __init__(self, folder: Path) -> None:
        self.config = EngineConfig(
            name="bench", model=str(folder), socket="", vocabulary="", kv_blocks=256, cores=2
        )
        tokenizer = Tokenizer(folder)
        self.vocabulary = Vocabulary(tokenizer.vocabulary(), tokenizer.names())
        self.runner, self.eos, self.size, self.context = load_runner(self.config, len(self.vocabulary.data))
        self.compiler = TriedCompiler(self.vocabulary, self.eos, self.size)
        self.prompt = tokenizer.encode_now(Prompt(text="Some people:\n"))

    def run(self, grammar: Grammar | None) -> float:
        """Tokens per second of all answers, from when the last of their grammars is compiled."""
        engine = Engine(
            self.config, self.runner, self.vocabulary.data, self.eos, self.size, self.context,
            compile=self.compiler.compile,
        )  # fmt: skip
        for seed in range(REQUESTS):
            sampling = Sampling(max_tokens=TOKENS, seed=seed, ignore_eos=True, grammar=grammar)
            refused = engine.submit(b"", Submit(id=str(seed), prompt=self.prompt, sampling=sampling))
            assert refused is None, refused
        while engine.has_work and engine.load().waiting == REQUESTS and grammar is not None:
            engine.step()
        count, started = 0, time.perf_counter()
        while engine.has_work:
            count += sum(len(output.ids) for _, output in engine.step())
        return count / (time.perf_counter() - started)

    def compile_ms(self, grammar: Grammar) -> float:
        started = time.perf_counter()
        self.compiler.compile(grammar)
        return 1000 * (time.perf_counter() - started)


def main() -> None:
    parser = arguments(__doc__ or "")
    options = parser.parse_args()
    bench = Bench(model_folder(parser, MODEL))
    bench.run(GRAMMARS["words"])  # compiles kernels, starts the process for trials
    rows = []
    for name, grammar in GRAMMARS.items():
        pairs, shares = [], []
        for _ in range(2 if options.quick else 8):
            with masks_timed() as times:
                rate = bench.run(grammar)
            shares.append(sum(times) * rate / (REQUESTS * TOKENS))
            pairs.append((rate, bench.run(None)))
        details = {
            "share of masks": round(median(shares), 4),
            "compile ms": round(bench.compile_ms(grammar), 1),
        }
        rows.append(paired(f"held to {name}", pairs, peer_name="free", unit="tokens/s", details=details))
    bench.compiler.close()
    publish(Report(name="structured", machine=machine(), rows=rows), options.json)


if __name__ == "__main__":
    main()
