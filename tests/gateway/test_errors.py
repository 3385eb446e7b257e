"""What a client is told of each kind of failure."""

import pytest

from backends.backend import BackendError, DeadlineExceeded, Overloaded, Rejected, Unavailable
from gateway.errors import ApiError, as_api_error, draining, openai_error


@pytest.mark.parametrize(
    ("error", "status", "type_", "code", "headers"),
    [
        (Rejected("No."), 400, "invalid_request_error", "context_length_exceeded", {}),
        (Rejected("No.", "invalid"), 400, "invalid_request_error", "invalid", {}),
        (DeadlineExceeded("No."), 504, "server_error", "deadline_exceeded", {"x-should-retry": "false"}),
        (Overloaded("No."), 503, "server_error", "server_is_overloaded", {"retry-after": "1"}),
        (
            Overloaded("No.", retry_after=7.5),
            503,
            "server_error",
            "server_is_overloaded",
            {"retry-after": "8"},
        ),
        (Unavailable("No."), 502, "server_error", "engine_died", {"retry-after": "1"}),
        (BackendError("No."), 502, "server_error", "backend_error", {"retry-after": "1"}),
        (draining(), 503, "server_error", "draining", {"retry-after": "1"}),
        (ValueError("/etc/secret"), 500, "server_error", "internal_error", {}),
    ],
)
def test_statuses(error: Exception, status: int, type_: str, code: str, headers: dict[str, str]) -> None:
    told = as_api_error(error)
    assert (told.status, told.type, told.code, told.headers) == (status, type_, code, headers)
    assert "secret" not in told.message


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("logit_bias: 7 is outside the vocabulary of 5", "logit_bias"),
        ("the prompt and max_tokens are too long: shorten them", None),
        ("No.", None),
    ],
)
def test_a_refusal_that_begins_with_a_field_names_it(message: str, param: str | None) -> None:
    assert as_api_error(Rejected(message)).param == param


def test_an_api_error_stays_as_it_is() -> None:
    error = ApiError(418, "Tea.", param="pot")
    assert as_api_error(error) is error
    assert openai_error(error) == {
        "error": {"message": "Tea.", "type": "invalid_request_error", "param": "pot", "code": None}
    }
