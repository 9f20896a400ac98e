"""The real OpenAI client against the router and simulated engines."""

from __future__ import annotations

import openai
import pytest

from exaslurm.keys.clients import add_key
from tests.tools.fleet import Router

HELLO: list[dict[str, str]] = [{"role": "user", "content": "hello"}]


def test_chat_plain_and_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="chat", messages=HELLO, max_tokens=20)  # type: ignore[arg-type]
    assert (whole.choices[0].message.content or "").startswith("This answer is simulated")
    chunks = client.chat.completions.create(
        model="chat:base",
        messages=HELLO,  # type: ignore[arg-type]
        max_tokens=20,
        stream=True,
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content


def test_completions_embeddings_and_models(client: openai.OpenAI) -> None:
    done = client.completions.create(model="chat", prompt="once", max_tokens=3)
    assert len(done.choices[0].text.split()) == 3
    vectors = client.embeddings.create(model="chat", input=["a", "b"]).data
    assert len(vectors) == 2
    names = [model.id for model in client.models.list()]
    assert names == ["chat", "chat:base"]
    assert client.models.retrieve("chat").id == "chat"


async def test_the_asynchronous_client(router: Router) -> None:
    async with openai.AsyncOpenAI(base_url=router.url + "/v1", api_key=router.key) as client:
        stream = await client.chat.completions.create(
            model="chat",
            messages=HELLO,  # type: ignore[arg-type]
            stream=True,
        )
        pieces = [chunk.choices[0].delta.content async for chunk in stream]
    assert len(pieces) > 10


def test_errors_are_the_ones_the_client_knows(router: Router, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match=r"'nope' does not exist.*chat, chat:base") as e:
        client.chat.completions.create(model="nope", messages=HELLO)  # type: ignore[arg-type]
    assert e.value.request_id
    assert e.value.param == "model"
    with pytest.raises(openai.BadRequestError, match="at least one message"):
        client.chat.completions.create(model="chat", messages=[])
    with pytest.raises(openai.AuthenticationError, match="unknown or expired"):
        client.with_options(api_key="exa-wrong").models.list()
    limited = add_key(router.run_dir, "limited", models=["other"])
    router.keys.refresh()
    with pytest.raises(openai.PermissionDeniedError, match=r"'limited'.*'chat'"):
        client.with_options(api_key=limited).completions.create(model="chat", prompt="x")
    assert list(client.with_options(api_key=limited).models.list()) == []
