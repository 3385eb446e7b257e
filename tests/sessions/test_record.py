"""Records know whose they are."""

import msgspec
import pytest

from sessions import Call, Session, SessionStoreUnavailable, Turn
from sessions.record import decode, encode, replaced

HELLO = (Turn("user", "Hello", name="ann"), Turn("assistant", "H", tier="7b", partial=True))


def test_records_make_up_a_session_whose_version_counts_the_appends() -> None:
    records = [encode("acme", "s", ()), encode("acme", "s", HELLO), encode("acme", "s", HELLO[:1])]
    assert decode("acme", "s", records) == Session("s", HELLO + HELLO[:1], 2)
    assert decode("acme", "s", records[:1]) == Session("s")


@pytest.mark.parametrize("owner", [("umbrella", "s"), ("acme", "t")])
@pytest.mark.parametrize("place", [0, 1])
def test_a_record_of_another_owner_spoils_the_whole_answer(owner: tuple[str, str], place: int) -> None:
    records = [encode("acme", "s", ()), encode("acme", "s", HELLO)]
    records[place] = encode(*owner, HELLO)
    with pytest.raises(SessionStoreUnavailable, match="a record of another session"):
        decode("acme", "s", records)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        encode("acme", "s", HELLO)[:-1],
        msgspec.msgpack.encode({"tenant": "acme"}),
        b"\x93" + b"\x01" * 3,
    ],
)
def test_a_damaged_record_is_an_error_not_a_shorter_history(data: bytes) -> None:
    with pytest.raises(SessionStoreUnavailable, match="damaged"):
        decode("acme", "s", [encode("acme", "s", ()), data])


def test_an_erased_turn_leaves_its_place_and_none_of_its_words() -> None:
    records = [encode("acme", "s", ()), encode("acme", "s", HELLO)]
    number, data = replaced("acme", "s", records, 0, HELLO[0], None)
    assert number == 1 and b"Hello" not in data
    assert decode("acme", "s", [records[0], data]) == Session("s", HELLO[1:], 1, erased=(0,))


def test_calls_and_results_come_back() -> None:
    turns = (
        Turn("assistant", "", tier="7b", calls=(Call("call_1", "add", '{"a'), Call("call_2", "now", "{}"))),
        Turn("tool", "3", answers="call_1"),
    )
    assert decode("acme", "s", [encode("acme", "s", turns)]).turns == turns


def test_records_from_before_there_were_calls_are_read() -> None:
    turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi", "tier": "7b"}]
    old = msgspec.msgpack.encode({"tenant": "acme", "session": "s", "turns": turns})
    assert decode("acme", "s", [old]).turns == (Turn("user", "Hello"), Turn("assistant", "Hi", tier="7b"))
