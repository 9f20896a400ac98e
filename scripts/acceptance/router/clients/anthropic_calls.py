"""The anthropic package: it shows its key in ``X-Api-Key``, and asks ``/v1/messages``."""

from typing import Any

import anthropic
from report import Report

QUESTION: Any = [{"role": "user", "content": "Count upwards from one."}]
LONG: Any = [{"role": "user", "content": "one two three " * 2000}]


class Calls:
    """Each method is one way to use the package."""

    def __init__(self, report: Report) -> None:
        url = report.given["base_url"].removesuffix("/v1")
        self.api = anthropic.Anthropic(base_url=url, api_key=report.key, max_retries=0, timeout=60)
        self.options: Any = {"model": report.given["chat"], "messages": QUESTION, "max_tokens": 16}

    def plain(self) -> str:
        answer = self.api.messages.create(**self.options, system="Be short.")
        assert answer.stop_reason in ("max_tokens", "end_turn"), answer.stop_reason
        return f"{answer.usage.output_tokens} tokens"

    def streamed(self) -> str:
        with self.api.messages.stream(**self.options) as stream:
            kinds = [event.type for event in stream]
            whole = stream.get_final_message()
        assert kinds[0] == "message_start", kinds
        assert kinds[-1] == "message_stop", kinds
        assert whole.usage.output_tokens == 16
        return f"{len(kinds)} events"

    def count(self) -> str:
        model = self.options["model"]
        return f"{self.api.messages.count_tokens(model=model, messages=QUESTION).input_tokens}"

    def errors(self) -> str:
        cases: list[tuple[type[anthropic.APIStatusError], Any, dict[str, Any]]] = [
            (anthropic.NotFoundError, self.api, {"model": "nobody"}),
            (anthropic.BadRequestError, self.api, {"messages": []}),
            (anthropic.BadRequestError, self.api, {"messages": LONG}),
            (anthropic.AuthenticationError, self.api.with_options(api_key="sk-wrong"), {}),
        ]
        for kind, api, changes in cases:
            error = self._refused(api, changes)
            assert type(error) is kind, f"{error!r:.200} for {changes!r:.60}"
            assert error.message
        return f"{len(cases)} of them"

    def _refused(self, api: anthropic.Anthropic, changes: Any) -> anthropic.APIStatusError:
        try:
            api.messages.create(**{**self.options, **changes})
        except anthropic.APIStatusError as error:
            return error
        raise AssertionError(f"no error for {changes!r:.60}")


def main() -> None:
    report = Report()
    calls = Calls(report)
    report.check("messages, plain", calls.plain)
    report.check("messages, streamed", calls.streamed)
    report.check("tokens are counted", calls.count)
    report.check("errors are the package's own", calls.errors)
    report.print()


main()
