"""Batch size by the length of the queue."""

import pytest

from backends.engine.bands import Bands
from backends.wire import BANDS, Band


def test_the_more_wait_the_more_run() -> None:
    for waiting, rows, ttft in [
        (0, 8, 0.2),
        (9, 8, 0.2),
        (10, 32, 0.4),
        (49, 32, 0.4),
        (50, 128, 1.0),
        (999, 128, 1.0),
    ]:
        bands = Bands(BANDS, 128)
        bands.look(waiting)
        assert (bands.rows, bands.target(bands.index)) == (rows, ttft)


def test_a_band_lasts_until_its_burst_is_in() -> None:
    bands = Bands(BANDS, 128)
    seen = []
    for waiting in (3, 12, 60, 30, 9, 1, 0, 9):
        bands.look(waiting)
        seen.append(bands.index)
    assert seen == [0, 1, 2, 2, 2, 2, 0, 0]


def test_no_more_rows_than_the_engine_has() -> None:
    bands = Bands(BANDS, 20)
    bands.look(100)
    assert (bands.rows, bands.target(bands.index)) == (20, 1.0)


def test_one_band_for_all() -> None:
    bands = Bands([Band(rows=5, ttft_ms=50)], 128)
    bands.look(1000)
    assert bands.rows == 5


@pytest.mark.parametrize(
    "bands",
    [
        (),
        (Band(below=10, rows=8, ttft_ms=200),),
        (Band(rows=8, ttft_ms=200), Band(rows=9, ttft_ms=200)),
        (Band(below=10, rows=8, ttft_ms=200), Band(below=10, rows=9, ttft_ms=200), Band(rows=9, ttft_ms=200)),
        (Band(below=0, rows=8, ttft_ms=200), Band(rows=9, ttft_ms=200)),
        (Band(rows=0, ttft_ms=200),),
        (Band(rows=1, ttft_ms=0),),
        (Band(rows=1, ttft_ms=float("nan")),),
    ],
)
def test_bands_that_make_no_sense(bands: tuple[Band, ...]) -> None:
    with pytest.raises(ValueError, match="^bands: "):
        Bands(bands, 128)
