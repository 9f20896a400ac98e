"""The router as a Starlette application."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from exaslurm.keys.clients import ClientKeys
from exaslurm.registry.replica import ReplicaSource
from exaslurm.router.account import CONTENT_TYPE, Accounts
from exaslurm.router.config import RouterConfig
from exaslurm.router.errors import RequestError
from exaslurm.router.forward import Forwarder
from exaslurm.router.headers import request_id
from exaslurm.router.pages import model_card, models_page, status_page
from exaslurm.router.proxy import Proxy, authenticate, send_error
from exaslurm.router.table import Table
from exaslurm.router.upstream import Upstream

# What vLLM offers to clients. Its paths for operators (/sleep, /pause, ...) are not passed on.
PROXIED = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/rerank",
    "/v2/rerank",
    "/v1/score",
    "/rerank",
    "/score",
    "/classify",
    "/pooling",
    "/tokenize",
    "/detokenize",
)


def build_app(config: RouterConfig, source: ReplicaSource, keys: ClientKeys) -> Starlette:
    """The router over a source of replicas. Its connections live as long as its lifespan."""
    table = Table()
    accounts = Accounts(table)
    pages = _Pages(source, keys, table, accounts, config)
    late = _Late()

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        upstream = Upstream(config)
        forwarder = Forwarder(config, table, upstream, accounts)
        late.proxy = Proxy(config, table, keys, forwarder, accounts)
        source.subscribe(table.update)
        try:
            yield
        finally:
            await upstream.close()

    routes: list[BaseRoute] = [Route(path, late, methods=["POST"]) for path in PROXIED]
    routes += pages.routes()
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={
            RequestError: _on_request_error,
            HTTPException: _on_http_exception,
            Exception: _on_bug,
        },
    )
    app.router.redirect_slashes = False
    return app


class _Late:
    """The proxy, which exists only inside the event loop, in a route that exists before."""

    proxy: Proxy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.proxy(scope, receive, send)


class _Pages:
    """What the router answers itself."""

    def __init__(
        self,
        source: ReplicaSource,
        keys: ClientKeys,
        table: Table,
        accounts: Accounts,
        config: RouterConfig,
    ) -> None:
        self._source = source
        self._keys = keys
        self._table = table
        self._accounts = accounts
        self._config = config
        self._started_s = time.time()

    def routes(self) -> Sequence[BaseRoute]:
        return [
            Route("/health", self.health),
            Route("/ready", self.ready),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/metrics", self.metrics),
            Route("/status", self.status),
        ]

    async def health(self, _request: Request) -> Response:
        """The router lives. Whether anything stands behind it: ``/ready``."""
        return Response()

    async def ready(self, _request: Request) -> Response:
        if any(target.replica.takes_requests for target in self._table.targets):
            return Response()
        retry = {"Retry-After": str(self._config.retry_after_s)}
        raise RequestError(503, "no replica is ready", headers=retry)

    async def models(self, request: Request) -> Response:
        key = authenticate(self._keys, request.scope["headers"])
        return JSONResponse(models_page(self._table, key, self._started_s))

    async def model(self, request: Request) -> Response:
        key = authenticate(self._keys, request.scope["headers"])
        name = request.path_params["name"]
        card = model_card(self._table, key, name, self._started_s)
        if card is None:
            raise RequestError(404, f"the model {name!r} does not exist", param="model")
        return JSONResponse(card)

    async def metrics(self, request: Request) -> Response:
        authenticate(self._keys, request.scope["headers"])
        return Response(self._accounts.render(), headers={"content-type": CONTENT_TYPE})

    async def status(self, request: Request) -> Response:
        authenticate(self._keys, request.scope["headers"])
        page = status_page(self._config.deployment, self._table, self._source, self._started_s)
        return JSONResponse(page)


async def _on_request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return _error_response(request, error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.scope["path"]
    texts = {
        404: f"there is no path {path!r} here",
        405: f"{path!r} does not take {request.method}",
    }
    message = texts.get(error.status_code, str(error.detail))
    return _error_response(request, RequestError(error.status_code, message, headers=error.headers))


async def _on_bug(request: Request, _error: Exception) -> Response:
    return _error_response(request, RequestError(500, "the router failed; its log says why"))


def _error_response(request: Request, error: RequestError) -> Response:
    ident = request_id(request.scope["headers"]).decode()
    headers = {**error.headers, "x-request-id": ident}
    return Response(error.body(), error.status, headers, media_type="application/json")


__all__ = ["PROXIED", "build_app", "send_error"]
