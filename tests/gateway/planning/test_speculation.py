"""What drafting is expected to bring."""

import random

import pytest

from backends.models.config import DecoderConfig
from gateway.planning.assumptions import Assumptions
from gateway.planning.gpus import GPUS
from gateway.planning.replica import Replica
from gateway.planning.speculation import expected_tokens, speedup


def test_the_closed_form() -> None:
    assert expected_tokens(0.85, 5) == pytest.approx(4.15, abs=0.005)
    assert expected_tokens(0.0, 5) == 1
    assert expected_tokens(1.0, 5) == 6
    assert expected_tokens(0.6, 3) == pytest.approx(1 + 0.6 + 0.6**2 + 0.6**3)


def test_it_is_the_mean_of_what_happens() -> None:
    draw = random.Random(7)

    def step() -> int:
        accepted = 0
        while accepted < 5 and draw.random() < 0.85:
            accepted += 1
        return accepted + 1

    assert sum(step() for _ in range(20_000)) / 20_000 == pytest.approx(expected_tokens(0.85, 5), rel=0.02)


def test_a_speedup_is_what_is_gained_over_what_is_spent(
    llama_70b: DecoderConfig, llama_7b: DecoderConfig
) -> None:
    given = Assumptions(acceptance=0.8, draft_tokens=4)
    replica = Replica(llama_70b, "int4", GPUS["h200"], 1, given, llama_7b)
    target, drafter = replica.step(1, 1000), Replica(llama_7b, "int4", GPUS["h200"], 1, given).step(1, 1000)
    verify = replica.step(1, 1000, rows=5)
    assert verify == pytest.approx(target)  # both are bound by the memory
    assert speedup(replica, 1, 1000) == pytest.approx(
        expected_tokens(0.8, 4) * target / (verify + 4 * drafter)
    )
    assert speedup(replica, 4096, 1) < 1  # verified rows cost what drafts were to save
