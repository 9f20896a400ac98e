"""What is known of one engine of a list, and how it is found out."""

from __future__ import annotations

import json
import logging
from typing import Any

from exaslurm.core.cell import EngineLoad
from exaslurm.registry.ask import Dialogue, NoAnswer
from exaslurm.registry.engines_file import Engine
from exaslurm.registry.replica import Replica, is_text
from exaslurm.registry.scrape import parse

log = logging.getLogger(__name__)

CELL = "engines"
_TIMEOUT_S = 5.0
# A refused connection says that there is no engine. That a check takes long says less: a busy
# engine, or a busy router, is slow too.
_LATE_CHECKS = 3
# Names come and go with LoRA adapters.
_MODELS_EVERY_CHECKS = 8


class Watched:
    """One engine: its replica as routers see it, its last figures, and the next check."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.load: EngineLoad | None = None
        self.checks = 0
        self.checking = False
        self.ask_again = False
        self.due_s = 0.0
        self.misconfigured = False
        """It answers, but not as it should: asking every second would not mend it."""
        self.spread = True
        """Its next check is one of many at once: the one after that is to be at another time."""
        self._late = 0
        self._short = False
        self._has_pause: bool | None = None
        self._names: tuple[str, ...] = ()
        self._named_with: str | None = None
        self._root = ""
        self._max_model_len: int | None = None
        self._warned = False
        self.replica = self._replica("unchecked", "it was not asked yet")

    @property
    def in_trouble(self) -> bool:
        """Whether it is to be asked again soon."""
        return self.checks > 0 and (not self.replica.takes_requests or self._late > 0)

    def describe(self, engine: Engine) -> bool:
        """The list says something else of the engine at this address; what was found out stays.
        True: it has another key, and is to be asked soon whether that is right."""
        before, self.engine = self.engine, engine
        if engine.served_names != before.served_names:
            self._warned = False
            self._compare()
        self.replica = self._replica(self.replica.state, self.replica.cause)
        if engine.key == before.key:
            return False
        self.spread = True
        return True

    async def check(self) -> None:
        """Ask the engine; ``replica`` and ``load`` hold what is known after that.

        One connection, two questions (more at first): ``/health`` and ``/metrics``.
        """
        key = self.engine.key
        dialogue = Dialogue(self.engine.url, key, _TIMEOUT_S)
        self.misconfigured = False
        try:
            state, cause = await self._ask(dialogue, key)
        except NoAnswer as error:
            if error.ours:
                if not self._short:
                    log.warning("engine %s cannot be asked: %s", self.engine.id, error)
                self._short = True
                return
            self._short = False
            self._late = self._late + 1 if error.late else 0
            if self.replica.ready and error.late and self._late < _LATE_CHECKS:
                return
            state, cause = "down", str(error)
        else:
            self._late, self._short = 0, False
        finally:
            dialogue.close()
            self.checks += 1
        if state == "down":
            self._has_pause = None  # whoever answers there next may be another
            self.load = None
        if self.engine.key != key:  # what is said to another key says little of this one
            return
        fresh = self._replica(state, cause)
        if fresh != self.replica:
            self.replica = fresh

    async def _ask(self, dialogue: Dialogue, key: str | None) -> tuple[str, str | None]:
        status, _ = await dialogue.get("/health")
        if status >= 500:
            return "down", f"its /health answers {status}"
        is_due = self._named_with != key or self.checks % _MODELS_EVERY_CHECKS == 0
        if is_due or not self.replica.ready:
            wrong = self._take_models(*await dialogue.get("/v1/models"))
            if wrong is not None:
                self.misconfigured = True
                return "unusable", wrong
            self._named_with = key
        status, page = await dialogue.get("/metrics")
        self.load = parse(page) if status == 200 else None
        if self.load is not None and self.load.sleeping:
            return "sleeping", "its weights are put away until it is woken up (/wake_up)"
        if self._has_pause is not False and await self._is_paused(dialogue):
            return "paused", "it was told to take no requests (/pause)"
        return "ready", None

    async def _is_paused(self, dialogue: Dialogue) -> bool:
        """vLLM tells it only in its development mode; elsewhere the path does not exist."""
        status, raw = await dialogue.get("/is_paused")
        self._has_pause = status == 200
        return self._has_pause and _object(raw).get("is_paused") is True

    def _take_models(self, status: int, raw: bytes) -> str | None:
        """Take what ``/v1/models`` answers; what is wrong with it otherwise."""
        if status in (401, 403):
            given = "the key given for it" if self.engine.key else "requests without a key"
            return f"it does not accept {given} ({status})"
        if status != 200:
            return f"its /v1/models answers {status}"
        found = _object(raw).get("data")
        cards = found if isinstance(found, list) else []
        cards = [card for card in cards if isinstance(card, dict) and _is_name(card.get("id"))]
        names = tuple(dict.fromkeys(card["id"] for card in cards))
        if not names:
            return "its /v1/models names no model that could be asked for"
        lengths = [card.get("max_model_len") for card in cards]
        self._max_model_len = min((n for n in lengths if type(n) is int and n > 0), default=None)
        root = cards[0].get("root")
        self._root = root if _is_name(root) else names[0]
        self._names = names
        self._compare()
        return None

    def _compare(self) -> None:
        """A list may give an engine's model another name; several of which it knows but some are
        more likely a mistake."""
        listed = set(self.engine.served_names)
        known = listed & set(self._names)
        if known and known != listed and not self._warned:
            self._warned = True
            missing, names = ", ".join(sorted(listed - known)), ", ".join(self._names)
            log.warning("engine %s does not serve %s, but %s", self.engine.id, missing, names)

    def _replica(self, state: str, cause: str | None) -> Replica:
        engine = self.engine
        names = engine.served_names or self._names
        knows_none = self._names and not set(names) & set(self._names)
        return Replica(
            id=engine.id,
            cell=CELL,
            model=self._root or (names[0] if names else ""),
            served_names=names,
            url=engine.url,
            node=engine.node,
            ready=state in ("ready", "sleeping", "paused"),
            sleeping=state in ("sleeping", "paused"),
            state=state,
            cause=cause,
            max_model_len=self._max_model_len,
            weight=engine.weight,
            version=engine.version,
            switch=engine.switch,
            key=engine.key,
            engine_model=self._names[0] if knows_none else "",
        )


def _is_name(value: Any) -> bool:
    return is_text(value) and 0 < len(value) <= 512


def _object(raw: bytes) -> dict[str, Any]:
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
