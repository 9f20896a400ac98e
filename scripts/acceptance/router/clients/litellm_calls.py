"""The litellm package, with its provider for servers that speak OpenAI's API."""

import asyncio
import json
import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it fetches its price list
import litellm
import openai
from report import Report

QUESTION: Any = [{"role": "user", "content": "Count upwards from one."}]
LONG: Any = [{"role": "user", "content": "one two three " * 2000}]
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


class Calls:
    """Each method is one way to use the package."""

    def __init__(self, report: Report) -> None:
        server: Any = {"api_base": report.given["base_url"], "api_key": report.key}
        self.options: Any = {**server, "num_retries": 0, "timeout": 60}
        self.chat: Any = {
            **self.options,
            "model": f"openai/{report.given['chat']}",
            "messages": QUESTION,
            "temperature": 0,
        }
        self.hosted: Any = {**self.chat, "model": f"hosted_vllm/{report.given['chat']}"}
        self.embed: Any = {**self.options, "model": f"openai/{report.given['embed']}"}

    def plain(self) -> str:
        one = litellm.completion(**self.chat, max_tokens=16)
        other = litellm.completion(**self.hosted, max_tokens=16)
        assert one.choices[0].message.content == other.choices[0].message.content
        return f"{one.usage.completion_tokens} tokens"

    def streamed(self) -> str:
        whole = litellm.completion(**self.chat, max_tokens=32)
        count, text = 0, ""
        usage = {"include_usage": True}
        for event in litellm.completion(
            **self.chat, max_tokens=32, stream=True, stream_options=usage
        ):
            count += 1
            text += (event.choices[0].delta.content or "") if event.choices else ""
        assert text == whole.choices[0].message.content
        return f"{count} events"

    def asynchronous(self) -> str:
        async def work() -> int:
            answers = await asyncio.gather(
                *(litellm.acompletion(**self.chat, max_tokens=8) for _ in range(8))
            )
            stream: Any = await litellm.acompletion(**self.chat, max_tokens=8, stream=True)
            text = "".join([event.choices[0].delta.content or "" async for event in stream])
            assert {answer.choices[0].message.content for answer in answers} == {text}
            return len(answers)

        return f"{asyncio.run(work())} at once and a stream"

    def tool(self) -> str:
        function = {"name": "weather", "parameters": CITY, "strict": True}
        answer = litellm.completion(
            # A model that knows nothing leaves the white space of JSON soon if it may err.
            **{**self.chat, "temperature": 1, "seed": 2, "max_tokens": 1500},
            tools=[{"type": "function", "function": function}],
            tool_choice={"type": "function", "function": {"name": "weather"}},
        )
        (call,) = answer.choices[0].message.tool_calls
        assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")
        return str(call.function.arguments)

    def structured(self) -> str:
        schema = {"name": "weather", "schema": CITY, "strict": True}
        answer = litellm.completion(
            **self.chat,
            response_format={"type": "json_schema", "json_schema": schema},
            max_tokens=200,
        )
        content = str(answer.choices[0].message.content)
        assert json.loads(content)["city"] in ("Oslo", "Rome")
        return content

    def embeddings(self) -> str:
        answer = litellm.embedding(**self.embed, input=["a cat", "a dog"])
        assert len(answer.data) == 2
        return f"{len(answer.data[0]['embedding'])} numbers"

    def respond(self) -> str:
        options = {name: value for name, value in self.chat.items() if name != "messages"}
        answer: Any = litellm.responses(**options, input="Hello.", max_output_tokens=16)
        return str(answer.status)

    def errors(self) -> str:
        cases: list[tuple[type[Exception], dict[str, Any]]] = [
            (litellm.NotFoundError, {"model": "openai/nobody"}),
            (litellm.AuthenticationError, {"api_key": "sk-wrong"}),
            (litellm.BadRequestError, {"messages": []}),
            (litellm.ContextWindowExceededError, {"messages": LONG}),
        ]
        for kind, changes in cases:
            error = self._refused(changes)
            assert type(error) is kind, f"{error!r:.200} for {changes!r:.60}"
        return f"{len(cases)} of them"

    def _refused(self, changes: dict[str, Any]) -> Exception:
        try:
            litellm.completion(**{**self.chat, "max_tokens": 4, **changes})
        except openai.APIError as error:
            return error
        raise AssertionError(f"no error for {changes!r:.60}")


def main() -> None:
    litellm.suppress_debug_info = True
    report = Report()
    calls = Calls(report)
    report.check("completion, as openai/ and as hosted_vllm/", calls.plain)
    report.check("completion, streamed", calls.streamed)
    report.check("acompletion, several at once", calls.asynchronous)
    report.check("a named tool", calls.tool)
    report.check("structured output (json_schema)", calls.structured)
    report.check("embedding", calls.embeddings)
    report.check("responses", calls.respond)
    report.check("errors are the package's own", calls.errors)
    report.print()


main()
