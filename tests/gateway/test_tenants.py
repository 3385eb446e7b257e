"""Keys and secrets: who gets in, what is stored, and what nobody can tell from outside."""

import base64
import hashlib
import hmac
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gateway.config import Config, Key, State, Tenant, Tier
from gateway.errors import ApiError
from gateway.tenants import SecretError, Tenants, cache_salt, engine_tag, new_key, server_secret

SECRET = bytes(range(32))
TIERS = (Tier(name="7b"),)


def config_of(*tenants: Tenant, anonymous: Tenant | None = None) -> Config:
    return Config(tiers=TIERS, tenants=tenants, anonymous=anonymous)


def refusal(tenants: Tenants, key: str | None) -> dict[str, object]:
    with pytest.raises(ApiError) as error:
        tenants.find(key)
    return vars(error.value)


def test_a_key_finds_its_tenant_and_only_its_tenant() -> None:
    (acme_key, acme), (second_key, second), (umbrella_key, umbrella) = [new_key(SECRET) for _ in range(3)]
    tenants = Tenants(
        config_of(Tenant(name="acme", keys=(acme, second)), Tenant(name="umbrella", keys=(umbrella,))), SECRET
    )
    found = [tenants.find(key).name for key in (acme_key, second_key, umbrella_key)]
    assert found == ["acme", "acme", "umbrella"]


def test_a_key_has_256_random_bits_and_only_its_digest_is_kept() -> None:
    made = [new_key(SECRET) for _ in range(100)]
    for key, kept in made:
        assert re.fullmatch(r"hr_[A-Za-z0-9_-]{43}", key)
        assert len(base64.urlsafe_b64decode(key.removeprefix("hr_") + "=")) == 32
        assert kept.prefix == key[:10]
        assert kept.digest == hmac.new(SECRET, key.encode(), hashlib.sha256).hexdigest()
    assert len({key for key, _ in made}) == 100


def test_an_old_and_a_new_key_overlap_until_the_old_one_ends() -> None:
    (old_key, old), (new, kept) = new_key(SECRET), new_key(SECRET)
    ending = structs.replace(old, not_after=datetime(2030, 1, 31, 12, tzinfo=UTC))
    now = ending.not_after.timestamp() - 1 if ending.not_after else 0.0
    tenants = Tenants(config_of(Tenant(name="acme", keys=(ending, kept))), SECRET, lambda: now)
    assert [tenants.find(key).name for key in (old_key, new)] == ["acme", "acme"]
    now += 1
    assert tenants.find(new).name == "acme"
    assert refusal(tenants, old_key) == refusal(tenants, None)


def test_a_missing_a_malformed_and_an_unknown_key_are_refused_alike() -> None:
    key, kept = new_key(SECRET)
    tenants = Tenants(config_of(Tenant(name="acme", keys=(kept,))), SECRET)
    unknown, _ = new_key(SECRET)
    wrong = [
        None,
        "",
        unknown,
        key[:-1],
        key + "A",
        key.upper(),
        kept.digest,
        kept.prefix,
        "'; --",
        "\ud800",
        "\0",
    ]
    refusals = [refusal(tenants, guess) for guess in wrong]
    assert all(other == refusals[0] for other in refusals)
    assert refusals[0]["status"] == 401
    assert (refusals[0]["type"], refusals[0]["code"]) == ("invalid_request_error", "invalid_api_key")
    assert refusals[0]["headers"] == {"www-authenticate": "Bearer"}


@given(st.text(max_size=200))
def test_no_text_is_a_key_by_accident_and_none_is_echoed(guess: str) -> None:
    _, kept = new_key(SECRET)
    tenants = Tenants(config_of(Tenant(name="acme", keys=(kept,))), SECRET)
    message = str(refusal(tenants, guess)["message"])
    assert message == refusal(tenants, None)["message"]
    assert kept.digest not in message and kept.prefix not in message


def test_a_key_made_under_another_secret_is_unknown() -> None:
    key, kept = new_key(SECRET)
    tenants = Tenants(config_of(Tenant(name="acme", keys=(kept,))), bytes(32))
    assert refusal(tenants, key)["status"] == 401


def test_the_anonymous_tenant_takes_whoever_has_no_known_key() -> None:
    key, kept = new_key(SECRET)
    tenants = Tenants(
        config_of(Tenant(name="acme", keys=(kept,)), anonymous=Tenant(name="anonymous")), SECRET
    )
    assert tenants.find(key).name == "acme"
    assert {tenants.find(guess).name for guess in (None, "", "sk-anything", key[:-1])} == {"anonymous"}


def test_two_tenants_cannot_share_a_key() -> None:
    _, kept = new_key(SECRET)
    twice = config_of(Tenant(name="acme", keys=(kept, kept)), Tenant(name="umbrella", keys=(kept,)))
    with pytest.raises(ValueError, match=f"acme and umbrella share the key {kept.prefix}"):
        Tenants(twice, SECRET)
    Tenants(config_of(Tenant(name="acme", keys=(kept, kept))), SECRET)


def test_salts_are_apart_for_each_tenant_and_secret() -> None:
    salts = {cache_salt(secret, tenant) for secret in (SECRET, bytes(32)) for tenant in ("acme", "acme2", "")}
    assert len(salts) == 6 and {len(salt) for salt in salts} == {32}


def test_a_salt_is_the_mac_of_framed_fields() -> None:
    """Unframed, ("cache-salt", "acme") and ("cache-salta", "cme") would be one."""
    framed = b"\0\0\0\0\0\0\0\x0acache-salt" + b"\0\0\0\0\0\0\0\x04acme"
    assert cache_salt(SECRET, "acme") == hmac.new(SECRET, framed, hashlib.sha256).digest()


def test_engines_tell_tenants_and_sessions_apart_by_tags_that_name_neither() -> None:
    salts = [cache_salt(SECRET, tenant) for tenant in ("acme", "umbrella")]
    tags = {engine_tag(salt, session) for salt in salts for session in ("", "one", "two")}
    assert len(tags) == 6 and {len(tag) for tag in tags} == {16}
    assert engine_tag(salts[0], "one") == engine_tag(salts[0], "one")
    assert not any(word in tag for tag in tags for word in ("acme", "one", salts[0].hex()[:8]))


def test_no_key_that_a_client_may_send_has_a_salt_for_its_digest() -> None:
    """Both come from one secret; what sets them apart is the frame, which begins with a byte no header can hold."""
    salt = cache_salt(SECRET, "acme")
    tenants = Tenants(config_of(Tenant(name="victim", keys=(Key(prefix="x", digest=salt.hex()),))), SECRET)
    for guess in ("acme", "cache-saltacme", "cache-salt\0acme"):
        assert refusal(tenants, guess)["status"] == 401


def test_the_secret_is_made_once_readable_by_its_owner_only(tmp_path: Path) -> None:
    config = Config(tiers=TIERS, state=State(folder=str(tmp_path / "deep" / "state")))
    secret = server_secret(config)
    path = tmp_path / "deep" / "state" / "secret"
    assert len(secret) == 32 and secret != bytes(32)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["secret"]
    assert server_secret(config) == secret


def read_secret(folder: str) -> str:
    return server_secret(Config(tiers=TIERS, state=State(folder=folder))).hex()


def test_all_that_start_together_agree_on_one_secret(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        for run in range(20):
            assert len(set(pool.map(read_secret, [str(tmp_path / f"{run}")] * 8))) == 1
            assert [file.name for file in (tmp_path / f"{run}").iterdir()] == ["secret"]


@pytest.mark.parametrize("content", [b"", b"00", b"zz" * 32, b"00" * 33, b"\xff" * 64])
def test_a_damaged_secret_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    path.write_bytes(content)
    with pytest.raises(SecretError, match="does not hold 64 hexadecimal digits"):
        read_secret(str(tmp_path))
    assert path.read_bytes() == content


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    read_secret(str(tmp_path))
    (tmp_path / "secret").chmod(0o640)
    with pytest.raises(SecretError, match="open to others; make its mode 0600"):
        read_secret(str(tmp_path))


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("This is no folder.")
    for folder in (tmp_path / "state", tmp_path / "state" / "deeper"):
        with pytest.raises(SecretError, match=f"state.folder: {folder} cannot be used: "):
            read_secret(str(folder))


def test_the_environment_may_hold_the_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(tiers=TIERS, state=State(folder=str(tmp_path)), secret_env="HEADRACE_TEST_SECRET")
    monkeypatch.setenv("HEADRACE_TEST_SECRET", "s" * 32)
    assert server_secret(config) == b"s" * 32
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("HEADRACE_TEST_SECRET", "s" * 31)
    with pytest.raises(SecretError, match="secret_env: the variable HEADRACE_TEST_SECRET needs at least 32"):
        server_secret(config)
    monkeypatch.delenv("HEADRACE_TEST_SECRET")
    with pytest.raises(SecretError, match="HEADRACE_TEST_SECRET"):
        server_secret(config)
