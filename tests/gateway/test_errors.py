"""What a client is told of a backend's failure."""

import pytest

from backends.backend import BackendError, DeadlineExceeded, Overloaded, Rejected, Unavailable
from gateway.errors import as_api_error


@pytest.mark.parametrize(
    ("error", "status", "code", "headers"),
    [
        (Rejected("too long"), 400, "context_length_exceeded", {}),
        (Rejected("top_k: no", "unsupported_parameter"), 400, "unsupported_parameter", {}),
        (Overloaded("busy"), 503, "server_is_overloaded", {"retry-after": "1"}),
        (Overloaded("busy", retry_after=7.2), 503, "server_is_overloaded", {"retry-after": "8"}),
        (Overloaded("busy", retry_after=0.25), 503, "server_is_overloaded", {"retry-after": "1"}),
        (Unavailable("gone", "upstream_eof"), 502, "upstream_eof", {"retry-after": "1"}),
        (DeadlineExceeded("late"), 504, "deadline_exceeded", {"x-should-retry": "false"}),
    ],
)
def test_failures_of_backends(error: BackendError, status: int, code: str, headers: dict[str, str]) -> None:
    told = as_api_error(error)
    assert (told.status, told.code, told.headers) == (status, code, headers)
    assert told.message == error.message


def test_the_unforeseen_is_not_told() -> None:
    told = as_api_error(ValueError("secret"))
    assert (told.status, told.code) == (500, "internal_error")
    assert "secret" not in told.message
