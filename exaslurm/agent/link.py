"""The agent's link to its controller: reports go out, what is wanted comes back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import aiohttp

from exaslurm.core.cell import AgentReport, DesiredState
from exaslurm.core.codec import dumps, loads
from exaslurm.errors import StateError
from exaslurm.util.waiting import set_within

log = logging.getLogger(__name__)

_TIMEOUT_S = 5.0
_RETRY_MIN_S, _RETRY_MAX_S = 0.2, 1.0
_QUIET_S = 0.1
_COMPLAIN_EVERY_S = 60.0


class Link:
    """Posts the report on every change and every ``every_s``; gives each answer to ``accept``."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        key: str,
        report: Callable[[], AgentReport],
        accept: Callable[[DesiredState], None],
    ) -> None:
        self._session = session
        self._url = f"{url}/v1/report"
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._report = report
        self._accept = accept

    async def run(self, changed: asyncio.Event, every_s: float, first_s: float) -> None:
        """For ever. While there is no answer it tries again at once, and says so in the log after
        ``first_s`` (the first time) and every minute."""
        last_answer = time.monotonic()
        complain_at = last_answer + first_s
        delay_s = _RETRY_MIN_S
        while True:
            changed.clear()
            problem = await self.post()
            now = time.monotonic()
            if problem is None:
                last_answer = now
                complain_at = now + _COMPLAIN_EVERY_S
                delay_s = _RETRY_MIN_S
                if await set_within(changed, every_s):
                    await asyncio.sleep(_QUIET_S)  # changes come in groups: one report for each
                continue
            if now >= complain_at:
                complain_at = now + _COMPLAIN_EVERY_S
                log.error(
                    "no answer from the controller at %s since %.0f s: %s; what runs goes on",
                    self._url, now - last_answer, problem,
                )  # fmt: skip
            await asyncio.sleep(delay_s)
            delay_s = min(1.5 * delay_s, _RETRY_MAX_S)

    async def post(self) -> str | None:
        """One report; None if it was answered, else what went wrong."""
        try:
            async with self._session.post(
                self._url,
                data=dumps(self._report()),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
            ) as answer:
                text = await answer.text()
                if answer.status != 200:
                    return f"status {answer.status}: {text[:200]}"
        except asyncio.TimeoutError:
            return f"nothing within {_TIMEOUT_S:g} s"
        except (aiohttp.ClientError, OSError) as error:
            return str(error) or repr(error)
        try:
            self._accept(loads(DesiredState, text, where=self._url))
        except StateError as error:
            return str(error)
        return None
