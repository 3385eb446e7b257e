"""The configuration that clients wait on is the preset's own, wherever its file lies."""

from pathlib import Path

import pytest

from benchmarks import waiting
from gateway import configfile


@pytest.mark.parametrize("preset", ["laptop", "tiny"])
@pytest.mark.parametrize("when", waiting.WHEN)
def test_a_preset_is_served_from_another_folder(preset: str, when: str, tmp_path: Path) -> None:
    file = tmp_path / "headrace.yaml"
    waiting._write(file, preset, when)
    made, shipped = configfile.load_config(file), configfile.load_preset(preset)
    assert [tier.name for tier in made.tiers] == [tier.name for tier in shipped.tiers]
    for beside in (made.classifier, made.calibration):
        assert beside is None or Path(beside).exists()
    assert (made.classifier is None) == (shipped.classifier is None)
    assert (made.calibration is None) == (shipped.calibration is None)
