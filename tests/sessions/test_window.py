"""What of a conversation is new, and what of it fits."""

import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions import Turn
from sessions.window import WindowError, fit, merge


def system(content: str) -> Turn:
    return Turn("system", content)


def user(content: str) -> Turn:
    return Turn("user", content)


def said(content: str, partial: bool = False) -> Turn:
    return Turn("assistant", content, tier="7b", partial=partial)


def words(turns: Sequence[Turn]) -> int:
    """One token a word, and one for each turn."""
    return sum(1 + len(turn.content.split()) for turn in turns)


HISTORY = (user("u1"), said("a1"), user("u2"), said("a2"))
SYSTEM = system("be kind")


class TestMerge:
    def test_a_client_that_sends_only_its_new_message(self) -> None:
        assert merge(HISTORY, (user("u3"),)) == (user("u3"),)

    def test_a_client_that_resends_everything(self) -> None:
        assert merge(HISTORY, (*HISTORY, user("u3"))) == (user("u3"),)
        assert merge((SYSTEM, *HISTORY), (SYSTEM, *HISTORY, user("u3"))) == (user("u3"),)

    def test_a_client_that_resends_its_latest_turns(self) -> None:
        assert merge(HISTORY, (*HISTORY[2:], user("u3"))) == (user("u3"),)
        assert merge((SYSTEM, *HISTORY), (SYSTEM, *HISTORY[2:], user("u3"))) == (user("u3"),)
        assert merge(HISTORY, (said("a2"), user("u3"))) == (user("u3"),)

    def test_what_is_new_may_be_several_turns(self) -> None:
        new = (user("u3"), said("made up by the client"), user("u4"))
        assert merge(HISTORY, (*HISTORY, *new)) == new
        assert merge((), new) == new

    def test_the_client_does_not_know_who_answered(self) -> None:
        resent = [Turn(turn.role, turn.content) for turn in HISTORY]
        assert merge(HISTORY, (*resent, user("u3"))) == (user("u3"),)

    def test_a_repeated_system_prompt_is_not_new(self) -> None:
        assert merge((SYSTEM, *HISTORY), (SYSTEM, user("u3"))) == (user("u3"),)

    def test_a_system_prompt_that_is_new_stays(self) -> None:
        stern = system("be stern")
        assert merge((SYSTEM, *HISTORY), (stern, user("u3"))) == (stern, user("u3"))
        assert merge(HISTORY, (SYSTEM, *HISTORY, user("u3"))) == (SYSTEM, user("u3"))

    def test_a_client_may_leave_the_system_prompt_out(self) -> None:
        assert merge((SYSTEM, *HISTORY), (*HISTORY, user("u3"))) == (user("u3"),)

    @pytest.mark.parametrize("again", ["u1", "u2"])
    def test_a_user_who_says_the_same_again_is_heard_again(self, again: str) -> None:
        assert merge(HISTORY, (user(again),)) == (user(again),)
        assert merge(HISTORY, (*HISTORY, user(again))) == (user(again),)

    def test_the_same_words_over_and_over_are_counted(self) -> None:
        history = (user("more"), said("ok")) * 3
        assert merge(history, (user("more"),)) == (user("more"),)
        assert merge(history, (*history, user("more"))) == (user("more"),)
        assert merge(history, (*history[2:], user("more"))) == (user("more"),)

    def test_the_last_question_is_new_even_where_the_history_ends_with_it(self) -> None:
        assert merge((user("u1"),), (user("u1"),)) == (user("u1"),)

    def test_an_answer_to_go_on_from_is_not_repeated(self) -> None:
        assert merge(HISTORY, HISTORY) == ()
        assert merge(HISTORY, (*HISTORY[:3], said("a2 prefilled"))) == (*HISTORY[:3], said("a2 prefilled"))

    def test_an_edited_history_is_another_conversation(self) -> None:
        edited = (user("u1"), said("A1"), user("u3"))
        assert merge(HISTORY, edited) == edited

    def test_white_space_at_the_ends_makes_no_difference(self) -> None:
        assert merge((user("u1"), said(" a1\n")), (user("u1 "), said("a1"), user("u2"))) == (user("u2"),)

    def test_names_make_a_difference(self) -> None:
        ann = Turn("user", "u1", name="ann")
        assert merge((ann, said("a1")), (user("u1"), said("a1"), user("u2")))[0] == user("u1")

    def test_an_answer_that_was_cut_short_is_known_by_its_part(self) -> None:
        history = (user("u1"), said("It was the best of", partial=True))
        resent = (user("u1"), said("It was the best of"), user("go on"))
        assert merge(history, resent) == (user("go on"),)

    @given(
        st.lists(st.sampled_from([user("a"), said("a"), user("b"), said("b")]), max_size=8),
        st.lists(st.sampled_from([user("a"), said("a"), user("b"), said("b")]), min_size=1, max_size=8),
    )
    def test_it_finds_what_trying_every_length_finds(self, history: list[Turn], incoming: list[Turn]) -> None:
        most = len(incoming) - (incoming[-1].role == "user")
        lengths = [
            n for n in range(min(most, len(history)) + 1) if history[len(history) - n :] == incoming[:n]
        ]
        assert merge(history, incoming) == tuple(incoming[max(lengths) :])

    @given(
        st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("ab")), max_size=5),
        st.integers(0, 5),
        st.sampled_from("ab"),
    )
    def test_however_much_is_resent_the_conversation_is_the_same(
        self, exchanges: list[tuple[str, str]], resent: int, question: str
    ) -> None:
        history = [turn for ask, answer in exchanges for turn in (user(ask), said(answer))]
        again = history[max(0, len(history) - 2 * resent) :]
        new = merge(history, (*again, user(question)))
        assert new[-1] == user(question)
        assert len(new) == 1

    def test_a_body_full_of_equal_messages_takes_no_time(self) -> None:
        history = (user("x"), said("x")) * 20_000
        incoming = (*history[:-2], user("x"), said("y"), user("x"))
        started = time.thread_time()
        merge(history, incoming)
        assert time.thread_time() - started < 2


class TestFit:
    def test_what_fits_stays_whole(self) -> None:
        turns = (SYSTEM, *HISTORY, user("u3"))
        assert fit(turns, words(turns), words) == turns
        assert fit((), 0, words) == ()

    def test_the_oldest_turns_go_and_the_system_prompt_stays(self) -> None:
        turns = (SYSTEM, *HISTORY, user("u3"))
        assert fit(turns, words(turns) - 1, words) == (SYSTEM, *HISTORY[2:], user("u3"))
        assert fit(turns, words((SYSTEM, user("u3"))), words) == (SYSTEM, user("u3"))

    def test_no_answer_is_left_without_its_question(self) -> None:
        turns = (*HISTORY, user("u3"))
        assert fit(turns, words(turns) - 2, words) == (*HISTORY[2:], user("u3"))
        assert fit(turns, words(turns) - 6, words) == (user("u3"),)

    def test_system_prompts_in_the_middle_stay_too(self) -> None:
        turns = (SYSTEM, *HISTORY[:2], system("be brief"), *HISTORY[2:], user("u3"))
        kept = (SYSTEM, system("be brief"), *HISTORY[2:], user("u3"))
        assert fit(turns, words(kept), words) == kept

    def test_the_last_turn_stays_alone_even_where_it_is_an_answer(self) -> None:
        turns = (user("a long question it was"), said("a1"))
        assert fit(turns, 2, words) == (said("a1"),)

    @pytest.mark.parametrize(
        "turns", [(SYSTEM, user("far too long")), (SYSTEM,), (*HISTORY, user("a b c d"))]
    )
    def test_what_cannot_fit_is_refused(self, turns: tuple[Turn, ...]) -> None:
        with pytest.raises(WindowError, match="exceed 2 tokens"):
            fit(turns, 2, words)

    @given(
        st.lists(st.sampled_from([SYSTEM, user("u u"), said("a"), said("a a a a"), user("u")]), max_size=12),
        st.integers(0, 40),
    )
    def test_it_keeps_as_much_as_any_cut_could(self, turns: list[Turn], budget: int) -> None:
        said_at = [n for n, turn in enumerate(turns) if turn.role != "system"]
        cuts = [0, *(n for n in said_at if turns[n].role == "user"), *said_at[-1:]]
        windows = [tuple(t for n, t in enumerate(turns) if t.role == "system" or n >= cut) for cut in cuts]
        fitting = [window for window in windows if words(window) <= budget]
        if fitting or not turns:
            assert fit(turns, budget, words) == max(fitting, key=len, default=())
        else:
            with pytest.raises(WindowError):
                fit(turns, budget, words)

    def test_counting_is_dear_and_done_seldom(self) -> None:
        counted: list[int] = []

        def count(turns: Sequence[Turn]) -> int:
            counted.append(len(turns))
            return words(turns)

        turns = [turn for n in range(1000) for turn in (user(f"u{n}"), said(f"a{n}"))]
        assert len(fit(turns, 400, count)) == 200
        assert len(counted) <= 11
