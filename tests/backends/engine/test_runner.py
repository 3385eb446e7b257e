"""The runner: batches of any mix give what `transformers` gives, and an engine starts from a checkpoint."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.engine.batch import Batch, Row
from backends.engine.runner import ModelRunner, dtype_for, eos_ids, load_runner, model_length
from backends.instructions import cpu_has_bfloat16
from backends.wire import EngineConfig, Sampling

CPU = torch.device("cpu")
GREEDY = Sampling(max_tokens=1, temperature=0.0)
Configure = Callable[..., EngineConfig]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A random Qwen2 of `transformers` with a padded vocabulary, and its folder."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "qwen2",
        hidden_size=128,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=220,
        max_position_embeddings=512,
        initializer_range=0.15,
        eos_token_id=7,
        tie_word_embeddings=False,
    )
    torch.manual_seed(4)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    model.generation_config.eos_token_id = [7, 9]
    folder = tmp_path_factory.mktemp("qwen2")
    model.save_pretrained(folder)
    return folder, model


@pytest.fixture(scope="module")
def configure(saved: tuple[Path, Any]) -> Configure:
    def make(**fields: Any) -> EngineConfig:
        defaults = {"dtype": "float32", "kv_blocks": 64}
        return EngineConfig(name="e", model=str(saved[0]), socket="", vocabulary="", **{**defaults, **fields})

    return make


@pytest.fixture
def runner(configure: Configure) -> ModelRunner:
    runner, *_ = load_runner(configure())
    runner.set_threads(1)
    return runner


def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def run(runner: ModelRunner, *rows: Row) -> list[int | None]:
    """The one token of each row, None for rows without sampling."""
    return [next(iter(tokens), None) for tokens in runner.collect(runner.launch(Batch(list(rows))))]


def prompt(number: int, length: int) -> list[int]:
    return torch.randint(0, 220, (length,), generator=torch.Generator().manual_seed(number)).tolist()  # type: ignore[no-any-return]


def test_batches_of_prompts_chunks_and_decodes_give_the_oracles_tokens(
    runner: ModelRunner, saved: tuple[Path, Any]
) -> None:
    """Three sequences, at different stages in each step, their blocks interleaved."""
    prompts = [prompt(1, 5), prompt(2, 70), prompt(3, 33)]
    expected = [greedy(saved[1], ids, 4) for ids in prompts]
    blocks = [[3, 17, 5], [8, 2, 40, 1, 33], [6, 9, 4]]
    one, two, three = prompts
    first = run(
        runner,
        Row(one, 0, blocks[0], GREEDY),
        Row(two[:32], 0, blocks[1], None),
        Row(three[:20], 0, blocks[2], None),
    )
    assert first == [expected[0][0], None, None]
    second = run(
        runner,
        Row(two[32:64], 32, blocks[1], None),
        Row([expected[0][0]], 5, blocks[0], GREEDY),
        Row(three[20:], 20, blocks[2], GREEDY),
    )
    assert second == [None, expected[0][1], expected[2][0]]
    third = run(
        runner,
        Row([expected[2][0]], 33, blocks[2], GREEDY),
        Row(two[64:], 64, blocks[1], GREEDY),
        Row([expected[0][1]], 6, blocks[0], GREEDY),
    )
    assert third == [expected[2][1], expected[1][0], expected[0][2]]


def test_a_shared_prefix_is_read_and_not_written(runner: ModelRunner, saved: tuple[Path, Any]) -> None:
    """Two sequences share the blocks of their common beginning; each goes on in blocks of its own."""
    common, tails = prompt(5, 32), [prompt(6, 9), prompt(7, 21)]
    run(runner, Row(common + tails[0], 0, [10, 11, 12], GREEDY))
    tokens = run(
        runner,
        Row(tails[1], 32, [10, 11, 20, 21], GREEDY),
        Row(tails[0][-1:], 40, [10, 11, 12], GREEDY),
    )
    assert tokens == [greedy(saved[1], common + tail, 1)[0] for tail in (tails[1], tails[0])]


def test_a_batch_in_which_nobody_wants_a_token(runner: ModelRunner) -> None:
    assert run(runner, Row(prompt(8, 30), 0, [0, 1], None)) == [None]


def test_sampling_is_from_the_position_that_the_token_will_have(runner: ModelRunner) -> None:
    """Whole, in chunks and beside others: one seed, one token."""
    ids, hot = prompt(9, 40), Sampling(max_tokens=1, temperature=1.5, seed=2**64 - 1)
    whole = run(runner, Row(ids, 0, [0, 1, 2], hot))
    run(runner, Row(ids[:25], 0, [5, 6, 7], None))
    rest = run(runner, Row(prompt(10, 3), 0, [9], GREEDY), Row(ids[25:], 25, [5, 6, 7], hot))
    assert rest[1] == whole[0]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Row([1] * 17, 0, [0], GREEDY), "inside blocks of 16"),
        (Row([1], 0, [64], GREEDY), "only the blocks 0 to 63"),
        (Row([1], 0, [-1], GREEDY), "only the blocks 0 to 63"),
        (Row([1], 512, list(range(33)), GREEDY), "position 512: there are only 512"),
    ],
)
def test_a_row_outside_the_cache_is_an_error(runner: ModelRunner, row: Row, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(runner, row)
    assert run(runner, Row([1], 0, [0], GREEDY)) != [None]


def test_an_id_beyond_the_embedding_is_an_error(runner: ModelRunner) -> None:
    with pytest.raises(IndexError):
        run(runner, Row([220], 0, [0], GREEDY))


def test_padded_ids_are_never_sampled(configure: Configure) -> None:
    runner, _, vocab_size, _ = load_runner(configure(), 100)
    assert vocab_size == 100
    hot = [Sampling(max_tokens=1, temperature=50.0, seed=seed) for seed in range(64)]
    tokens = run(runner, *(Row([5], 0, [seed], sampling) for seed, sampling in enumerate(hot)))
    assert len(set(tokens)) > 20
    assert all(token is not None and token < 100 for token in tokens)


def test_what_an_engine_learns_from_the_checkpoint(configure: Configure) -> None:
    _, eos, vocab_size, length = load_runner(configure(kv_blocks=10))
    assert (set(eos), vocab_size, length) == ({7, 9}, 220, 160)


@pytest.mark.parametrize("fields", [{"block_size": 4, "kv_blocks": 5}, {"block_size": 1, "kv_blocks": 1}])
def test_the_smallest_caches_can_be_warmed_up(configure: Configure, fields: dict[str, int]) -> None:
    runner, *_ = load_runner(configure(**fields))
    assert run(runner, Row([3], 0, [0], GREEDY)) != [None]


def test_bfloat16_is_close_to_float32(configure: Configure, saved: tuple[Path, Any]) -> None:
    runner, *_ = load_runner(configure(dtype="bfloat16"))
    ids = prompt(11, 60)
    token = run(runner, Row(ids, 0, [0, 1, 2, 3], GREEDY))[0]
    with torch.inference_mode():
        logits = saved[1](torch.tensor([ids])).logits[0, -1]
    assert token is not None
    assert logits.max() - logits[token] < 0.1 * logits.std()


@pytest.mark.parametrize(
    ("fields", "own", "expected"),
    [
        ({}, 8192, 1024),  # what 64 blocks hold
        ({}, 512, 512),
        ({"max_model_len": 100}, 512, 100),
        ({"max_model_len": 2000}, 8192, 1024),
    ],
)
def test_the_length_of_a_sequence(
    configure: Configure, fields: dict[str, int], own: int, expected: int
) -> None:
    assert model_length(configure(**fields), own) == expected


def test_more_length_than_the_model_has_is_refused(configure: Configure) -> None:
    with pytest.raises(ValueError, match="max_model_len: 513 is beyond .* 512"):
        load_runner(configure(max_model_len=513))


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [1, 2]}, {"eos_token_id": 3}, {1, 2}),
        ({"eos_token_id": 1}, {}, {1}),
        ({}, {"eos_token_id": 3}, {3}),
        ({}, {"eos_token_id": None}, set()),
        ({}, {}, set()),
    ],
)
def test_end_tokens(generation: dict[str, Any], config: dict[str, Any], expected: set[int]) -> None:
    assert eos_ids(generation, config) == expected


def test_types() -> None:
    assert dtype_for("float32", CPU) == (torch.float32, "as configured")
    assert dtype_for("auto", CPU)[0] == (torch.bfloat16 if cpu_has_bfloat16() else torch.float32)
    assert dtype_for("auto", torch.device("cuda"))[0] == torch.bfloat16
    assert dtype_for("float16", torch.device("cuda"))[0] == torch.float16
    with pytest.raises(ValueError, match="float16 needs a GPU"):
        dtype_for("float16", CPU)


@pytest.mark.parametrize(("has", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_the_type_is_picked_by_what_the_cpu_can_and_logged(
    has: bool,
    dtype: str,
    configure: Configure,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("backends.instructions.cpu_has_bfloat16", lambda: has)
    with caplog.at_level("INFO", logger="backends.engine.runner"):
        runner, *_ = load_runner(configure(dtype="auto"))
    assert runner.dtype == getattr(torch, dtype)
    assert f"computes in {dtype}: auto, as this CPU has" in caplog.text


def test_a_checkpoint_with_several_end_tokens_says_so(saved: tuple[Path, Any]) -> None:
    """The file that the tests above rely on."""
    generation = json.loads((saved[0] / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [7, 9]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named(configure: Configure) -> None:
    with pytest.raises(ValueError, match="device: cuda:1: this torch, .* finds no GPU"):
        load_runner(configure(device="cuda:1"))
