"""What a URL of a Redis may say. The client takes any option for an argument, whatever becomes of that."""

import re
from urllib.parse import parse_qsl, urlsplit

OPTIONS = ("client_name", "db", "protocol")
TLS_OPTIONS = (
    "ssl_ca_certs", "ssl_ca_path", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname", "ssl_keyfile",
)  # fmt: skip


def fault_of(url: str) -> str | None:
    """What is wrong with it, in words that hold nothing of its password; None where nothing is."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        return f"is no URL: {error}"
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    known = (*OPTIONS, *TLS_OPTIONS) if parts.scheme == "rediss" else OPTIONS
    for name in options:
        if name not in known:
            only = " (only with rediss://)" if name in TLS_OPTIONS else ""
            return f"the option {name} is not known here{only}; known are {', '.join(known)}"
    database = options.get("db", "" if parts.scheme == "unix" else parts.path.strip("/"))
    if not re.fullmatch("[0-9]*", database, re.ASCII):
        return "the database is a number, 0 by default: redis://host:port/0"
    if options.get("protocol", "2") not in ("2", "3"):
        return "the protocol is 2 or 3"
    return None
