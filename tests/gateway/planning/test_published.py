"""The table of well-known shapes: parameters as the models' pages on the Hub count them, and names."""

import pytest

from backends.models.registry import decoder_config
from backends.models.size import weights
from gateway.planning.published import PUBLISHED, published

PARAMETERS = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.3-70b": 70_553_706_496,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.2": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "smollm2-135m": 134_515_008,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
}


def test_parameters() -> None:
    assert {name: weights(decoder_config(config)).total for name, config in PUBLISHED.items()} == PARAMETERS


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("meta-llama/Llama-2-70b-chat-hf", "llama-2-70b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("meta-llama/Llama-3.1-70B", "llama-3.1-70b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-7b"),
        ("qwen2.5-coder-1.5b-instruct", "qwen2.5-1.5b"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2-135m"),
    ],
)
def test_names_of_the_hub(name: str, short: str) -> None:
    assert published(name) is PUBLISHED[short]


@pytest.mark.parametrize(
    "name", ["someone/Llama-2-70b-hf", "Qwen/Qwen2.5-7B-Instruct-1M", "llama-2", "instruct"]
)
def test_others_are_left_to_the_hub(name: str) -> None:
    assert published(name) is None
