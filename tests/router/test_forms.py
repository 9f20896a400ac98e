"""Forms are read as an engine's parser reads them, or refused: a key may be for one model only."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterator

import httpx
import pytest
from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException, MultiPartParser

from exaslurm.keys.clients import add_key
from exaslurm.router.errors import RequestError
from exaslurm.router.forms import fields
from exaslurm.router.parse import peek
from tests.tools.fleet import Router
from tests.tools.rawengine import RawEngine

PATH = "/v1/audio/transcriptions"
KIND = b"multipart/form-data; boundary=B"
CHAT = b'{"model":"secret","messages":[{"role":"user","content":"hi"}]}'
END = b"--B--\r\n"


def part(disposition: bytes, value: bytes, more: bytes = b"", boundary: bytes = b"B") -> bytes:
    head = b"--%b\r\nContent-Disposition: form-data; %b\r\n%b\r\n"
    return head % (boundary, disposition, more) + value + b"\r\n"


FILE = part(b'name="file"; filename="a.wav"', b"RIFF")
GOOD = part(b'name="model"', b"chat")
BAD = part(b'name="model"', b"secret")


def model(raw: bytes, kind: bytes = KIND) -> str | None:
    return peek(PATH, kind, raw).model


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (FILE + GOOD + END, KIND),
        (BAD + GOOD + END, KIND),  # the last one counts
        (GOOD + END + BAD + END, KIND),  # what comes behind the end is nothing
        (GOOD + BAD[:-2], KIND),  # nor is a part without an end
        (GOOD + BAD[:20], KIND),
        (b"\r\n\r\n" + GOOD + END, KIND),
        (GOOD.replace(b"--B", b"--B-x") + b"--B-x--", b'multipart/form-data; boundary="B-x"'),
        (GOOD + END, b'Multipart/Form-Data ;x="a;\\"b"; BOUNDARY = B ; charset=UTF-8;'),
        (part(b"NAME = model", b"chat") + END, KIND),
        (part(b'name="model";', b"chat", b"Content-Type: text/plain\r\n") + END, KIND),
        (GOOD + part(b'name="x"; filename="y; name=model"', b"secret") + END, KIND),
        (GOOD + part(b'name="x"; filename="\\"; name=\\"model"', b"secret") + END, KIND),
        (GOOD + part(b"filename*=utf-8''a; name=file", b"secret") + END, KIND),
        (GOOD + part(b'name="mod\\el"', b"secret") + END, KIND),
        (GOOD + part(b'name="x"', b"\n--B\nname=model") + END, KIND),
        (GOOD.replace(b"\r\n\r\n", b"\r\n\r\n--B\r\n") + GOOD + END, KIND),
    ],
)
def test_the_model_of_a_form(raw: bytes, kind: bytes) -> None:
    assert model(raw, kind) == "chat"


def two(disposition: bytes) -> bytes:
    return GOOD + part(disposition, b"secret") + END


@pytest.mark.parametrize(
    ("raw", "kind", "what"),
    [
        (two(b'name="x"; name="model"'), KIND, "Content-Disposition has a second 'name'"),
        (two(b'name=model; NAME ="x"'), KIND, "Content-Disposition has a second 'name'"),
        (two(b"name*=utf-8''model"), KIND, "has 'name*'"),
        (two(b'name="x"; name*0=model'), KIND, "has 'name*0'"),
        (two(b'name="x\\"; name="model"'), KIND, "Content-Disposition cannot be read"),
        (two(b'"; name="model"'), KIND, "Content-Disposition cannot be read"),
        (two(b'name="model"; filename="a"'), KIND, "the field 'model' is a file"),
        (two(b"name=model; filename*=utf-8''a"), KIND, "the field 'model' is a file"),
        (two(b'name="x"\nContent-Disposition: a; name="model"'), KIND, "is no header field"),
        (two(b'name="x"\r\n ; name="model"'), KIND, "is no header field"),
        (two(b'name="x"\r\ncontent-disposition: a; name=model'), KIND, "second Content-Disp"),
        (GOOD + part(b"", b"secret") + END, KIND, "names no field"),
        (GOOD + b"--B\r\nX-A: b\r\n\r\nsecret\r\n" + END, KIND, "has no Content-Disposition"),
        (GOOD + b"--B\r\n\r\nsecret\r\n" + END, KIND, "has no Content-Disposition"),
        (two(b"x=" + b"a" * 40_000 + b"; name=model"), KIND, "is longer than 33792 bytes"),
        (GOOD + FILE * 2000 + BAD + END, KIND, "more than 2000 parts"),
        # Not a delimiter to an engine, whose field "x" ends after it.
        (BAD + part(b"name=x", b"a\r\n--Bx" + GOOD[3:-2]) + END, KIND, "begins with its boundary"),
        (b"preamble\r\n" + GOOD + END, KIND, "does not begin with its boundary"),
        (b"", KIND, "does not begin with its boundary"),
        (GOOD + END, KIND + b"; boundary=C", "Content-Type has a second 'boundary'"),
        (GOOD + END, b"multipart/form-data; boundary =C;Boundary=B", "a second 'boundary'"),
        (GOOD + END, KIND + b"; boundary*=utf-8''C", "has 'boundary*'"),
        (GOOD + END, KIND + b"; charset=utf-7", "charset must be UTF-8"),
        (GOOD + END, b'multipart/form-data; x="; boundary=B', "Content-Type cannot be read"),
        (GOOD + END, b"multipart/form-data", "names no boundary"),
        (GOOD + END, b"multipart/form-data-x; boundary=B", "is not 'multipart/form-data'"),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(raw: bytes, kind: bytes, what: str) -> None:
    with pytest.raises(RequestError, match="the form cannot be read: ") as caught:
        model(raw, kind)
    assert caught.value.status == 400
    assert what in caught.value.message


def test_spaces_cost_no_time() -> None:
    """Two expressions that both may take them made it their square: 16,000 stopped all for 3 s."""
    spaces = b" " * 30_000
    part_head = b'Content-Disposition: form-data; name=%b"' % spaces
    started_s = time.process_time()
    for kind, raw in (
        (b'multipart/form-data; boundary=%b"' % spaces[:8000], b"--B"),
        (KIND, b"--B\r\n%b\r\n\r\nchat\r\n--B--\r\n" % part_head),
    ):
        with pytest.raises(RequestError, match="cannot be read"):
            model(raw, kind)
    assert time.process_time() - started_s < 0.5
    with pytest.raises(RequestError, match="longer than"):
        model(b"--B", b"multipart/form-data; boundary=%b" % spaces)


BITS = (
    *(b"--", b"\r\n", b"\n", b"\r", b"--B", b"\r\n--B\r\n", b"\r\n--B--\r\n", b"\r\n--Bx\r\n"),
    *(b"Content-Disposition: form-data; ", b'name="model"', b"name=model", b'; name="x"', b"-"),
    *(b'; filename="a"', b'"', b"\\", b";", b"=", b" ", b"\t", b"\r\n\r\n", b"X-A: b\r\n", b":"),
)


def spoilt(rng: random.Random) -> bytes:
    raw = FILE + GOOD + BAD + part(b'name="z"', b"q") + END
    for _ in range(rng.randrange(1, 5)):
        at, other = rng.randrange(len(raw) + 1), rng.randrange(len(raw) + 1)
        kept = min(at, other) if rng.random() < 0.3 else at
        raw = raw[:at] + rng.choice((b"", *BITS, *BITS)) + raw[kept + rng.choice((0, 0, 3)) :]
    return raw


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # it leaves files open
def test_as_starlette_reads_it() -> None:
    """What is not refused is what is found in an engine, if that does not refuse it either."""

    async def engine(raw: bytes) -> object:
        async def stream() -> AsyncGenerator[bytes]:
            yield raw

        parser = MultiPartParser(Headers(raw=[(b"content-type", KIND)]), stream())
        form = await parser.parse()
        await form.close()
        return form.get("model")

    rng = random.Random(0)
    same = 0
    for _ in range(3000):
        raw = spoilt(rng)
        try:
            found = fields(raw, KIND, b"model")[b"model"]
        except ValueError:
            continue
        try:
            theirs = asyncio.run(engine(raw))
        except MultiPartException:
            continue
        ours = raw[slice(*found[-1])].decode("utf-8", "replace") if found else None
        assert ours == theirs
        same += 1
    assert same > 100


@pytest.fixture
def engine() -> Iterator[RawEngine]:
    engine = RawEngine()
    yield engine
    engine.close()


Send = Callable[..., httpx.Response]


@pytest.fixture
def send(make_router: Callable[..., Router], engine: RawEngine) -> Send:
    """A request by a key that is for one of the two models of the engine."""
    router = make_router()
    router.replace(engine.replica("c000-r0000", "chat", "secret"))
    key = add_key(router.run_dir, "limited", models=["chat"])
    router.keys.refresh()

    def send(body: bytes, *kinds: bytes, path: str = PATH) -> httpx.Response:
        fields = [(b"Authorization", b"Bearer " + key.encode())]
        fields += [(b"Content-Type", kind) for kind in kinds]
        return router.stranger.post(path, content=body, headers=fields)

    return send


@pytest.mark.parametrize(
    ("path", "body", "kinds"),
    [
        ("/v1/chat/completions", CHAT, (b"application/json", b"multipart/form-data; boundary=x")),
        (PATH, BAD + END + b"\r\n" + GOOD, (KIND, b"multipart/form-data; boundary=C")),
        (PATH, GOOD + END, (KIND, KIND)),
    ],
)
def test_a_second_content_type_is_refused(
    send: Send, engine: RawEngine, path: str, body: bytes, kinds: tuple[bytes, ...]
) -> None:
    answer = send(body, *kinds, path=path)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "the request has a second Content-Type field"
    assert not engine.requests


@pytest.mark.parametrize("kind", [b"application/json", KIND, b"text/plain"])
def test_only_audio_is_read_as_a_form(send: Send, engine: RawEngine, kind: bytes) -> None:
    answer = send(CHAT, kind, path="/v1/chat/completions")
    assert answer.status_code == 403
    assert send(FILE + END, kind, path="/v1/chat/completions").status_code == 400
    assert not engine.requests


def test_a_key_for_some_models_must_name_one_in_a_form(send: Send, engine: RawEngine) -> None:
    for body, status in ((BAD, 403), (FILE, 400), (b"x" + BAD, 400)):
        answer = send(body + END, KIND)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, status)
    assert not engine.requests
    assert send(GOOD + END, KIND).status_code == 200
