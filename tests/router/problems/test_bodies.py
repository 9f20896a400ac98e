"""What must not change on its way to an engine and back."""

from __future__ import annotations

import itertools
import json
import socket
import time
from collections.abc import Callable, Iterator

import httpx
import openai
import pytest

from tests.tools.farm import DONE, END, EVENT, STREAM_HEAD, FarmThread, Peer, chunk, plain
from tests.tools.fleet import INNER, Router

MakeFarm = Callable[..., FarmThread]
RouterOf = Callable[..., Router]


class Recorder:
    """Keeps what an engine got, and answers as the test says."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.answer = plain(b'{"ok": true}')

    def __call__(self, peer: Peer) -> None:
        self.heads.append(peer.head)
        self.bodies.append(peer.body)
        peer.answer(self.answer)


@pytest.fixture
def seen() -> Recorder:
    return Recorder()


@pytest.fixture
def farm(make_farm: MakeFarm, seen: Recorder) -> FarmThread:
    return make_farm(1, seen)


@pytest.fixture
def router(farm: FarmThread, router_of: RouterOf) -> Router:
    return router_of(farm)


def post(router: Router, body: bytes, path: str = "/v1/chat/completions") -> httpx.Response:
    headers = {"Authorization": f"Bearer {router.key}", "Content-Type": "application/json"}
    return router.stranger.post(path, content=body, headers=headers)


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    "given",
    [
        # https://github.com/vllm-project/router/issues/161
        {
            "messages": [USER],
            "top_k": 7,
            "min_p": 0.1,
            "return_token_ids": True,
            "guided_json": {"type": "object"},
            "priority": -1,
            "kv_transfer_params": {"a": [1]},
        },
        # https://github.com/vllm-project/router/issues/110
        {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}, "x": {"y": None}},
        # https://github.com/vllm-project/router/issues/275
        {"messages": [USER], "tools": [{"type": "function", "function": {"name": "f"}}]},
        # https://github.com/sgl-project/sglang/pull/9690
        {
            "messages": [
                USER,
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "r"}]},
                {"role": "tool", "tool_call_id": "c2", "content": "", "name": "f"},
            ],
            "stream": None,
        },
    ],
    ids=["fields of vLLM", "template", "tool without parameters", "results of tools"],
)
def test_bodies_arrive_as_they_were(
    router: Router, seen: Recorder, given: dict[str, object]
) -> None:
    """Bodies were parsed into types and written anew: fields that only vLLM knows were dropped,
    results of tools lost, a tool without ``parameters`` was refused (422).

    https://github.com/vllm-project/router/issues/161
    https://github.com/vllm-project/router/issues/110
    https://github.com/vllm-project/router/issues/275
    https://github.com/sgl-project/sglang/pull/9690
    """
    body = json.dumps({"model": "chat", **given}, indent=1, ensure_ascii=False).encode() + b"\n"
    assert post(router, body).status_code == 200
    assert seen.bodies == [body]


def test_a_new_model_name_changes_nothing_else(
    farm: FarmThread, router: Router, seen: Recorder
) -> None:
    """Where the model was given another name, ``stream_options``, ``chat_template_kwargs`` and
    ``max_completion_tokens`` were lost.

    https://github.com/vllm-project/semantic-router/issues/2128
    https://github.com/vllm-project/semantic-router/issues/3573
    """
    router.replace(farm.replica(0, engine_model='/models/a "b"'))
    text = (
        '{"stream_options": {"include_usage":true}, "chat_template_kwargs":{"model": "chat"},'
        ' "model" : %s ,"max_completion_tokens":5e0,"messages":[{"role":"user",'
        '"content":"\\"model\\": \\"chat\\" \\u00e9"}],"stream":true}'
    )
    assert post(router, (text % '"chat"').encode()).status_code == 200
    assert seen.bodies == [(text % '"/models/a \\"b\\""').encode()]
    assert b"\r\ncontent-length: %d" % len(seen.bodies[0]) in seen.heads[0].lower()


def test_fields_of_the_head(router: Router, farm: FarmThread, seen: Recorder) -> None:
    """Own header fields of clients were stripped; where all were passed on, ``Host`` and those of
    one connection alone went too, and the engine answered 503.

    https://github.com/sgl-project/sglang/pull/29206
    https://github.com/vllm-project/production-stack/issues/201
    """
    answer = router.stranger.post(
        "/v1/completions",
        json={"model": "chat", "prompt": "x"},
        headers={
            "Authorization": f"Bearer {router.key}",
            "Host": "llm.example.org",
            "X-Custom": "kept",
            "X-Tenant-Id": "7",
            "Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "Connection": "keep-alive, X-Mine",
            "Keep-Alive": "timeout=5",
            "X-Mine": "dropped",
            "Proxy-Authorization": "Basic x",
            "TE": "trailers",
            "Trailer": "X-T",
        },
    )
    assert answer.status_code == 200
    lines = seen.heads[0].lower().split(b"\r\n")[1:]
    fields = dict(line.split(b": ", 1) for line in lines)
    assert len(fields) == len(lines)
    assert fields[b"x-custom"] == b"kept"
    assert fields[b"x-tenant-id"] == b"7"
    assert fields[b"traceparent"].startswith(b"00-0af7651916cd43dd")
    assert fields[b"host"] == farm.urls[0].removeprefix("http://").encode()
    assert fields[b"authorization"] == f"bearer {INNER}".encode()
    dropped = {b"keep-alive", b"x-mine", b"proxy-authorization", b"te", b"trailer"}
    assert not dropped & fields.keys()


@pytest.mark.parametrize("size_mib", [1, 8, 32])
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_large_bodies(
    router: Router, seen: Recorder, farm: FarmThread, size_mib: int, stream: bool
) -> None:
    """A cap of 5 MiB refused three pictures; and 1 MB with ``stream`` was answered by 500.

    https://github.com/sgl-project/sglang/pull/38735
    https://github.com/envoyproxy/ai-gateway/issues/805
    """
    if stream:
        seen.answer = STREAM_HEAD + chunk(EVENT) + chunk(DONE) + END
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,%s"}}
    message = {"role": "user", "content": [{"type": "text", "text": "x"}, picture]}
    text = json.dumps({"model": "chat", "stream": stream, "messages": [message]})
    body = (text % ("A" * (size_mib << 20))).encode()
    answer = post(router, body)
    assert answer.status_code == 200
    assert seen.bodies == [body]
    if stream:
        assert answer.content == EVENT + DONE


def test_the_limit_of_bodies_can_be_set(
    farm: FarmThread, router_of: RouterOf, seen: Recorder
) -> None:
    """What is too large is refused in a form that clients read, and the limit is the operator's.

    https://github.com/sgl-project/sglang/pull/38735
    """
    router = router_of(farm, max_body_bytes=3_000_000)
    large = b'{"model":"chat","messages":[{"role":"user","content":"%b"}]}' % (b"x" * 3_000_000)
    answer = post(router, large)
    assert answer.status_code == 413
    error = answer.json()["error"]
    assert error["code"] == 413
    assert "3000000 bytes" in error["message"]
    assert post(router, large[:-1000] + b'"}]}').status_code == 200
    assert len(seen.bodies) == 1


STREAMED = (
    b'data: {"choices":[{"delta":{"content":"\xc3\xa9 \\n\\n data: "}}]}\n\n'
    b": a comment\n\n"
    b'data: {"choices":[{"delta":{"content":"b"}}]}\n\ndata: [DONE]\n\n'
)


@pytest.mark.parametrize("every", [1, 2, 3, 7, 40, 1000])
def test_streams_split_anywhere(
    router: Router, farm: FarmThread, seen: Recorder, every: int
) -> None:
    """Each piece of a stream that TCP delivered was parsed as JSON by itself; where an event was
    split, the client got a 500 in the middle.

    https://github.com/vllm-project/aibrix/issues/2638
    https://github.com/vllm-project/aibrix/issues/2266
    https://github.com/vllm-project/aibrix/issues/1816
    """
    pieces = [STREAMED[at : at + every] for at in range(0, len(STREAMED), every)]
    wire = b"".join(chunk(piece) for piece in pieces)

    def dribble(peer: Peer) -> None:
        # Chunks of HTTP, and reads of TCP that end anywhere in them.
        cuts = [wire[at : at + every + 5] for at in range(0, len(wire), every + 5)]
        peer.events(cuts, 0.0003)

    farm.behave = dribble
    body = {"model": "chat", "messages": [USER], "stream": True}
    with router.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200
        assert b"".join(answer.iter_raw()) == STREAMED
    with openai.OpenAI(base_url=router.url + "/v1", api_key=router.key, max_retries=0) as client:
        events = client.chat.completions.create(
            model="chat", messages=[{"role": "user", "content": "x"}], stream=True
        )
        assert [event.choices[0].delta.content for event in events] == ["é \n\n data: ", "b"]


def test_events_are_not_collected(router: Router, farm: FarmThread) -> None:
    """Events were collected until 16 KB were there: the first one came after 16 s.

    https://github.com/dstackai/dstack/issues/4269
    """
    farm.behave = lambda peer: peer.events([*[chunk(EVENT)] * 10, chunk(DONE)], 0.1)
    body = {"model": "chat", "messages": [USER], "stream": True}
    begin_s = time.monotonic()
    arrivals: list[float] = []
    with router.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        arrivals += [time.monotonic() - begin_s for piece in answer.iter_raw() if EVENT in piece]
    assert len(arrivals) == 10
    assert arrivals[0] < 0.09
    gaps = [later - earlier for earlier, later in itertools.pairwise(arrivals)]
    assert min(gaps) > 0.05
    assert max(gaps) < 0.2


def test_proxies_in_front_are_told_not_to_collect(router: Router, seen: Recorder) -> None:
    """nginx in front of the router collected the events, as it was not told otherwise.

    https://github.com/BerriAI/litellm/pull/29557
    """
    seen.answer = STREAM_HEAD + chunk(EVENT) + chunk(DONE) + END
    body = {"model": "chat", "messages": [USER], "stream": True}
    headers = router.http.post("/v1/chat/completions", json=body).headers
    assert headers["x-accel-buffering"] == "no"
    assert headers["cache-control"] == "no-cache"
    assert headers["content-type"].startswith("text/event-stream")
    seen.answer = plain(b"{}")
    plainly = router.http.post("/v1/chat/completions", json={**body, "stream": False}).headers
    assert "x-accel-buffering" not in plainly


def refusals(router: Router) -> Iterator[tuple[int, httpx.Response]]:
    """Every way in which the router itself says no."""
    good = b'{"model": "chat", "messages": [{"role": "user", "content": "x"}]}'
    yield 401, router.stranger.post("/v1/chat/completions", content=good)
    yield 404, router.http.get("/v1/nothing")
    yield 405, router.http.get("/v1/chat/completions")
    yield 404, post(router, good.replace(b'"chat"', b'"other"'))
    for bad in (b"{", b"", b"[]", b'{"model": "chat"}', b'{"model": "chat", "messages": "x"}'):
        yield 400, post(router, bad)
    yield 400, post(router, good.replace(b"}]}", b'}], "temperature": {}}'))
    yield 400, post(router, b'{"model": "chat", "prompt": 1}', "/v1/completions")
    yield 413, post(router, b'{"model": "chat", "messages": "%b"}' % (b"x" * 100_000))
    with socket.create_connection(("127.0.0.1", router.port), timeout=10) as sock:
        sock.sendall(b"this is not HTTP\r\n\r\n")
        head, _, body = sock.recv(65536).partition(b"\r\n\r\n")
        kind = {"content-type": "application/json"}
        yield 400, httpx.Response(int(head.split()[1]), headers=kind, content=body)
    router.replace()
    yield 503, post(router, good)
    yield 503, router.http.get("/ready")


def test_refusals_have_the_form_of_openai(farm: FarmThread, router_of: RouterOf) -> None:
    """The router's own errors were 422 and plain text, which clients could not read.

    https://github.com/NovaSky-AI/SkyRL/pull/1421
    """
    router = router_of(farm, max_body_bytes=100_000)
    for expected, answer in refusals(router):
        assert answer.status_code == expected, answer.text
        assert answer.headers["content-type"] == "application/json"
        error = answer.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["code"] == expected
        assert error["message"]
    with (
        openai.OpenAI(base_url=router.url + "/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError, match="API key"),
    ):
        client.chat.completions.create(model="chat", messages=[])
