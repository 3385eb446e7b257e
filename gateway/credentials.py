"""Where a call carries its key.

Bearer tokens and `x-api-key` everywhere. The page's own paths also take the key as the password of HTTP Basic (RFC
7617): browsers ask for that by themselves and never show it to scripts.
"""

import binascii
from base64 import b64decode
from collections.abc import Mapping

PAGE = "/dashboard"
BEARER = {"www-authenticate": "Bearer"}
BASIC = {"www-authenticate": 'Basic realm="Headrace, an admin key as the password", charset="UTF-8"'}


def of_page(path: str) -> bool:
    """Whether a path belongs to the page."""
    return path == PAGE or path.startswith(f"{PAGE}/")


def challenge(path: str) -> dict[str, str]:
    """The header with which a call without a good key is refused."""
    return dict(BASIC if of_page(path) else BEARER)


def key_of(path: str, headers: Mapping[str, str]) -> str | None:
    """The key as the client has sent it; None where there is none."""
    authorization = headers.get("authorization")
    if authorization is None:
        return headers.get("x-api-key", "").strip() or None
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip() or None
    if scheme.lower() == "basic" and of_page(path):
        return _password(value.strip())
    return None


def _password(encoded: str) -> str | None:
    try:
        text = b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    return text.partition(":")[2] or None
