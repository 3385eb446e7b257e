"""The configuration that holds now. Whoever needs what may change while requests run asks here each time.

A request keeps the tenant that it came with, so it ends by the rules that it began with.
"""

from gateway.account import unlimited
from gateway.config import Config, Limits, Tenant
from gateway.configfile import is_loopback
from gateway.tenants import Tenants, cache_salt


class Live:
    """What is derived from a configuration, changed all at once by `hold`."""

    def __init__(self, config: Config, tenants: Tenants) -> None:
        self.aliases: dict[str, str] = {}
        self.hold(config, tenants)

    def hold(self, config: Config, tenants: Tenants) -> None:
        """From here on this one holds. Without an await, nobody sees a half of it."""
        self.config = config
        self._tenants = tenants
        self._by_name = {tenant.name: tenant for tenant in everybody(config)}
        self.aliases.clear()
        self.aliases.update(config.aliases)

    def find(self, key: str | None) -> Tenant:
        """See `Tenants.find`."""
        return self._tenants.find(key)

    def limits(self, tenant: Tenant) -> Limits:
        """What it is settled by: the limits of now, so that a count that has begun since is not lost."""
        now = self._by_name.get(tenant.name, tenant).limits
        return tenant.limits if unlimited(now) else now

    def retention(self, tenant: str) -> float:
        """See `sessions.retention`."""
        known = self._by_name.get(tenant)
        own = None if known is None else known.session_ttl
        return self.config.state.session_ttl if own is None else own


class Salts(dict[str, bytes]):
    """Cache salts by tenant, made when they are first asked for: tenants may come later."""

    def __init__(self, secret: bytes) -> None:
        super().__init__()
        self._secret = secret

    def __missing__(self, tenant: str) -> bytes:
        salt = self[tenant] = cache_salt(self._secret, tenant)
        return salt


def shut(config: Config) -> str | None:
    """What it means that nobody has a key and none goes without; None where somebody can call."""
    if config.anonymous is not None or any(tenant.keys for tenant in config.tenants):
        return None
    return "no tenant has a key, and there is no anonymous one: every request is answered with 401"


def unadministered(config: Config) -> str | None:
    """What it means that nobody can use `/admin`; None where somebody can."""
    door = config.server.admin
    if door is not None and is_loopback(door.host):
        return None
    if any(tenant.admin for tenant in everybody(config) if tenant.keys or tenant is config.anonymous):
        return None
    return (
        "no tenant with a key is an admin: nobody can use /admin, and only a hang-up signal reloads the file"
    )


def everybody(config: Config) -> tuple[Tenant, ...]:
    """All tenants, the anonymous one last."""
    return (*config.tenants, *(() if config.anonymous is None else (config.anonymous,)))
