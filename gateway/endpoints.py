"""Names for what is called, of a closed set: paths hold ids, and whatever else a stranger may think of."""

import re

from gateway.credentials import of_page

OPEN = frozenset({"/livez", "/readyz"})  # to everybody
PROBES = OPEN | {"/metrics"}
OTHER = "other"
ENDPOINTS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/responses/input_tokens": "count_tokens",
    "/v1/responses/compact": "stored_responses",
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "count_tokens",
    "/v1/route": "route",
    "/v1/models": "models",
    "/v1/conversations": "conversations",
    "/v1/sessions": "sessions",
    "/dashboard/chat/completions": "chat",
    "/dashboard/route": "route",
    **dict.fromkeys(("/admin/config", "/admin/reload", "/admin/rollback"), "admin"),
    **dict.fromkeys(PROBES, "probe"),
}
BELOW = {  # where a path goes on with an id
    "/v1/models/{id}": "models",
    "/v1/responses/{id}": "stored_responses",
    "/v1/responses/{id}/cancel": "stored_responses",
    "/v1/responses/{id}/input_items": "stored_responses",
    "/v1/sessions/{id}": "sessions",
    "/v1/conversations/{id}": "conversations",
    "/v1/conversations/{id}/items": "conversations",
    "/v1/conversations/{id}/items/{id}": "conversations",
}
_PATTERNS = {
    re.compile(template.replace("{id}", ".+" if name == "models" else "[^/]+")): (name, template)
    for template, name in BELOW.items()
}


def named(path: str) -> tuple[str, str]:
    """The endpoint, for metrics and the log, and the route, for traces: the path with `{id}` for what is one.

    Of the page, only what runs a prompt is more than a probe.
    """
    if (endpoint := ENDPOINTS.get(path)) is not None:
        return endpoint, path
    if of_page(path):
        return "probe", OTHER
    found = (names for pattern, names in _PATTERNS.items() if pattern.fullmatch(path))
    return next(found, (OTHER, OTHER))
