"""Every error that a client can see, as one exception type that each dialect renders in its own shape."""

from collections.abc import Mapping


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
