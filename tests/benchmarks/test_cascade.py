"""The recordings that come with the benchmark, and what it makes of them."""

import json

from benchmarks import cascade, everyday
from gateway.configfile import load_preset
from gateway.learning import recordings
from gateway.learning.outcomes import Verdicts


def test_recordings_hold_no_words() -> None:
    allowed = set(recordings.Recording.__struct_fields__)
    for line in cascade.RECORDINGS.read_text().splitlines():
        assert set(json.loads(line)) <= allowed


def test_recordings_are_of_the_everyday_tasks_as_they_are() -> None:
    known = {each.digest for each in everyday.samples()}
    found = [each for each in recordings.load(cascade.RECORDINGS) if each.set == everyday.SET]
    assert found and {each.sample for each in found} <= known


def test_every_strategy_is_told_of() -> None:
    known = [each for each in recordings.load(cascade.RECORDINGS) if each.set == everyday.SET]
    config = load_preset("laptop")
    verdicts = {
        tier.name: Verdicts([each for each in known if each.tier == tier.name]) for tier in config.tiers
    }
    kept, closed = cascade.of_set(everyday.SET, known, config, verdicts)
    assert (kept.case, closed.case) == ("quality kept at half cost: everyday", "oracle gap closed: everyday")
    assert 0 < kept.ours <= 1 and 0 < kept.peer <= 1 and kept.interval is not None
    assert kept.interval[0] <= kept.ratio <= kept.interval[1]
    whole, oracle = closed.details["a perfect judge of whole answers"], closed.details["oracle"]
    assert kept.ours < float(whole.split("%")[0]) / 100 < float(oracle.split("%")[0]) / 100
    aucs = cascade.aucs(verdicts)
    assert aucs and all(0 <= row.ours <= 1 for row in aucs)
