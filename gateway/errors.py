"""Every error that a client can see, as one exception type that each dialect renders in its own shape."""

import math
import re
from collections.abc import Mapping
from typing import Any

from backends.backend import BackendError, DeadlineExceeded, Overloaded, Rejected
from gateway.prices import written

SERVER_ERROR = "server_error"
NO_THREADS = "thread_unsupported_request"  # told so, Anthropic's clients go on and send whole conversations
OVERLOADED = 529  # Anthropic's status for what is 503 elsewhere
_FIELD = re.compile(r"(?P<field>[a-z_.]{1,40}): ")  # what a message begins with that is about a field
CLIENT_GONE = 499  # nginx's word for a client that did not wait; it is counted and logged, never sent


class ApiError(Exception):
    """`message` names the field and the reason; it never holds prompt text, keys, paths or addresses.

    `type` and `code` are OpenAI's words. `headers` go out with the response (retry-after, x-should-retry).
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.headers = dict(headers or {})


class ClientGone(Exception):
    """The client has closed its connection: nobody is left to be told."""


def as_api_error(error: Exception) -> ApiError:
    """What a client is told of `error`. Of an unforeseen one: that it happened, nothing else."""
    match error:
        case ApiError():
            return error
        case Rejected():
            named = _FIELD.match(error.message)
            return ApiError(400, error.message, code=error.code, param=named and named["field"])
        case DeadlineExceeded():
            # It would only take as long again.
            return _server_error(504, error.message, error.code, {"x-should-retry": "false"})
        case Overloaded():
            wait = str(math.ceil(error.retry_after or 1))
            return _server_error(503, error.message, error.code, {"retry-after": wait})
        case BackendError():
            return _server_error(502, error.message, error.code, {"retry-after": "1"})
        case _:
            message = "The server had an error while processing the request."
            return _server_error(500, message, "internal_error", {})


def draining() -> ApiError:
    """Refuses a request, or ends one, because this gateway is being stopped; another one may take it."""
    return _server_error(503, "The server is shutting down.", "draining", {"retry-after": "1"})


def too_expensive(price: float, limit: float) -> ApiError:
    """`price`: what the request could cost at most on the cheapest tier that may take it; the same of a tenant."""
    return ApiError(
        400,
        f"max_tokens: the request could cost {written(price)}; one request of this tenant may cost {written(limit)}. "
        "Ask for fewer tokens or shorten the prompt.",
        code="request_too_expensive",
        param="max_tokens",
    )


def openai_error(error: ApiError) -> dict[str, Any]:
    """OpenAI's error object: all four keys, always."""
    return {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.code,
        }
    }


def anthropic_status(error: ApiError) -> int:
    """As Anthropic has it: a server that is only busy is told from one that fails."""
    return OVERLOADED if error.code == "server_is_overloaded" else error.status


def anthropic_error(error: ApiError) -> dict[str, Any]:
    """Anthropic's error object, of answers and of streams."""
    status = anthropic_status(error)
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    told: dict[str, Any] = {"type": kind, "message": error.message}
    if error.code == NO_THREADS:
        told["details"] = {"error_code": error.code, "unsupported": [error.param]}
    return {"type": "error", "error": told}


_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}


def _server_error(status: int, message: str, code: str, headers: Mapping[str, str]) -> ApiError:
    return ApiError(status, message, type=SERVER_ERROR, code=code, headers=headers)
