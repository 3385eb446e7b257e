"""Pages of a list against the whole list."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.paging import page
from gateway.errors import ApiError


def items(count: int) -> list[dict[str, str]]:
    return [{"id": f"msg_{number}"} for number in range(count)]


@given(st.integers(0, 60), st.integers(1, 25), st.sampled_from(["asc", "desc"]))
def test_the_pages_together_are_the_list(count: int, limit: int, order: str) -> None:
    whole = items(count)
    query = {"limit": str(limit), "order": order}
    seen: list[dict[str, str]] = []
    while True:
        got = page(whole, query)
        seen += got["data"]
        assert len(got["data"]) == limit or not got["has_more"]
        if not got["has_more"]:
            break
        assert got["first_id"] == got["data"][0]["id"]
        query["after"] = got["last_id"]
    assert seen == (whole if order == "asc" else whole[::-1])


def test_defaults() -> None:
    got = page(items(30), {})
    assert [item["id"] for item in got["data"]] == [f"msg_{number}" for number in range(29, 9, -1)]
    assert page([], {}) == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [("limit", ""), ("limit", "0"), ("limit", "101"), ("limit", "1.5"), ("limit", "²"), ("limit", "-1"),
     ("order", "up"), ("after", "msg_9"), ("before", "msg_1"), ("include", "x")],
)  # fmt: skip
def test_a_wrong_parameter_is_named(name: str, value: str) -> None:
    with pytest.raises(ApiError) as error:
        page(items(3), {name: value})
    assert (error.value.status, error.value.param) == (400, name)
