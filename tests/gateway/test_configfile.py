"""Configurations: what is read, and how every mistake is told."""

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


def mistakes(text: str) -> list[str]:
    """The lines of the error, without the file's name."""
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "f")
    lines = str(caught.value).splitlines()
    assert len(lines) == len(caught.value.mistakes)
    assert all(line.startswith("f:") for line in lines)
    return [line.removeprefix("f:") for line in lines]


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


MISTAKES = [
    ("unknown key", TIER + "servr: {}", ["5: servr: unknown key; did you mean server?"]),
    (
        "unknown key like none",
        TIER + "state: {zzz: 1}",
        [
            "5: state.zzz: unknown key; known: folder, redis, redis_env, gateways, session_ttl, session_characters"
        ],
    ),
    (
        "unknown key in a list",
        TIER + "        kv_token: 16",
        ["5: tiers[0].engines[0].kv_token: unknown key; did you mean kv_tokens?"],
    ),
    ("missing", "aliases: {}", ["1: tiers: is missing"]),
    (
        "two places for Redis",
        TIER + "state: {redis: redis://h, redis_env: A}",
        ["5: state.redis_env: not allowed beside redis"],
    ),
    (
        "two places for a key",
        'tiers: [{name: 7b, remotes: [{url: "http://h/v1", model: m, api_key_env: A, api_key_file: b}]}]',
        ["1: tiers[0].remotes[0].api_key_file: not allowed beside api_key_env"],
    ),
    (
        "missing deep",
        "tiers:\n  - name: 7b\n    engines:\n      - {}",
        ["4: tiers[0].engines[0].model: is missing"],
    ),
    (
        "duplicate key",
        TIER + "server:\n  port: 1\n  port: 2",
        ["7: server.port: is given twice, first on line 6"],
    ),
    ("duplicate section", TIER + "tiers: []", ["5: tiers: is given twice, first on line 1"]),
    ("no tiers", "tiers: []", ["1: tiers: needs at least 1 entry"]),
    ("tiers of the wrong kind", "tiers: {}", ["1: tiers: expected a list, got a mapping"]),
    ("section of the wrong kind", TIER + "server: 8080", ["5: server: expected a mapping, got text"]),
    ("port", TIER + "server: {port: 65536}", ["5: server.port: must be at most 65535, not 65536"]),
    ("zero seconds", TIER + "server: {body_timeout: 0}", ["5: server.body_timeout: must be above 0, not 0"]),
    (
        "longer than a lease",
        TIER + "server: {default_timeout: 601}",
        ["5: server.default_timeout: must be at most 600, not 601"],
    ),
    (
        "blocks",
        TIER + "        kv_tokens: 100",
        ["5: tiers[0].engines[0].kv_tokens: must be a multiple of 16, not 100"],
    ),
    (
        "no blocks",
        TIER + "        kv_tokens: 0",
        ["5: tiers[0].engines[0].kv_tokens: must be at least 16, not 0"],
    ),
    (
        "choice",
        TIER + "        dtype: bf16",
        ["5: tiers[0].engines[0].dtype: must be one of auto, bfloat16, float16, float32"],
    ),
    ("device", TIER + "        device: gpu", ["5: tiers[0].engines[0].device: must be cpu, cuda or cuda:N"]),
    (
        "context beyond the blocks",
        TIER + "        max_model_len: 4097\n        kv_tokens: 4096",
        ["5: tiers[0].engines[0].max_model_len: 4097 tokens do not fit into kv_tokens, 4096"],
    ),
    (
        "a time without its zone",
        TIER + f"tenants: [{{name: a, keys: [{{prefix: p, digest: {DIGEST}, not_after: 2030-01-31}}]}}]",
        ["5: tenants[0].keys[0].not_after: expected a time like 2030-01-31T12:00:00Z, got text"],
    ),
    (
        "an open port for operators",
        TIER + "server: {admin: {host: 0.0.0.0, port: 9}}",
        [
            "5: server.admin.host: beyond this machine it needs a key: a tenant with admin: true and one in keys",
        ],
    ),
    (
        "two doors on one port",
        TIER + "server: {port: 9, admin: {port: 9}}",
        ["5: server.admin.port: is that of server.port"],
    ),
    (
        "bands out of order",
        TIER
        + "        bands: [{below: 9, rows: 1, ttft_ms: 1}, {below: 5, rows: 1, ttft_ms: 1}, {rows: 1, ttft_ms: 1}]",
        ["5: tiers[0].engines[0].bands[1].below: must be more than in the band before"],
    ),
    (
        "bands that end",
        TIER + "        bands: [{rows: 1, ttft_ms: 1}, {below: 5, rows: 1, ttft_ms: 1}]",
        [
            "5: tiers[0].engines[0].bands[0]: needs `below`: only the last band is for however many",
            "5: tiers[0].engines[0].bands[1].below: must not be there: the last band is for however many",
        ],
    ),
    (
        "no time for a step",
        TIER + "        step_budget_ms: 0",
        ["5: tiers[0].engines[0].step_budget_ms: must be above 0, not 0"],
    ),
    (
        "speculation that is none",
        TIER + "        speculation: {method: guess, max_tokens: 17, max_sequence: 3}",
        [
            "5: tiers[0].engines[0].speculation.method: must be one of both, draft, ngram, off",
            "5: tiers[0].engines[0].speculation.max_tokens: must be at most 16, not 17",
            "5: tiers[0].engines[0].speculation.max_sequence: unknown key; did you mean max_sequences?",
        ],
    ),
    (
        "a draft without its model",
        TIER + "        speculation: {method: both, draft_quantization: int4}",
        [
            "5: tiers[0].engines[0].speculation: method both needs `draft`, the model that drafts",
            "5: tiers[0].engines[0].speculation.draft_quantization: needs `draft` beside it",
        ],
    ),
    (
        "a model that is not asked",
        TIER + "        speculation: {draft: qwen2.5-coder-0.5-instruct}",
        [
            "5: tiers[0].engines[0].speculation.draft: the catalogue has no model qwen2.5-coder-0.5-instruct; "
            "did you mean qwen2.5-coder-0.5b-instruct?",
            "5: tiers[0].engines[0].speculation.draft: is not asked with method off; draft and both have a model",
        ],
    ),
    (
        "a burst without its rate",
        TIER + "anonymous: {name: a, limits: {tokens_burst: 5, requests_burst: 5, requests_per_minute: 1}}",
        ["5: anonymous.limits.tokens_burst: needs tokens_per_minute beside it"],
    ),
    (
        "a budget of nothing",
        TIER + "anonymous: {name: a, limits: {budget: {per_day: 0}}}",
        ["5: anonymous.limits.budget.per_day: must be above 0, not 0"],
    ),
    (
        "limit of zero",
        TIER + "anonymous: {name: a, limits: {parallel: 0}}",
        ["5: anonymous.limits.parallel: must be at least 1, not 0"],
    ),
    (
        "floor",
        TIER + "anonymous: {name: a, policy: {floor: -0.1}}",
        ["5: anonymous.policy.floor: must be at least 0, not -0.1"],
    ),
    (
        "address",
        "tiers: [{name: a, remotes: [{url: example.org, model: ./m}]}]",
        [
            "1: tiers[0].remotes[0].url: must be a URL that starts with http:// or https://"
            " and holds no credentials"
        ],
    ),
    (
        "digest",
        TIER + f"tenants: [{{name: a, keys: [{{prefix: p, digest: {DIGEST}0}}]}}]",
        ["5: tenants[0].keys[0].digest: must be 64 lower-case hexadecimal digits"],
    ),
    (
        "digest with a line end",
        TIER + f'tenants: [{{name: a, keys: [{{prefix: p, digest: "{DIGEST}\\n"}}]}}]',
        ["5: tenants[0].keys[0].digest: must be 64 lower-case hexadecimal digits"],
    ),
    (
        "a name that no header carries",
        TIER + "tenants: [{name: a b}]",
        ["5: tenants[0].name: must be 1 to 64 letters, digits, '.', '_' or '-'"],
    ),
    ("no replica", "tiers:\n  - name: a", ["2: tiers[0]: needs at least one entry in engines or in remotes"]),
    (
        "tier twice",
        TIER + "  - {name: 7b, engines: [{model: ./n}]}",
        ["5: tiers[1].name: is the same as tiers[0].name"],
    ),
    (
        "reserved",
        "tiers: [{name: auto, engines: [{model: ./m}]}]",
        ["1: tiers[0].name: auto is reserved: it leaves the tier to the gateway"],
    ),
    (
        "tenant twice",
        TIER + "tenants:\n  - name: a\n  - name: a",
        ["7: tenants[1].name: is the same as tenants[0].name"],
    ),
    (
        "tenant as anonymous",
        TIER + "tenants: [{name: a}]\nanonymous: {name: a}",
        ["6: anonymous.name: is the same as tenants[0].name"],
    ),
    (
        "tenant's tier",
        TIER + "tenants: [{name: a, tiers: [7b, 8b]}]",
        ["5: tenants[0].tiers[1]: there is no tier 8b; known: 7b"],
    ),
    (
        "tenant without tiers",
        TIER + "tenants: [{name: a, tiers: []}]",
        ["5: tenants[0].tiers: needs at least 1 entry"],
    ),
    (
        "key of two tenants",
        TIER
        + f"tenants:\n  - {{name: a, keys: [&k {{prefix: p, digest: {DIGEST}}}]}}\n  - {{name: b, keys: [*k]}}",
        [
            "6: tenants[1].keys[0].digest: is the same as tenants[0].keys[0].digest",
        ],
    ),
    (
        "anonymous with a key",
        TIER + f"anonymous: {{name: a, keys: [{{prefix: p, digest: {DIGEST}}}]}}",
        ["5: anonymous.keys: must be empty: who has a key is a tenant"],
    ),
    (
        "anonymous on the network",
        TIER + "server:\n  host: 0.0.0.0\nanonymous: {name: a}",
        [
            "6: server.host: must be a loopback address while there is an anonymous tenant, or anyone could call"
        ],
    ),
    (
        "alias to nothing",
        TIER + "aliases: {gpt: 70b}",
        ["5: aliases.gpt: there is no tier 70b; did you mean 7b?"],
    ),
    ("alias that hides", TIER + "aliases: {7b: auto}", ["5: aliases.7b: hides a model of the same name"]),
    (
        "two goals",
        TIER + "tenants: [{name: a, policy: {cost_share: 0.3, small_share: 0.7}}]",
        ["5: tenants[0].policy.small_share: is a second goal beside cost_share; a policy has one"],
    ),
    (
        "a goal without prices",
        TIER + "shadow_policies: {half: {floor: 0.1, quality_share: 0.9}}",
        ["5: shadow_policies.half.quality_share: needs prices: those of all tiers are 0"],
    ),
    (
        "alias name",
        TIER + "aliases: {'a b': auto}",
        ['5: aliases["a b"]: its name must be 1 to 128 letters, digits or any of . _ : / @ -'],
    ),
]


@pytest.mark.parametrize(
    ("text", "expected"), [case[1:] for case in MISTAKES], ids=[case[0] for case in MISTAKES]
)
def test_a_mistake_is_told_with_line_path_and_reason(text: str, expected: list[str]) -> None:
    assert mistakes(text) == expected


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
    text = """\
server: {prot: 1}
tiers:
  - name: 7b
    engines:
      - model: ./m
        kv_tokens: 7
  - engines: [{model: ./m, cores: 0}]
tenants:
  - name: a
    policy: {floor: 2}
    tiers: [9b]
aliases: {7b: auto}
"""
    assert [line.split(": ")[:2] for line in mistakes(text)] == [
        ["1", "server.prot"],
        ["6", "tiers[0].engines[0].kv_tokens"],
        ["7", "tiers[1].engines[0].cores"],
        ["7", "tiers[1].name"],
        ["10", "tenants[0].policy.floor"],
        ["12", "aliases.7b"],
    ]  # nothing of tier 9b: it may be the one whose name is missing


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


def test_what_follows_from_another_mistake_is_not_told() -> None:
    assert mistakes("tiers: [{name: a, engnies: [{model: ./m}]}]") == [
        "1: tiers[0].engnies: unknown key; did you mean engines?"
    ]


def test_secrets_in_the_wrong_place_are_not_repeated() -> None:
    text = TIER + "secret_env: sk-hush\nstate: {redis: 'http://:hush@host'}"
    assert "hush" not in "".join(mistakes(text))


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


def test_a_model_that_the_catalogue_does_not_have() -> None:
    text = "tiers: [{name: 7b, engines: [{model: smollm2-135m-instuct}, {model: /models/llama}, {model: a.gguf}]}]"
    with pytest.raises(ConfigError) as refused:
        parse_config(text, "f")
    assert [mistake.path for mistake in refused.value.mistakes] == [("tiers", 0, "engines", 0, "model")]
    assert "smollm2-135m-instruct" in str(refused.value)


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


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("when: always", "cascade.when"),
        ("threshold: 1.5", "cascade.threshold"),
        ("hold_tokens: 0", "cascade.hold_tokens"),
        ("hold_ms: 0", "cascade.hold_ms"),
        ("max_attempts: 11", "cascade.max_attempts"),
        ("tokens: 8", "cascade.tokens"),
    ],
)
def test_what_is_wrong_with_how_answers_are_judged(fields: str, words: str) -> None:
    text = f"tiers: [{{name: 7b, remotes: [{{url: http://h/v1, model: m}}], cascade: {{{fields}}}}}]"
    with pytest.raises(ConfigError) as error:
        parse_config(text, "headrace.yaml")
    assert words in str(error.value)


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
