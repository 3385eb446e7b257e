"""Whether a Host header may open what needs no key.

Where callers need no key, being on this machine is what lets them in. A page of a stranger's in a browser on it is
there too, and once its own name is made to point to 127.0.0.1 (DNS rebinding), the browser lets it read our answers as
its own. Its requests still carry that name. An address in figures cannot be made to point elsewhere.
"""

import re
from ipaddress import ip_address

_AUTHORITY = re.compile(r"(?:\[(?P<literal>[^\]]*)\]|(?P<name>[^:]*))(?::[0-9]*)?")


def is_of_this_machine(host: str) -> bool:
    """Whether `host` (RFC 9110, 7.2) is an address, localhost, or nothing, as browsers always send one."""
    found = _AUTHORITY.fullmatch(host.strip())
    if found is None:
        return False
    name = (found["literal"] if found["name"] is None else found["name"]).lower().removesuffix(".")
    if name in ("", "localhost") or name.endswith(".localhost"):  # the latter by RFC 6761, 6.3
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
