"""The router as a Starlette application: its own pages. What is passed on to engines is met
before the application by ``RouterProtocol``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from exaslurm import __version__
from exaslurm.keys.clients import ClientKeys, KeyInfo
from exaslurm.registry.replica import ReplicaSource
from exaslurm.router.audit import Audit
from exaslurm.router.config import RouterConfig
from exaslurm.router.direct import direct_routes
from exaslurm.router.errors import RequestError
from exaslurm.router.exposition import CONTENT_TYPE, merge, render
from exaslurm.router.headers import request_id
from exaslurm.router.loads import Loads
from exaslurm.router.pages import model_card, models_page, status_page
from exaslurm.router.quotas import SharedQuotas
from exaslurm.router.router import Router
from exaslurm.router.routes import PROXIED
from exaslurm.router.siblings import Siblings, others

# As vLLM does it with --allowed-origins '["*"]'.
_CORS = Middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["*"], allow_headers=["*"])
_NOT_POST = ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY")


def build_app(
    config: RouterConfig,
    source: ReplicaSource,
    keys: ClientKeys | None,
    *,
    audit: Audit | None = None,
    loads: Loads | None = None,
    quotas: SharedQuotas | None = None,
    siblings: Siblings | None = None,
) -> Starlette:
    """The router over a source of replicas, to be served with ``protocol.protocol_factory``.

    Its connections live as long as its lifespan. ``app.state.router`` is the router itself.
    ``keys`` None: nobody is asked for one.
    """
    router = Router(config, source, keys, audit, loads, quotas)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        router.start()
        try:
            yield
        finally:
            router.close()

    app = Starlette(
        routes=[
            *(Route(path, _post_only, methods=_NOT_POST) for path in PROXIED),
            *_Pages(router, siblings).routes(),
            *direct_routes(router, config.direct, config.internal_key, audit=audit),
        ],
        lifespan=lifespan,
        middleware=[_CORS] if router.any_origin else [],
        exception_handlers={
            RequestError: _on_request_error,
            HTTPException: _on_http_exception,
            Exception: _on_bug,
        },
    )
    app.router.redirect_slashes = False
    app.state.router = router
    return app


class _Pages:
    """What the router answers itself."""

    def __init__(self, router: Router, siblings: Siblings | None) -> None:
        self._router = router
        self._siblings = siblings
        self._table = router.table
        self._scraped = asyncio.Lock()

    def routes(self) -> Sequence[BaseRoute]:
        return [
            Route("/health", self.health),
            Route("/ping", self.health, methods=["GET", "POST"]),
            Route("/version", self.version),
            Route("/ready", self.ready),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/v1/responses/{ident}", self.response, methods=["GET", "DELETE"]),
            Route("/v1/responses/{ident}/cancel", self.response, methods=["POST"]),
            Route("/metrics", self.metrics),
            Route("/status", self.status),
        ]

    async def health(self, _request: Request) -> Response:
        """The router lives. Whether anything stands behind it: ``/ready``."""
        return Response()

    async def version(self, _request: Request) -> Response:
        """The router's, not that of vLLM: engines may differ."""
        return JSONResponse({"version": __version__, "server": "exaslurm"})

    async def ready(self, _request: Request) -> Response:
        if any(target.replica.takes_requests for target in self._table.targets):
            return Response()
        if any(group.may_wake for group in self._table.groups):
            return Response()  # it is started for who asks
        retry = {"Retry-After": str(self._router.config.retry_after_s)}
        raise RequestError(503, "no replica is ready", headers=retry)

    async def models(self, request: Request) -> Response:
        key = self._key(request)
        return JSONResponse(models_page(self._table, key, self._router.started_s))

    async def model(self, request: Request) -> Response:
        key = self._key(request)
        name = request.path_params["name"]
        card = model_card(self._table, key, name, self._router.started_s)
        if card is None:
            raise RequestError(404, f"the model {name!r} does not exist", param="model")
        return JSONResponse(card)

    async def response(self, request: Request) -> Response:
        """An answer that a client wants to have kept: engines keep none (vLLM's default)."""
        self._key(request)
        ident = request.path_params["ident"]
        message = f"no response {ident!r} is kept here: send the whole conversation instead"
        raise RequestError(404, message, param="response_id")

    async def metrics(self, request: Request) -> Response:
        self._key(request)
        # One page after the other, and not in the event loop: with many models it has megabytes.
        async with self._scraped:
            own = self._router.metrics.families()
            live, ended = await others(self._siblings, own)
            page = await asyncio.to_thread(lambda: render(merge([own, *live], ended)))
        return Response(page, headers={"content-type": CONTENT_TYPE})

    async def status(self, request: Request) -> Response:
        self._key(request)
        live, _ = await others(self._siblings)
        return JSONResponse(status_page(self._router, live))

    def _key(self, request: Request) -> KeyInfo:
        return self._router.authenticate(dict(request.scope["headers"]))


async def _post_only(_request: Request) -> Response:
    """A path that is passed on, asked in another way than it can be."""
    raise HTTPException(405, headers={"Allow": "POST"})


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
