"""`/v1/models`: the names that a request may carry. A tenant sees the tiers that it may use."""

import time
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.api.generation import Dispatches
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
        return _json({"object": "list", "data": [*models.values()]})

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
                models[alias] = {**models[target], "id": alias}
        return models

    def _model(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": "headrace"}


def _tier(card: Card) -> dict[str, Any]:
    """What OpenAI's object does not have; clients ignore what they do not know. Prices: per million tokens."""
    return {
        "context_length": card.context_length,
        "models": card.models,
        "price": msgspec.to_builtins(card.price),
        "ready": card.ready,
    }


def _json(value: Mapping[str, Any]) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
