"""The everyday tasks are the same for ever, graded, and solved by their own solutions only."""

import json
import re
from collections import Counter

from benchmarks.everyday import EACH, GRADES, KINDS, samples
from gateway.learning.checkers import Json, Number, Regex


def test_four_hundred_that_never_change() -> None:
    """Recorded outcomes hang on their digests."""
    made = samples()
    assert len(made) == len(KINDS) * len(GRADES) * EACH == 400
    assert made == samples() and len({each.digest for each in made}) == 400
    assert (
        made[0].digest == "d00ff7f78823e5d1a01817d1f4e9d16d"
        and made[-1].digest == "9906c8ca8e0a129c729f360297db46f6"
    )
    assert samples(seed=1)[0] != made[0]


def test_every_beginning_holds_all_kinds() -> None:
    kinds = Counter(type(each.checker).__name__ for each in samples()[:20])
    assert kinds == {"Regex": 12, "Json": 4, "Number": 4}
    assert all(each.fault() is None for each in samples())


def test_solutions_pass_and_others_do_not() -> None:
    for each in samples():
        match each.checker:
            case Number(value):
                assert each.checker.check(f"It is {value}.") and not each.checker.check(f"{value}1")
            case Json(value):
                assert each.checker.check(f"```json\n{json.dumps(value)}\n```")
                assert not each.checker.check(json.dumps({**value, "more": 1}))
            case Regex(pattern):
                assert re.fullmatch(pattern, "") is None and re.fullmatch(pattern, "I do not know.") is None


def test_easy_ones_by_hand() -> None:
    fields, sums, sorting, rewriting, looking_up = samples()[:5]
    assert isinstance(fields.checker, Json) and fields.checker.check('{"city": "Dublin"}')
    assert isinstance(sums.checker, Number) and sums.checker.check("4 + 2 = 6")
    assert isinstance(sorting.checker, Regex) and re.fullmatch(sorting.checker.pattern, "candle, window")
    assert isinstance(rewriting.checker, Regex) and re.fullmatch(rewriting.checker.pattern, "LANTERN")
    assert isinstance(looking_up.checker, Regex) and re.fullmatch(
        looking_up.checker.pattern, "Karin lives in Madrid."
    )
