"""What heads see: heads on scaled inputs and the weights made of them say the same of any prompt."""

from dataclasses import replace

import numpy as np
import pytest

from classifier import artefact, lexicon
from classifier.doubt import Doubt
from classifier.features import BUCKETS, STRUCTURE, extract
from classifier.inputs import WAVES, Inputs, inputs_of

PROMPTS = (
    "Write a Python function that reverses a list.",
    "What is 17 * 23?",
    "Name the capital of Peru.",
    "Translate to French: the river is wide.",
    "",
    "If 3 farmers sell 12 apples each, how many apples is that? Let's think step by step.",
)


@pytest.fixture(scope="module")
def inputs() -> Inputs:
    return inputs_of(PROMPTS)


def no_doubt() -> Doubt:
    known = np.zeros(len(lexicon.shipped().hashes), bool)
    return Doubt(known, np.full(2, 0.5, np.float32), np.array([9, 0], np.float32))


def test_weights_say_what_heads_on_inputs_say(inputs: Inputs) -> None:
    random = np.random.default_rng(0)
    heads, intercepts = (
        random.standard_normal((2, len(STRUCTURE) + WAVES + BUCKETS)),
        random.standard_normal(2),
    )
    weights = inputs.tier_weights(heads, intercepts, no_doubt())
    weights.check(2, 0)
    expected = inputs.tiers @ heads.T + intercepts
    for prompt, row in zip(PROMPTS, expected, strict=True):
        np.testing.assert_allclose(weights.logits(extract(prompt)), row, atol=2e-3)


def test_task_weights_say_what_heads_on_inputs_say(inputs: Inputs) -> None:
    random = np.random.default_rng(1)
    heads, intercepts = random.standard_normal((3, len(STRUCTURE) + BUCKETS)), random.standard_normal(3)
    structure, grams, bias = inputs.task_weights(heads, intercepts)
    expected = inputs.tasks @ heads.T + intercepts
    tiers = inputs.tier_weights(np.zeros((0, inputs.tiers.shape[1])), np.zeros(0), no_doubt())
    weights = replace(tiers, structure=structure, grams=grams, bias=bias)
    for prompt, row in zip(PROMPTS, expected, strict=True):
        found = extract(prompt)
        found = found._replace(structure=np.clip(found.structure, weights.low, weights.high))
        np.testing.assert_allclose(weights.logits(found), row, atol=2e-3)


def test_waves_are_nearly_a_gaussian_kernel(inputs: Inputs) -> None:
    scaling = inputs.scaling
    look = np.array([[*np.clip(f.structure, scaling.low, scaling.high), *f.meaning] for f in inputs.found])
    sizes = [len(STRUCTURE)] * len(STRUCTURE) + [lexicon.DIMENSIONS] * lexicon.DIMENSIONS
    scaled = (look - scaling.mean) / scaling.spread / np.sqrt(sizes)
    apart = ((scaled[:, np.newaxis] - scaled) ** 2).sum(axis=2)
    np.testing.assert_allclose(inputs.waves @ inputs.waves.T * 2 / WAVES, np.exp(-apart / 2), atol=0.15)


def test_own_prompts_are_clipped_as_the_shipped_task_model_clips() -> None:
    known, _ = artefact.load(artefact.SHIPPED)
    own = inputs_of(PROMPTS, known).scaling
    np.testing.assert_array_equal(own.low.astype(np.float32), known.low)
    np.testing.assert_array_equal(own.high.astype(np.float32), known.high)


def test_a_part_is_of_these_prompts_alone(inputs: Inputs) -> None:
    part = inputs.part(slice(2, 4))
    assert part.found == inputs.found[2:4]
    np.testing.assert_array_equal(part.waves, inputs.waves[2:4])
    assert (part.tiers != inputs.tiers[2:4]).nnz == (part.tasks != inputs.tasks[2:4]).nnz == 0
