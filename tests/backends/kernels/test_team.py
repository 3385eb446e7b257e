"""`deal`: every item once, whatever the number of threads, and a loud end when an item fails."""

import ctypes
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from backends.kernels import team
from backends.kernels.team import crew, deal, following, jit, place, threads

Array = NDArray[Any]


@jit
def count_items(counts: Array, scale: int) -> None:
    deal(_count, len(counts), (counts, scale))


@jit
def _count(item: int, counts: Array, scale: int) -> None:
    counts[item] += item * scale + 1


@jit
def allocate(sizes: Array) -> None:
    deal(_allocate, len(sizes), (sizes,))


@jit
def _allocate(item: int, sizes: Array) -> None:
    sizes[item] = np.empty(sizes[item], np.float64).size


@jit
def count_threads(counts: Array) -> None:
    deal(_count_threads, len(counts), (counts,))


@jit
def _count_threads(item: int, counts: Array) -> None:
    counts[item] = crew()


@jit
def threads_of_the_next_loop() -> Any:
    return threads()


@jit
def note_places(places: Array) -> None:
    deal(_note_place, len(places), (places,))


@jit
def _note_place(item: int, places: Array) -> None:
    places[item] = place()


@jit
def note_following(places: Array, following_ones: Array) -> None:
    deal(_note_following, len(places), (places, following_ones))


@jit
def _note_following(item: int, places: Array, following_ones: Array) -> None:
    places[item], following_ones[item] = place(), following(item, len(places))


@pytest.fixture(params=[1, 2, 5])
def team_size(request: pytest.FixtureRequest) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("items", [0, 1, 2, 3, 5, 7, 1000])
def test_each_item_runs_once(team_size: int, items: int) -> None:
    counts = np.zeros(items, np.int64)
    for _ in range(20):
        counts[:] = 0
        count_items(counts, 3)
        np.testing.assert_array_equal(counts, np.arange(items) * 3 + 1)


@settings(max_examples=30)
@given(st.integers(0, 300), st.integers(-5, 5))
def test_arguments_reach_every_item(items: int, scale: int) -> None:
    counts = np.zeros(items, np.int64)
    count_items(counts, scale)
    np.testing.assert_array_equal(counts, np.arange(items) * scale + 1)


@pytest.mark.parametrize("sizes", [[1, 2**60, 1], [2**60, *[1] * 40], [*[1] * 40, 2**60]])
def test_a_failing_item_is_an_error_of_the_loop(team_size: int, sizes: list[int]) -> None:
    with pytest.raises(MemoryError, match="parallel loop"):
        allocate(np.array(sizes))
    allocate(np.array([1, 2, 3]))  # the next loop is not affected


def test_each_thread_has_the_same_run_of_items_in_each_loop(team_size: int) -> None:
    """Three of four: what one loop has written the next one finds near."""
    places, again = np.full((2, 41), -1, np.int64)
    note_places(places)
    note_places(again)
    each = 41 * 3 // (4 * team_size)
    expected = np.repeat(np.arange(team_size), each)
    np.testing.assert_array_equal(places[: len(expected)], expected)
    np.testing.assert_array_equal(again[: len(expected)], expected)
    assert ((places >= 0) & (places < team_size)).all()


@pytest.mark.parametrize("items", [1, 3, 41])
def test_what_follows_is_known_of_all_that_is_dealt(team_size: int, items: int) -> None:
    places, following_ones = np.full((2, items), -1, np.int64)
    note_following(places, following_ones)
    each = items * 3 // (4 * team_size)
    for item in range(each * team_size):
        last = item % each == each - 1
        assert following_ones[item] == (each * team_size + places[item] if last else item + 1)
    assert (following_ones > np.arange(items)).all()


def test_a_crew_is_of_all_threads(team_size: int) -> None:
    counts = np.zeros(9, np.int64)
    count_threads(counts)
    assert set(counts.tolist()) == {team_size}
    count_threads(counts[:1])
    assert counts[0] == 1
    assert threads_of_the_next_loop() == team_size


def test_without_openmp_the_loop_runs_on_the_calling_thread() -> None:
    entry = team._entry(object())  # a library that lacks the symbol
    ran: list[int | None] = []
    work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ran.append)
    entry(ctypes.cast(work, ctypes.c_void_p), 5, 2, 0)
    assert ran == [5]
    assert team._number_entry(object(), "omp_get_num_threads", 1)() == 1


def test_openmp_is_found_here() -> None:
    """Wherever torch was built with OpenMP: on Linux, always."""
    assert torch.backends.openmp.is_available() is not isinstance(team._team, team._Team)
