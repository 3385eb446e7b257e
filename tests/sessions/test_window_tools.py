"""Calls and their results, repeated by clients and cut to fit."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions import Call, Turn
from sessions.window import WindowError, fit, merge

SYSTEM, ASK = Turn("system", "be kind"), Turn("user", "what now")


def calls(*ids: str, content: str = "", arguments: str = '{"a": 1}') -> Turn:
    made = tuple(Call(id, "add", arguments) for id in ids)
    return Turn("assistant", content, tier="7b", calls=made)


def result(id: str, content: str = "two") -> Turn:
    return Turn("tool", content, answers=id)


def said(content: str) -> Turn:
    return Turn("assistant", content, tier="7b")


def words(turns: Sequence[Turn]) -> int:
    """One token a word, one for each turn, and one for each call."""
    return sum(1 + len(turn.content.split()) + len(turn.calls) for turn in turns)


HISTORY = (SYSTEM, ASK, calls("c1"))


class TestMerge:
    def test_only_the_result_is_sent(self) -> None:
        assert merge(HISTORY, (result("c1"),)) == (result("c1"),)

    def test_everything_is_sent_again(self) -> None:
        assert merge(HISTORY, (*HISTORY, result("c1"))) == (result("c1"),)
        assert merge(HISTORY, (*HISTORY[1:], result("c1"))) == (result("c1"),)

    def test_clients_write_arguments_anew(self) -> None:
        again = Turn("assistant", "", calls=(Call("c1", "add", '{ "a":1 }'),))
        assert merge(HISTORY, (ASK, again, result("c1"))) == (result("c1"),)
        broken = (ASK, calls("c1", arguments='{"a'))
        assert merge(broken, (*broken, result("c1"))) == (result("c1"),)

    @pytest.mark.parametrize(
        "other", [calls("c2"), calls("c1", arguments='{"a": 2}'), calls("c1", "c2"), said("")]
    )
    def test_other_calls_are_another_conversation(self, other: Turn) -> None:
        incoming = (ASK, other, result("c1"))
        assert merge(HISTORY, incoming) == incoming

    def test_results_differ_by_the_call_that_they_answer(self) -> None:
        history = (ASK, calls("c1", "c2"), result("c1"), result("c2"), said("four"))
        swapped = (ASK, calls("c1", "c2"), result("c2"), result("c1"), said("four"), ASK)
        assert merge(history, (*history, ASK)) == (ASK,)
        assert merge(history, swapped) == swapped


LOOP = (SYSTEM, ASK, calls("c1"), result("c1"), calls("c2", "c3"), result("c2"), result("c3"))


class TestFit:
    def test_a_result_keeps_its_calls(self) -> None:
        kept = (SYSTEM, *LOOP[4:])
        assert fit(LOOP, words(kept), words) == kept
        with pytest.raises(WindowError):
            fit(LOOP, words(kept) - 1, words)

    def test_of_a_long_loop_the_oldest_calls_go_and_the_question_stays(self) -> None:
        kept = (SYSTEM, ASK, *LOOP[4:])
        assert fit(LOOP, words(LOOP) - 1, words) == kept
        assert fit(LOOP, words(kept), words) == kept

    def test_older_exchanges_go_first(self) -> None:
        turns = (SYSTEM, Turn("user", "old"), calls("c0"), result("c0"), said("done"), *LOOP[1:])
        assert fit(turns, words(turns) - 1, words) == LOOP
        assert fit(turns, words(LOOP), words) == LOOP

    def test_calls_that_wait_stay_with_their_question(self) -> None:
        turns = (Turn("user", "old old old"), said("x"), ASK, calls("c1"))
        assert fit(turns, words(turns) - 1, words) == turns[2:]

    EXCHANGES = st.lists(
        st.sampled_from(
            [
                (ASK, said("a")),
                (ASK, calls("c1"), result("c1"), said("b b")),
                (ASK, calls("c1", content="so"), result("c1"), calls("c2", "c3"), result("c2"), result("c3")),
                (ASK,),
                (SYSTEM, ASK),
            ]
        ),
        min_size=1,
        max_size=5,
    )

    @given(EXCHANGES, st.integers(0, 60))
    def test_no_result_is_without_its_call_and_no_call_without_its_result(
        self, exchanges: list[tuple[Turn, ...]], budget: int
    ) -> None:
        turns = [turn for exchange in exchanges for turn in exchange]
        try:
            kept = fit(turns, budget, words)
        except WindowError:
            return
        assert words(kept) <= budget and kept[-1] is turns[-1]
        made = [call.id for turn in kept for call in turn.calls]
        answered = [turn.answers for turn in kept if turn.answers is not None]
        assert made == answered
