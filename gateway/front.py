"""The front door: routes and layers around a dispatcher, wherever that one has its answers from."""

from collections.abc import Awaitable, Callable, Mapping

from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp, Lifespan

from gateway.api.admin import Admin, Changes
from gateway.api.chat import Chat
from gateway.api.completions import Completions
from gateway.api.conversations import Conversations
from gateway.api.generation import Dispatches, Generation
from gateway.api.health import Health
from gateway.api.messages import Messages
from gateway.api.models import Models
from gateway.api.responses_dialect import Responses
from gateway.api.responses_stored import StoredResponses
from gateway.api.route import Routing
from gateway.api.sessions import Sessions
from gateway.api.token_count import TokenCount
from gateway.archive import Archive
from gateway.config import Config, Tenant
from gateway.configfile import is_loopback
from gateway.dashboard.overview import Overview
from gateway.dashboard.pages import Dashboard
from gateway.drain import Drain
from gateway.exchange import Observe
from gateway.middleware import FindTenant, layers


class Front(Starlette):
    """Starlette with our layers around its router, and none of its own: `gateway.middleware.Errors` does their work."""

    def build_middleware_stack(self) -> ASGIApp:
        app: ASGIApp = self.router
        for layer, arguments, options in reversed(self.user_middleware):
            app = layer(app, *arguments, **options)
        return app


def build_front(
    config: Config,
    dispatcher: Dispatches,
    *,
    archive: Archive,
    find_tenant: FindTenant,
    drain: Drain,
    metrics: Callable[[], Awaitable[bytes]],
    overview: Overview,
    observe: Observe,
    reloads: Changes | None = None,
    aliases: Mapping[str, str] | None = None,
    anonymous: Callable[[], Tenant | None] | None = None,
    lifespan: Lifespan[Starlette] | None = None,
) -> Starlette:
    """An ASGI application.

    `metrics` renders `/metrics`, `overview` is what the page shows; `observe` surrounds every call. `aliases`
    and `anonymous`: instead of the configuration's, where they may change. What operators ask is here too, unless that
    has a port of its own (see `build_admin`).
    """
    anonymous = anonymous or (lambda: config.anonymous)
    models = Models(dispatcher, config.aliases if aliases is None else aliases)
    health = Health(dispatcher, drain, metrics, anonymous)
    chat = Generation(Chat(), dispatcher, config.server, drain)
    completions = Generation(Completions(), dispatcher, config.server, drain)
    responses = Generation(Responses(archive), dispatcher, config.server, drain)
    messages = Generation(Messages(), dispatcher, config.server, drain)
    counts = TokenCount(dispatcher, config.server, Responses(archive))
    routing = Routing(dispatcher, config.server, (Chat(), Completions(), Responses(archive), Messages()))
    tries: dict[str, ASGIApp] = {"chat/completions": chat, "route": routing}
    dashboard = Dashboard(overview, drain, anonymous, tries)
    app = Front(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/responses", responses, methods=["POST"]),
            Route("/v1/responses/input_tokens", counts.of_response, methods=["POST"]),
            *_stored(archive),
            Route("/v1/messages", messages, methods=["POST"]),
            Route("/v1/messages/count_tokens", counts.of_message, methods=["POST"]),
            Route("/v1/route", routing, methods=["POST"]),
            Route("/v1/models", models.list, methods=["GET"]),
            Route("/v1/models/{name:path}", models.get, methods=["GET"]),
            *_probes(health),
            *(() if config.server.admin else _operators(health, dashboard, reloads, find_tenant)),
        ],
        middleware=layers(config.server, find_tenant, drain, observe),
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # a redirect would send clients where their Host header says
    return app


def build_admin(
    config: Config,
    host: str,
    dispatcher: Dispatches,
    *,
    find_tenant: FindTenant,
    drain: Drain,
    metrics: Callable[[], Awaitable[bytes]],
    overview: Overview,
    observe: Observe,
    reloads: Changes,
) -> Starlette:
    """The ASGI application of a port of its own on `host`, for operators."""
    health = Health(dispatcher, drain, metrics, nobody)
    tries: dict[str, ASGIApp] = {
        "chat/completions": Generation(Chat(), dispatcher, config.server, drain),
        "route": Routing(dispatcher, config.server, (Chat(), Completions(), Messages())),
    }
    dashboard = Dashboard(overview, drain, nobody, tries)
    find = _operator if is_loopback(host) else find_tenant
    app = Front(
        routes=[*_probes(health), *_operators(health, dashboard, reloads, find)],
        middleware=layers(config.server, find, drain, observe),
    )
    app.router.redirect_slashes = False
    return app


def _operator(key: str | None) -> Tenant:
    """Whoever reaches a loopback port of the operators' own is one of them. No configured tenant has this name."""
    return Tenant(name="(operator)", admin=True)


def nobody() -> None:
    """There is no anonymous tenant."""


def _probes(health: Health) -> list[Route]:
    return [
        Route("/livez", health.live, methods=["GET"]),
        Route("/readyz", health.ready, methods=["GET"]),
    ]


def _operators(
    health: Health, dashboard: Dashboard, reloads: Changes | None, find_tenant: FindTenant
) -> list[Route]:
    """What is asked by those who run the gateway."""
    admin = [] if reloads is None else Admin(reloads, find_tenant).routes()
    return [Route("/metrics", health.metrics, methods=["GET"]), *dashboard.routes(), *admin]


def _stored(archive: Archive) -> list[Route]:
    """What is remembered."""
    responses, conversations, sessions = (
        StoredResponses(archive),
        Conversations(archive),
        Sessions(archive),
    )
    return [
        Route("/v1/responses/compact", responses.compact, methods=["POST"]),
        Route("/v1/responses/{id}", responses.get, methods=["GET"]),
        Route("/v1/responses/{id}", responses.delete, methods=["DELETE"]),
        Route("/v1/responses/{id}/cancel", responses.cancel, methods=["POST"]),
        Route("/v1/responses/{id}/input_items", responses.items, methods=["GET"]),
        Route("/v1/sessions", sessions.list, methods=["GET"]),
        Route("/v1/sessions/{id}", sessions.get, methods=["GET"]),
        Route("/v1/sessions/{id}", sessions.delete, methods=["DELETE"]),
        Route("/v1/conversations", conversations.create, methods=["POST"]),
        Route("/v1/conversations/{id}", conversations.get, methods=["GET"]),
        Route("/v1/conversations/{id}", conversations.delete, methods=["DELETE"]),
        Route("/v1/conversations/{id}", conversations.update, methods=["POST"]),
        Route("/v1/conversations/{id}/items", conversations.items, methods=["GET"]),
        Route("/v1/conversations/{id}/items", conversations.add_items, methods=["POST"]),
        Route("/v1/conversations/{id}/items/{item_id}", conversations.item, methods=["GET"]),
        Route("/v1/conversations/{id}/items/{item_id}", conversations.delete_item, methods=["DELETE"]),
    ]
