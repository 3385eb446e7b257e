"""Configurations: which files are read, how, and what comes of them."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Config, Engine
from gateway.configfile import (
    ConfigError,
    check_config,
    config_schema,
    is_loopback,
    load_config,
    load_preset,
    parse_config,
    preset_names,
)

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("gateway/presets/*.yaml"), *ROOT.glob("deploy/configs/*.yaml")])

TIER = "tiers:\n  - name: 7b\n    engines:\n      - model: ./m\n"  # lines 1 to 4; what is appended starts on line 5
DIGEST = "a" * 64


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_shipped_files_are_valid_and_read_as_msgspec_reads_them(path: Path) -> None:
    config = load_config(path)
    assert parse_config(path.read_text(), path.name) == msgspec.convert(
        yaml.safe_load(path.read_text()), Config
    )
    assert [tier.name for tier in config.tiers] == ["7b", "13b", "70b"]


def test_presets() -> None:
    assert preset_names() == ("laptop", "tiny")
    laptop = load_preset("laptop")
    assert [tier.engines[0].model for tier in laptop.tiers] == [
        "smollm2-135m-instruct",
        "qwen2.5-coder-0.5b-instruct",
        "qwen2.5-coder-1.5b-instruct",
    ]
    assert [tier.price.input for tier in laptop.tiers] == [0.135, 0.5, 1.5]
    assert {tier.engines[0].model for tier in load_preset("tiny").tiers} == {"smollm2-135m-instruct"}
    for preset in (laptop, load_preset("tiny")):
        assert preset.anonymous is not None and is_loopback(preset.server.host)
        assert {engine.dtype for tier in preset.tiers for engine in tier.engines} == {"auto"}


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="presets: lapptop: no such preset; did you mean laptop?"):
        load_preset("lapptop")


def test_a_path_is_no_preset() -> None:
    with pytest.raises(ConfigError, match="no such preset"):
        load_preset("../presets/tiny")


def test_the_smallest_configuration() -> None:
    assert parse_config(TIER, "f").tiers[0].engines == (Engine(model="./m"),)


def test_a_policy_has_a_floor_unless_it_has_a_goal() -> None:
    text = (
        TIER
        + "    price: {input: 1}\n"
        + """\
tenants:
  - {name: a}
  - {name: b, policy: {cost_share: 0.3}}
  - {name: c, policy: {floor: 0.5, answer_worth: 0.002}}
"""
    )
    default, shared, both = (tenant.policy for tenant in parse_config(text, "f").tenants)
    assert (default.least, default.goals) == (0.7, ())
    assert (shared.least, shared.goals) == (None, (("cost_share", 0.3),))
    assert (both.least, both.goals) == (0.5, (("answer_worth", 0.002),))


def test_nothing_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOLDER", "/elsewhere")
    assert parse_config(TIER + "state: {folder: '${FOLDER}'}", "f").state.folder == "${FOLDER}"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent.yaml: cannot be read: No such file"):
        load_config(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"tiers: \xe9")
    with pytest.raises(ConfigError, match="latin.yaml: is not UTF-8 at byte 7"):
        load_config(tmp_path / "latin.yaml")


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "bom.yaml"
    path.write_text(TIER, encoding="utf-8-sig")
    assert load_config(path).tiers == parse_config(TIER, "f").tiers


def test_a_changed_configuration_is_checked_again() -> None:
    preset = load_preset("tiny")
    check_config(preset)
    exposed = msgspec.structs.replace(preset, server=msgspec.structs.replace(preset.server, host="10.0.0.1"))
    with pytest.raises(ConfigError, match=r"^configuration: server\.host: must be a loopback address"):
        check_config(exposed)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True)]
    + [(host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org", "")],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_the_schema_refuses_unknown_keys_and_states_ranges() -> None:
    definitions: dict[str, Any] = config_schema()["$defs"]
    assert all(each["additionalProperties"] is False for each in definitions.values())
    assert definitions["Engine"]["properties"]["kv_tokens"]["multipleOf"] == 16
    assert definitions["Policy"]["properties"]["floor"]["anyOf"][0]["maximum"] == 1


@given(st.text(max_size=200) | st.text("ab:-[]{}\n \"'&*!|>#?,", max_size=60))
def test_any_text_gives_a_configuration_or_told_mistakes(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "f")
    assert caught.value.mistakes


_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
_TREES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner), max_leaves=5
)


@given(st.sampled_from(sorted(Config.__struct_fields__)), _TREES)
def test_whatever_is_accepted_msgspec_accepts_too(section: str, tree: object) -> None:
    text = yaml.safe_dump({"tiers": [{"name": "7b", "engines": [{"model": "m"}]}], section: tree})
    try:
        config = parse_config(text, "f")
    except ConfigError as error:
        assert error.mistakes
    else:
        assert msgspec.convert(msgspec.to_builtins(config), Config) == config


def test_state_lies_beside_the_file_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "headrace.yaml"
    file.write_text(TIER + "state: {folder: kept}")
    assert load_config(file).state.folder == str(tmp_path / "kept")
    file.write_text(TIER + "state: {folder: /var/lib/headrace}")
    assert load_config(file).state.folder == "/var/lib/headrace"
    file.write_text('tiers: [{name: 7b, remotes: [{url: "http://h/v1", model: m, api_key_file: keys/one}]}]')
    assert load_config(file).tiers[0].remotes[0].api_key_file == str(tmp_path / "keys/one")


def test_state_of_presets_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert load_preset("tiny").state.folder == "/state/headrace"


def test_how_answers_are_judged(tmp_path: Path) -> None:
    """The calibration lies beside the configuration; what a section does not say stays open for the one below it."""
    text = """
calibration: own/calibration.json
billing: answer
tiers:
  - {name: 7b, remotes: [{url: http://h/v1, model: m}], cascade: {when: end, threshold: 0.8}}
tenants:
  - {name: acme, cascade: {when: never}}
"""
    (tmp_path / "headrace.yaml").write_text(text)
    config = load_config(tmp_path / "headrace.yaml")
    assert config.calibration == str(tmp_path / "own" / "calibration.json") and config.billing == "answer"
    assert (config.tiers[0].cascade.when, config.tiers[0].cascade.hold_tokens) == ("end", None)
    assert config.tenants[0].cascade.when == "never"


def test_shadow_sampling(tmp_path: Path) -> None:
    """Its file lies beside the configuration; with one tier there is nothing to compare with."""
    small = "  - {name: 7b, remotes: [{url: 'http://h/v1', model: m}]}\n"
    section = "shadow_sampling: {share: 0.1, recordings: r.jsonl}\n"
    file = tmp_path / "c.yaml"
    file.write_text(f"{section}tiers:\n{small}{small.replace('7b', '70b')}")
    sampling = load_config(file).shadow_sampling
    assert sampling is not None and sampling.recordings == str(tmp_path / "r.jsonl")
    for line, why in (
        (section, "needs two tiers at least"),
        ("shadow_sampling: {share: 0, recordings: r}\n", "shadow_sampling.share"),
        ("shadow_sampling: {share: 0.1}\n", "recordings"),
    ):
        with pytest.raises(ConfigError, match=why):
            parse_config(f"{line}tiers:\n{small}", "c.yaml")
