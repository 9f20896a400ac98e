"""Direct mode: who gets an engine's address, for which replica, and for how long."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import openai
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from exaslurm.core.canary import Canary
from exaslurm.core.limits import MOST_DIRECT_S, Limits
from exaslurm.engines.middleware import REPLICA_VARIABLE
from exaslurm.keys.clients import KeyInfo
from exaslurm.keys.token import MOST_S, TokenSigner
from exaslurm.registry.replica import Replica
from exaslurm.router.direct import DirectSettings, direct_routes
from exaslurm.router.errors import RequestError
from exaslurm.router.table import Group, Table
from tests.tools.fleet import Router as RealRouter
from tests.tools.fleet import engines

INNER = "inner"
ALICE = KeyInfo(name="alice", created_s=0.0)


def replica(ident: str, **changes: Any) -> Replica:
    base = Replica(
        id=ident,
        cell="c000",
        model="chat",
        served_names=("chat", "chat:base"),
        url=f"http://10.0.0.{int(ident[-1]) + 1}:20020",
        node=f"n{ident[-1]}",
        ready=True,
        state="ready",
    )
    return dataclasses.replace(base, **changes)


class Router:
    """The part of a router that direct mode asks."""

    def __init__(self, *replicas: Replica, key: KeyInfo = ALICE) -> None:
        self.table = Table(key=INNER)
        self.table.update(replicas)
        self.key = key
        self.wall_s = time.time()

    def authenticate(self, fields: Mapping[bytes, bytes]) -> KeyInfo:
        if fields.get(b"authorization") != b"Bearer exa-alice":
            raise RequestError(401, "unknown")
        return self.key

    def find_group(self, model: str | None, key: KeyInfo) -> Group:
        group = self.table.only_group() if model is None else self.table.group(model)
        if group is None or not key.allows(group.name):
            raise RequestError(404, "no such model", param="model")
        return group

    def no_answer(self, group: Group, tried: list[str], last: str, *, sent: bool) -> RequestError:
        return RequestError(503, f"no replica of {group.name}")


def client(router: Router, settings: DirectSettings | None = None) -> httpx.AsyncClient:
    async def on_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestError)
        return Response(error.body(), error.status, media_type="application/json")

    app = Starlette(
        routes=direct_routes(router, settings or DirectSettings(max_s=600), INNER),
        exception_handlers={RequestError: on_error},
    )
    headers = {"Authorization": "Bearer exa-alice"}
    transport = httpx.ASGITransport(app)
    return httpx.AsyncClient(transport=transport, base_url="http://router", headers=headers)


async def grant(router: Router, wish: dict[str, Any] | None = None) -> httpx.Response:
    async with client(router) as http:
        return await http.post("/v1/direct", json=wish)


async def test_an_address_and_a_token_for_it() -> None:
    router = Router(replica("r0"))
    answer = await grant(router, {"model": "chat", "seconds": 120})
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    said = answer.json()
    assert (said["url"], said["replica"], said["model"]) == ("http://10.0.0.1:20020", "r0", "chat")
    assert 119 <= said["expires_at"] - router.wall_s <= 121
    assert "limits" in said["note"]
    claims = TokenSigner(INNER).verify(said["token"], replica="r0", now_s=router.wall_s)
    assert not isinstance(claims, str)
    assert (claims.key_name, claims.models) == ("alice", ("chat",))
    assert claims.expires_at_s == said["expires_at"]


async def test_a_field_whose_name_is_no_text() -> None:
    async with client(Router(replica("r0"))) as http:
        answer = await http.post("/v1/direct", content=b'{"\\ud800": 1}')
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "?"


async def test_versions_have_their_shares() -> None:
    router = Router(replica("r0", version="old"), replica("r1", version="new"))
    router.table.divide(Canary(weights={"chat": {"old": 100.0, "new": 0.0}}))
    given = [(await grant(router, {"model": "chat"})).json()["replica"] for _ in range(10)]
    assert set(given) == {"r0"}
    router.table.update([replica("r0", version="old", ready=False), replica("r1", version="new")])
    assert (await grant(router, {"model": "chat"})).json()["replica"] == "r1"


@pytest.mark.parametrize("wish", [None, {}, {"model": None}])
async def test_without_wishes(wish: dict[str, Any] | None) -> None:
    router = Router(replica("r0"))
    said = (await grant(router, wish)).json()
    assert said["model"] == "chat"
    assert said["expires_at"] == math.ceil(router.wall_s + 60)


@pytest.mark.parametrize(
    ("wish", "status", "param"),
    [
        ({"seconds": 601}, 400, "seconds"),
        ({"seconds": 0}, 400, "seconds"),
        ({"seconds": -1}, 400, "seconds"),
        ({"seconds": True}, 400, "seconds"),
        ({"seconds": "60"}, 400, "seconds"),
        ({"model": 7}, 400, "model"),
        ({"model": ""}, 400, "model"),
        ({"model": "other"}, 404, "model"),
        ({"modle": "chat"}, 400, "modle"),
    ],
)
async def test_wishes_that_cannot_be(wish: dict[str, Any], status: int, param: str) -> None:
    answer = await grant(Router(replica("r0")), wish)
    assert answer.status_code == status
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize("body", [b"{", b"[]", b"NaN", b'{"seconds": NaN}', b"[" * 5000])
async def test_bodies_that_are_none(body: bytes) -> None:
    async with client(Router(replica("r0"))) as http:
        assert (await http.post("/v1/direct", content=body)).status_code == 400
        assert (await http.post("/v1/direct", content=b" " * 70_000)).status_code == 413


async def test_who_gets_none() -> None:
    router = Router(replica("r0"))
    async with client(router) as http:
        answer = await http.post("/v1/direct", headers={"Authorization": "Bearer exa-bob"})
        assert answer.status_code == 401
        assert (await http.get("/v1/direct")).status_code == 405
    for limit in ("requests_per_min", "tokens_per_min", "concurrency"):
        router.key = dataclasses.replace(ALICE, **{limit: 5})
        answer = await grant(router)
        assert answer.status_code == 403
        assert "has limits" in answer.json()["error"]["message"]
    router.key = dataclasses.replace(ALICE, models=("another",))
    assert (await grant(router, {"model": "chat"})).status_code == 404


async def test_a_token_ends_with_its_key() -> None:
    router = Router(replica("r0"))
    router.key = dataclasses.replace(ALICE, expires_at_s=router.wall_s + 10)
    said = (await grant(router, {"seconds": 600})).json()
    assert said["expires_at"] == math.ceil(router.wall_s + 10)


async def test_a_token_names_the_model_that_the_engine_knows() -> None:
    said = (await grant(Router(replica("r0", engine_model="llama")))).json()
    assert said["model"] == "llama"


async def test_it_is_signed_with_the_engines_own_key() -> None:
    router = Router(replica("r0", key="its own"))
    said = (await grant(router)).json()
    verify = TokenSigner("its own").verify
    assert not isinstance(verify(said["token"], replica="r0", now_s=router.wall_s), str)


async def test_only_replicas_that_serve_and_can_be_reached() -> None:
    replicas = [
        replica("r0", url="unix:/run/engine.sock"),
        replica("r1", draining=True),
        replica("r2", sleeping=True),
        replica("r3", ready=False),
        replica("r4"),
        replica("r5"),
    ]
    router = Router(*replicas)
    broken = router.table.target("r5")
    assert broken is not None
    router.table.failed(broken, time.monotonic(), fatal=True)
    assert {(await grant(router)).json()["replica"] for _ in range(20)} == {"r4"}
    assert (await grant(Router(replicas[0]))).status_code == 503
    assert (await grant(Router(replicas[3]))).status_code == 503


async def test_a_lease_is_load_until_it_ends() -> None:
    router = Router(replica("r0"), replica("r1"))
    loop = asyncio.get_running_loop()
    targets = list(router.table.targets)
    for _ in range(4):
        assert (await grant(router, {"seconds": 1})).status_code == 200
    assert [target.outstanding for target in targets] == [2, 2]
    deadline_s = loop.time() + 5
    while any(target.outstanding for target in targets):
        assert loop.time() < deadline_s
        await asyncio.sleep(0.02)
    assert [target.outstanding for target in targets] == [0, 0]


def test_it_is_off_unless_asked_for() -> None:
    assert direct_routes(Router(), DirectSettings(), INNER) == []
    assert Limits().direct_s == 0
    assert DirectSettings(max_s=MOST_DIRECT_S).max_s == MOST_S
    with pytest.raises(ValueError, match="at most 86400 s"):
        DirectSettings(max_s=1e6)


def test_from_the_router_to_the_engine(
    make_router: Callable[..., RealRouter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REPLICA_VARIABLE, "c000-r0000")
    with engines(("--decode-tokens-per-s", "1000"), names=("chat", "chat:base")) as (engine,):
        router = make_router(engine, direct=DirectSettings(max_s=60))
        given = router.http.post("/v1/direct", json={"model": "chat:base", "seconds": 30}).json()
        with openai.OpenAI(
            base_url=given["url"] + "/v1", api_key=given["token"], max_retries=0
        ) as client:
            ask = client.chat.completions.create
            messages: Any = [{"role": "user", "content": "hi"}]
            answer = ask(model=given["model"], messages=messages, max_tokens=4)
            assert answer.choices[0].message.content
            assert client.models.list().data
            with pytest.raises(openai.PermissionDeniedError, match=r"for chat:base, not for"):
                ask(model="chat", messages=messages)
        direct = httpx.get(f"{given['url']}/metrics", headers=_bearer(given["token"]))
        assert direct.status_code == 401
        # The router itself does not know tokens.
        answer_of_router = httpx.get(f"{router.url}/v1/models", headers=_bearer(given["token"]))
        assert answer_of_router.status_code == 401


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
