"""`/v1/models`: the names that a request may carry. A tenant sees the tiers that it may use.

What OpenAI's clients read and what Anthropic's read does not clash, so one answer has both.
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.api.generation import Dispatches
from gateway.api.paging import all_of
from gateway.config import Tenant
from gateway.errors import ApiError
from gateway.exchange import exchange_of
from gateway.request import Card

AUTO = "auto"


class Models:
    """`aliases`: other names, to `auto` or a tier's name."""

    def __init__(self, dispatcher: Dispatches, aliases: Mapping[str, str]) -> None:
        self._dispatcher = dispatcher
        self._aliases = aliases
        self._created = int(time.time())

    async def list(self, http: HttpRequest) -> Response:
        models = self._of(exchange_of(http.scope).tenant)
        return _json(all_of([*models.values()]))

    async def get(self, http: HttpRequest) -> Response:
        name = http.path_params["name"]
        models = self._of(exchange_of(http.scope).tenant)
        if name not in models:
            raise ApiError(404, f"There is no model {name[:64]!r}.", code="model_not_found", param="model")
        return _json(models[name])

    def _of(self, tenant: Tenant | None) -> dict[str, dict[str, Any]]:
        allowed = None if tenant is None else tenant.tiers
        models = {AUTO: self._model(AUTO)}
        for card in self._dispatcher.cards():
            if allowed is None or card.name in allowed:
                models[card.name] = {**self._model(card.name), **_tier(card)}
        for alias, target in self._aliases.items():
            if target in models:
                models[alias] = {**models[target], "id": alias, "display_name": alias}
        return models

    def _model(self, name: str) -> dict[str, Any]:
        of_openai = {"object": "model", "created": self._created, "owned_by": "headrace"}
        made = datetime.fromtimestamp(self._created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"id": name, **of_openai, "type": "model", "display_name": name, "created_at": made}


def _tier(card: Card) -> dict[str, Any]:
    """What neither object has; clients ignore what they do not know. Prices: per million tokens."""
    return {
        "context_length": card.context_length,
        "max_input_tokens": card.context_length,  # as Anthropic has it
        "models": card.models,
        "price": msgspec.to_builtins(card.price),
        "ready": card.ready,
    }


def _json(value: Mapping[str, Any]) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
