"""A sample put to the tiers of a configuration: real engines and a real model."""

from pathlib import Path

import pytest
from msgspec import structs

from classifier import Assessment
from gateway.config import Config, Engine, Price, Tier
from gateway.learning.checkers import Judge, Regex
from gateway.learning.recorder import Errand, missing, present, record
from gateway.learning.recordings import Book, load
from gateway.learning.samples import Sample

pytestmark = pytest.mark.models

QA = Assessment(task="qa", good={"small": 0.4}, seconds=0.0)


@pytest.fixture(scope="module")
def config(smollm2_folder: Path) -> Config:
    # in bfloat16 a batch of another size rounds the other way
    engine = Engine(model=str(smollm2_folder), kv_tokens=1024, dtype="float32")
    names = ("small", "large")
    return Config(
        tiers=tuple(Tier(name=name, engines=(engine,), price=Price(input=1, output=1)) for name in names)
    )


async def test_every_answer_is_recorded_once_and_alike_in_any_batch(config: Config, tmp_path: Path) -> None:
    samples = [
        Sample(prompt=f"What comes after {n}?", checker=Regex("(?s).*"), max_tokens=6) for n in range(3)
    ]
    told: list[tuple[str, str]] = []
    books = []
    for parallel in (3, 1):
        path = tmp_path / f"{parallel}.jsonl"
        errand = Errand(
            config=config, samples=samples, tiers=("small",), judge="large", parallel=parallel,
            tell=lambda sample, tier, text: told.append((sample.digest, text)),
        )  # fmt: skip
        with Book(path) as book:
            assert missing(errand, book) == 3
            await record(errand, book, lambda text: QA, lambda: None)
            assert missing(errand, book) == 0
            await record(errand, book, lambda text: QA, pytest.fail)  # nothing is asked again
        assert "What comes" not in path.read_text()
        assert len(present(config, load(path))) == 3
        books.append({each.sample: each for each in load(path)})
    assert sorted(told[:3]) == sorted(told[3:])
    for sample, one in books[0].items():
        assert (one.tier, one.set, one.task, one.expected, one.good) == ("small", "sample", "qa", 0.4, True)
        assert 0 < one.tokens == len(one.logprobs) <= 6 and one.prompt_tokens > 0
        assert one.logprobs == pytest.approx(books[1][sample].logprobs, abs=0.01)


async def test_a_judge_says_yes_or_no_and_what_is_too_long_is_named(config: Config, tmp_path: Path) -> None:
    """The judge runs beside the tier that it judges."""
    asked = Sample(prompt="Say hello.", checker=Judge("It is a greeting."), max_tokens=4)
    long = Sample(prompt="word " * 2000, checker=Regex(".*"))
    with Book(tmp_path / "r.jsonl") as book:
        errand = Errand(config=config, samples=[asked, long], tiers=("small",), judge="large", parallel=1)
        with pytest.raises(ValueError, match=r"^small: .*2\d\d\d tokens"):
            await record(errand, book, lambda text: QA, lambda: None)
        assert [type(each.good) for each in book.recordings] == [bool]


def test_a_tier_is_one_model(config: Config, tmp_path: Path) -> None:
    [engine] = config.tiers[0].engines
    mixed = Tier(name="mixed", engines=(engine, structs.replace(engine, quantization="int8")))
    sample = Sample(prompt="p", checker=Regex("x"))
    errand = Errand(config=Config(tiers=(mixed,)), samples=[sample], tiers=("mixed",), judge="mixed")
    with (
        Book(tmp_path / "r.jsonl") as book,
        pytest.raises(ValueError, match="mixed: its replicas run different"),
    ):
        missing(errand, book)
