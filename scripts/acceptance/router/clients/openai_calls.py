"""The openai package, synchronous and asynchronous."""

import asyncio
import json
import math
from typing import Any, Literal

import openai
import pydantic
from report import Report

QUESTION: Any = [{"role": "user", "content": "Count upwards from one."}]


class Weather(pydantic.BaseModel):
    """What a structured answer is to be."""

    city: Literal["Oslo", "Rome"]
    warm: bool


# Without "strict", vLLM's parser of this format takes any JSON for arguments.
TOOL: Any = openai.pydantic_function_tool(Weather, name="weather")


class Calls:
    """Each method is one way to use the package."""

    def __init__(self, report: Report) -> None:
        self.url, self.key = report.given["base_url"], report.key
        self.chat, self.embed = report.given["chat"], report.given["embed"]
        self.api = openai.OpenAI(base_url=self.url, api_key=self.key, max_retries=0, timeout=60)
        self.options: Any = {"model": self.chat, "messages": QUESTION, "temperature": 0}
        # A model that knows nothing leaves the white space of JSON soon if it may err.
        self.rich: Any = {**self.options, "temperature": 1, "seed": 2, "max_tokens": 1500}

    def models(self) -> str:
        names = [model.id for model in self.api.models.list()]
        assert {self.chat, self.embed} <= set(names), names
        assert self.api.models.retrieve(self.chat).id == self.chat
        return " ".join(names)

    def plain(self) -> str:
        answer = self.api.chat.completions.create(**self.options, max_tokens=16)
        assert answer.choices[0].finish_reason in ("length", "stop")
        assert answer.usage
        assert answer.usage.completion_tokens > 0
        assert answer.choices[0].message.content is not None
        return f"{answer.usage.completion_tokens} tokens"

    def streamed(self) -> str:
        more: Any = {**self.rich, "max_tokens": 64, "extra_body": {"ignore_eos": True}}
        whole = self.api.chat.completions.create(**more)
        usage: Any = {"include_usage": True}
        stream = self.api.chat.completions.create(**more, stream=True, stream_options=usage)
        events = list(stream)
        text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
        assert text == whole.choices[0].message.content, "another text than the plain answer"
        assert events[-1].usage
        assert events[-1].usage.completion_tokens == 64
        assert len(events) > 3
        return f"{len(events)} events"

    def left(self) -> str:
        """A client that does not read to the end."""
        more: Any = {"max_tokens": 1500, "extra_body": {"ignore_eos": True}}
        with self.api.chat.completions.create(**self.options, **more, stream=True) as stream:
            next(iter(stream))
        return "after the first event"

    def by_helper(self) -> str:
        """The package's own collector of streams."""
        more: Any = {"max_tokens": 200, "extra_body": {"structured_outputs": {"choice": ["a b"]}}}
        with self.api.chat.completions.stream(**self.options, **more) as stream:
            kinds = [event.type for event in stream]
            done = stream.get_final_completion()
        assert done.choices[0].message.content == "a b"
        assert kinds[-1] == "content.done"
        return f"{len(kinds)} events"

    def two(self) -> str:
        more: Any = {"n": 2, "logprobs": True, "top_logprobs": 2, "max_tokens": 4}
        answer = self.api.chat.completions.create(**{**self.options, "temperature": 1}, **more)
        assert len(answer.choices) == 2
        for choice in answer.choices:
            assert choice.logprobs
            assert choice.logprobs.content
            assert len(choice.logprobs.content[0].top_logprobs) == 2
        return "n=2 with logprobs"

    def raw(self) -> str:
        """Header fields, as the package hands them on."""
        headers = {"X-Request-Id": "of-the-client"}
        answer = self.api.chat.completions.with_raw_response.create(
            **self.options, max_tokens=1, extra_headers=headers
        )
        assert answer.headers["x-request-id"] == "of-the-client"
        assert answer.parse().id == "chatcmpl-of-the-client"
        return answer.parse().id

    def tool(self) -> str:
        choice: Any = {"type": "function", "function": {"name": "weather"}}
        answer = self.api.chat.completions.create(**self.rich, tools=[TOOL], tool_choice=choice)
        calls: Any = answer.choices[0].message.tool_calls
        assert len(calls) == 1
        assert calls[0].function.name == "weather"
        return str(Weather.model_validate_json(calls[0].function.arguments))

    def tool_streamed(self) -> str:
        stream = self.api.chat.completions.create(
            **self.rich, tools=[TOOL], tool_choice="required", stream=True
        )
        name = arguments = ""
        for event in stream:
            for call in (event.choices[0].delta.tool_calls or []) if event.choices else []:
                if call.function:
                    name += call.function.name or ""
                    arguments += call.function.arguments or ""
        assert name == "weather", name
        return str(Weather.model_validate_json(arguments))

    def tool_result(self) -> str:
        """A conversation in which a tool was used."""
        call = {"id": "call_1", "type": "function"}
        call["function"] = {"name": "weather", "arguments": "{}"}  # type: ignore[assignment]
        messages: Any = [
            *QUESTION,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "warm"},
        ]
        answer = self.api.chat.completions.create(
            model=self.chat, messages=messages, tools=[TOOL], tool_choice="auto", max_tokens=4
        )
        return str(answer.choices[0].finish_reason)

    def structured(self) -> str:
        answer = self.api.chat.completions.parse(
            **self.options, response_format=Weather, max_tokens=200
        )
        parsed = answer.choices[0].message.parsed
        assert isinstance(parsed, Weather)
        return str(parsed)

    def structured_streamed(self) -> str:
        with self.api.chat.completions.stream(
            **self.options, response_format=Weather, max_tokens=200
        ) as stream:
            parsed = stream.get_final_completion().choices[0].message.parsed
        assert isinstance(parsed, Weather)
        return str(parsed)

    def completion(self) -> str:
        options: Any = {"model": self.chat, "prompt": "def main(", "temperature": 0}
        whole = self.api.completions.create(**options, max_tokens=16)
        pieces = [
            event.choices[0].text
            for event in self.api.completions.create(**options, max_tokens=16, stream=True)
        ]
        assert "".join(pieces) == whole.choices[0].text
        return f"{len(pieces)} pieces"

    def respond(self) -> str:
        answer = self.api.responses.create(model=self.chat, input="Hello.", max_output_tokens=16)
        assert answer.status in ("completed", "incomplete"), answer.status
        return f"{answer.status}, {answer.usage.output_tokens if answer.usage else 0} tokens"

    def respond_streamed(self) -> str:
        stream = self.api.responses.create(
            model=self.chat, input=QUESTION, max_output_tokens=16, stream=True
        )
        kinds = [event.type for event in stream]
        assert kinds[0] == "response.created", kinds
        assert kinds[-1] in ("response.completed", "response.incomplete"), kinds
        assert "response.output_text.delta" in kinds
        return f"{len(kinds)} events"

    def respond_structured(self) -> str:
        answer = self.api.responses.parse(
            model=self.chat, input="Hello.", text_format=Weather, max_output_tokens=200
        )
        assert isinstance(answer.output_parsed, Weather)
        return str(answer.output_parsed)

    def embeddings(self) -> str:
        texts = ["a cat", "a dog"]
        floats = self.api.embeddings.create(
            model=self.embed, input=texts, encoding_format="float"
        ).data
        packed = self.api.embeddings.create(model=self.embed, input=texts).data
        for one, other in zip(floats, packed, strict=True):
            for a, b in zip(one.embedding, other.embedding, strict=True):
                assert math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-6)
        return f"{len(floats)} of {len(floats[0].embedding)} numbers"

    def errors(self) -> str:
        """Each is the exception that the package has for it."""
        wrong = self.api.with_options(api_key="sk-wrong")
        long: Any = [{"role": "user", "content": "one two three " * 2000}]
        cases: list[tuple[type[openai.APIStatusError], Any, dict[str, Any]]] = [
            (openai.NotFoundError, self.api, {"model": "nobody"}),
            (openai.BadRequestError, self.api, {"messages": []}),
            (openai.BadRequestError, self.api, {"messages": long}),
            (openai.BadRequestError, self.api, {"messages": long, "stream": True}),
            (openai.BadRequestError, self.api, {"temperature": -1}),
            (openai.AuthenticationError, wrong, {}),
        ]
        for kind, api, changes in cases:
            error = self._refused(api, changes)
            assert type(error) is kind, f"{error!r:.200} for {changes!r:.60}"
            assert error.request_id
            assert json.loads(error.response.content)["error"]["message"]
        return f"{len(cases)} of them"

    def _refused(self, api: openai.OpenAI, changes: dict[str, Any]) -> openai.APIStatusError:
        try:
            api.chat.completions.create(**{**self.options, "max_tokens": 4, **changes})
        except openai.APIStatusError as error:
            return error
        raise AssertionError(f"no error for {changes!r:.60}")

    def asynchronous(self) -> str:
        return asyncio.run(self._asynchronous())

    async def _asynchronous(self) -> str:
        """Many at once over few connections, plain and streamed."""
        async with openai.AsyncOpenAI(base_url=self.url, api_key=self.key, max_retries=0) as api:

            async def plain(number: int) -> str:
                answer = await api.chat.completions.create(**self.options, max_tokens=8 + number)
                return answer.choices[0].message.content or ""

            async def streamed(number: int) -> str:
                stream = await api.chat.completions.create(
                    **self.options, max_tokens=8 + number, stream=True
                )
                return "".join([e.choices[0].delta.content or "" async for e in stream])

            numbers = range(12)
            found = await asyncio.gather(*map(plain, numbers), *map(streamed, numbers))
            vectors = await api.embeddings.create(model=self.embed, input="a cat")
            assert len(vectors.data) == 1
        assert found[: len(numbers)] == found[len(numbers) :], "streams say otherwise"
        return f"{len(found)} at once"


def main() -> None:
    report = Report()
    calls = Calls(report)
    report.check("list and retrieve models", calls.models)
    report.check("chat, plain", calls.plain)
    report.check("chat, streamed, with usage: the text of the plain answer", calls.streamed)
    report.check("chat, by the package's own collector of streams", calls.by_helper)
    report.check("chat, two answers with log-probabilities", calls.two)
    report.check("chat, a request id of the client's own", calls.raw)
    report.check("chat, a stream that is left", calls.left)
    report.check("a named tool", calls.tool)
    report.check("a required tool, streamed", calls.tool_streamed)
    report.check("the result of a tool", calls.tool_result)
    report.check("structured output (json_schema)", calls.structured)
    report.check("structured output, streamed", calls.structured_streamed)
    report.check("completions, plain and streamed", calls.completion)
    report.check("responses, plain", calls.respond)
    report.check("responses, streamed", calls.respond_streamed)
    report.check("responses, structured", calls.respond_structured)
    report.check("embeddings, floats and base64", calls.embeddings)
    report.check("errors are the package's own", calls.errors)
    report.check("asynchronous, plain and streamed together", calls.asynchronous)
    report.print()


main()
