"""What is wrong with a configuration is told all at once, each with its line, its path and the reason."""

import pytest

from gateway.configfile import (
    ConfigError,
    parse_config,
)

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
        "an option that Redis' client would choke on",
        TIER + "state: {redis: 'redis://:secret@h/0?timeout=20'}",
        ["5: state.redis: the option timeout is not known here; known are client_name, db, protocol"],
    ),
    (
        "a database with a name",
        TIER + "state: {redis: 'redis://h/abc'}",
        ["5: state.redis: the database is a number, 0 by default: redis://host:port/0"],
    ),
    (
        "half precision on a CPU",
        TIER + "        dtype: float16",
        ["5: tiers[0].engines[0].dtype: float16 needs a GPU; CPUs have float32 and bfloat16"],
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
        "weights that no CPU multiplies",
        TIER + "        quantization: fp8",
        ["5: tiers[0].engines[0].quantization: fp8 needs a GPU; int8 runs on any device"],
    ),
    (
        "whole weights in two types",
        TIER + "        quantization: bf16\n        dtype: float32",
        ["6: tiers[0].engines[0].dtype: is float32, and quantization bf16 says bfloat16"],
    ),
    (
        "a draft without its model",
        TIER + "        speculation: {method: both, draft_quantization: fp8}\n        kv_cache: fp8",
        [
            "5: tiers[0].engines[0].speculation: method both needs `draft`, the model that drafts",
            "5: tiers[0].engines[0].speculation.draft_quantization: needs `draft` beside it",
            "5: tiers[0].engines[0].speculation.draft_quantization: fp8 needs a GPU; int8 runs on any device",
            "6: tiers[0].engines[0].kv_cache: fp8 needs a GPU; on CPUs there are fp32, bf16, int8 and int4",
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
    # Nothing of tier 9b: it may be the one whose name is missing.
    assert [line.split(": ")[:2] for line in mistakes(text)] == [
        ["1", "server.prot"],
        ["6", "tiers[0].engines[0].kv_tokens"],
        ["7", "tiers[1].engines[0].cores"],
        ["7", "tiers[1].name"],
        ["10", "tenants[0].policy.floor"],
        ["12", "aliases.7b"],
    ]


def test_what_follows_from_another_mistake_is_not_told() -> None:
    assert mistakes("tiers: [{name: a, engnies: [{model: ./m}]}]") == [
        "1: tiers[0].engnies: unknown key; did you mean engines?"
    ]


def test_secrets_in_the_wrong_place_are_not_repeated() -> None:
    text = TIER + "secret_env: sk-hush\nstate: {redis: 'http://:hush@host'}"
    assert "hush" not in "".join(mistakes(text))


def test_a_model_that_the_catalogue_does_not_have() -> None:
    text = "tiers: [{name: 7b, engines: [{model: smollm2-135m-instuct}, {model: /models/llama}, {model: a.gguf}]}]"
    with pytest.raises(ConfigError) as refused:
        parse_config(text, "f")
    assert [mistake.path for mistake in refused.value.mistakes] == [("tiers", 0, "engines", 0, "model")]
    assert "smollm2-135m-instruct" in str(refused.value)


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
