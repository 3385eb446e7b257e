"""Who calls: keys, the tenants they belong to, and the server's secret that guards both keys and caches.

A key has 256 random bits, so a fast keyed digest is enough to store it: HMAC-SHA-256 (RFC 2104) under the secret. A
caller is looked up by that digest, which nobody can compute without the secret, so timing tells nothing of a key.
"""

import hmac
import math
import os
import secrets
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from gateway.config import Config, Key, Tenant
from gateway.errors import ApiError

KEY_PREFIX = "hr_"
SHOWN = 10  # characters of a key that may be stored and logged
SECRET_BYTES = 32
SHORTEST_SECRET = 32  # characters in the environment
TAG = 16  # hexadecimal digits of an engine's tag
TAGS = 1024  # of tenants and sessions that are remembered


class SecretError(ValueError):
    """The server's secret is missing, too short, or open to others, or there is no place for it."""


def server_secret(config: Config) -> bytes:
    """From the variable that `secret_env` names, or from the file `secret` in `state.folder`, made on first use.

    Raises SecretError, OSError.
    """
    if config.secret_env is None:
        return _secret_file(Path(config.state.folder) / "secret")
    secret = os.environ.get(config.secret_env, "")
    if len(secret) < SHORTEST_SECRET:
        raise SecretError(
            f"secret_env: the variable {config.secret_env} needs at least {SHORTEST_SECRET} characters"
        )
    return secret.encode()


def new_key(secret: bytes) -> tuple[str, Key]:
    """A key to hand out once, and what the configuration keeps of it."""
    key = KEY_PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    return key, Key(prefix=key[:SHOWN], digest=_digest(secret, key).hex())


def cache_salt(secret: bytes, tenant: str) -> bytes:
    """What keeps this tenant's prefixes apart in every cache; 32 bytes. Neither clients nor tenants can choose it."""
    return _mac(secret, _framed("cache-salt", tenant))


@lru_cache(TAGS)
def engine_tag(salt: bytes, session: str = "") -> str:
    """By what engines tell tenants, and their sessions, apart: it says nothing to who has not the tenant's salt.

    Nobody stores it, and each new session has one: BLAKE2 with a key takes a third of the time of an HMAC.
    """
    return blake2b(session.encode(), key=salt, person=b"engine-tag", digest_size=TAG // 2).hexdigest()


@dataclass(frozen=True, slots=True)
class _Entry:
    """One key. `end`: POSIX seconds from which it opens nothing."""

    digest: bytes
    tenant: Tenant
    end: float


_NOBODY = _Entry(b"", Tenant(name="nobody"), 0.0)


def _end(key: Key) -> float:
    return math.inf if key.not_after is None else key.not_after.timestamp()


class Tenants:
    """The tenants of a configuration, by key."""

    def __init__(self, config: Config, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        """`clock`: POSIX seconds. Raises ValueError when two tenants share a key."""
        self._secret = secret
        self._clock = clock
        self._anonymous = config.anonymous
        self._by_digest: dict[bytes, _Entry] = {}
        for tenant in config.tenants:
            for key in tenant.keys:
                entry = _Entry(bytes.fromhex(key.digest), tenant, _end(key))
                other = self._by_digest.setdefault(entry.digest, entry).tenant
                if other.name != tenant.name:
                    raise ValueError(f"tenants: {other.name} and {tenant.name} share the key {key.prefix}...")

    def find(self, key: str | None) -> Tenant:
        """The tenant of this key, else the anonymous one where the configuration has it.

        Raises ApiError 401, the same for a missing, an unknown, and an expired key.
        """
        digest = _digest(self._secret, key or "")
        found = self._by_digest.get(digest, _NOBODY)
        known = hmac.compare_digest(found.digest, digest) and self._clock() < found.end
        tenant = found.tenant if known else self._anonymous
        if tenant is None:
            raise ApiError(
                401,
                "Incorrect API key. Send a key of this gateway as 'Authorization: Bearer KEY'.",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        return tenant


def _digest(secret: bytes, key: str) -> bytes:
    return _mac(secret, key.encode("utf-8", "surrogatepass"))


def _mac(secret: bytes, message: bytes) -> bytes:
    return hmac.digest(secret, message, "sha256")


def _framed(*fields: str) -> bytes:
    """Each field behind its length, since joined as they are, ("ab", "c") and ("a", "bc") would be one."""
    encoded = [field.encode() for field in fields]
    return b"".join(len(field).to_bytes(8, "big") + field for field in encoded)


def _secret_file(path: Path) -> bytes:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            _make_secret(path)
    except OSError as error:
        raise SecretError(f"state.folder: {path.parent} cannot be used: {error.strerror}") from error
    if path.stat().st_mode & 0o077:
        raise SecretError(f"{path.name} in the state folder is open to others; make its mode 0600")
    try:
        secret = bytes.fromhex(path.read_text(encoding="ascii"))
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise SecretError(
            f"{path.name} in the state folder does not hold {2 * SECRET_BYTES} hexadecimal digits"
        )
    return secret


def _make_secret(path: Path) -> None:
    """Whole or not at all, and once: a second process that comes here at the same time takes the first one's."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".secret-")  # mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(SECRET_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)
