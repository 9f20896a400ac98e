"""The langchain-openai package."""

import asyncio
from typing import Any, Literal

import pydantic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from report import Report

QUESTION = "Count upwards from one."


class Weather(pydantic.BaseModel):
    """What a structured answer is to be."""

    city: Literal["Oslo", "Rome"]


@tool
def weather(city: Literal["Oslo", "Rome"]) -> str:
    """Tell the weather of a city."""
    return f"warm in {city}"


class Calls:
    """Each method is one way to use the package."""

    def __init__(self, report: Report) -> None:
        key = pydantic.SecretStr(report.key)
        server: Any = {"base_url": report.given["base_url"], "api_key": key, "max_retries": 0}
        chat: Any = {**server, "model": report.given["chat"], "temperature": 0}
        self.chat = ChatOpenAI(**chat, max_tokens=16)
        self.long = ChatOpenAI(**chat, max_tokens=200)
        # A model that knows nothing leaves the white space of JSON soon if it may err.
        self.rich = ChatOpenAI(**{**chat, "temperature": 1}, seed=2, max_tokens=1500)
        self.responses = ChatOpenAI(**chat, max_tokens=16, use_responses_api=True)
        self.complete = OpenAI(**chat, max_tokens=16)
        self.embed = OpenAIEmbeddings(**server, model=report.given["embed"], **_UNCUT)

    def plain(self) -> str:
        answer = self.chat.invoke(QUESTION)
        return str(answer.response_metadata["finish_reason"])

    def streamed(self) -> str:
        pieces = [str(piece.content) for piece in self.chat.stream(QUESTION)]
        assert "".join(pieces) == self.chat.invoke(QUESTION).content
        return f"{len(pieces)} pieces"

    def batch(self) -> str:
        answers = self.chat.batch([QUESTION] * 8)
        assert len({str(answer.content) for answer in answers}) == 1
        return f"{len(answers)} answers"

    def asynchronous(self) -> str:
        async def work() -> str:
            text = "".join([str(piece.content) async for piece in self.chat.astream(QUESTION)])
            answer = await self.chat.ainvoke(QUESTION)
            assert answer.content == text
            return "astream and ainvoke"

        return asyncio.run(work())

    def tools(self) -> str:
        bound = self.rich.bind_tools([weather], tool_choice="weather", strict=True)
        (call,) = bound.invoke(QUESTION).tool_calls  # type: ignore[attr-defined]
        return str(weather.invoke(call["args"]))

    def structured(self) -> str:
        answer = self.long.with_structured_output(Weather, method="json_schema").invoke(QUESTION)
        assert isinstance(answer, Weather)
        return str(answer)

    def respond(self) -> str:
        return str(self.responses.invoke(QUESTION).response_metadata["status"])

    def completion(self) -> str:
        pieces = list(self.complete.stream("def main("))
        assert "".join(pieces) == self.complete.invoke("def main(")
        return f"{len(pieces)} pieces"

    def embeddings(self) -> str:
        vectors = self.embed.embed_documents(["a cat", "a dog"])
        assert len(vectors) == 2
        return f"{len(vectors[0])} numbers"


# It would cut texts by the tokenizer of one of OpenAI's models, and send token ids.
_UNCUT: Any = {"check_embedding_ctx_length": False}


def main() -> None:
    report = Report()
    calls = Calls(report)
    report.check("ChatOpenAI.invoke", calls.plain)
    report.check("ChatOpenAI.stream", calls.streamed)
    report.check("ChatOpenAI.batch", calls.batch)
    report.check("ChatOpenAI, asynchronous", calls.asynchronous)
    report.check("ChatOpenAI.bind_tools", calls.tools)
    report.check("ChatOpenAI.with_structured_output (json_schema)", calls.structured)
    report.check("ChatOpenAI by the responses API", calls.respond)
    report.check("OpenAI (completions)", calls.completion)
    report.check("OpenAIEmbeddings", calls.embeddings)
    report.print()


main()
