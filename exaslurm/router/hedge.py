"""A second replica for a request whose first one is slow to answer.

It costs work twice, so it is off unless asked for. Whichever has something to pass on first is the
one; the other is told to stop. The head of a stream is nothing yet: vLLM sends it at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from exaslurm.router.events import cut, is_engine_error
from exaslurm.router.heads import AnswerHead
from exaslurm.router.table import Table, Target
from exaslurm.router.upstream import Connection, Loss, Receiver, Request


class Hedge:
    """The second attempt of a request, as long as it has not become the only one.

    ``won`` is called with this hedge when its replica begins to answer well, ``lost`` when it will
    not: once, one of them. ``version`` is that of its replica's model; ``held`` is what has come of
    the body, by ``connection`` (None: not even the head is there).
    """

    def __init__(
        self,
        target: Target,
        version: str,
        table: Table,
        won: Callable[[Hedge, Connection], None],
        lost: Callable[[], None],
    ) -> None:
        self.target = target
        self.version = version
        self.request: Request | None = None
        self.connection: Connection | None = None
        self.held = b""
        self.sent_s = time.monotonic()
        self._table = table
        self._won = won
        self._lost = lost
        self._receiver: Receiver | None = None
        target.outstanding += 1

    def answered(self, connection: Connection, head: AnswerHead, body: bytes) -> bool:
        """A whole answer arrives at once."""
        return self._receiver is not None and self._receiver.answered(connection, head, body)

    def received(self, connection: Connection, data: bytes) -> None:
        """An answer arrives."""
        if self._receiver is not None:
            self._receiver.received(connection, data)
            return
        head = connection.head
        if head is None:
            return
        self.connection = connection
        self.held += connection.body()
        if head.events and not connection.done and cut(self.held) == 0:
            return
        good = head.status < 400
        if good and head.events:
            good = bool(self.held) and not is_engine_error(self.held)
        if good:
            self._won(self, connection)
        elif 400 <= head.status < 500 and head.status != 401:
            self.drop()  # what this replica cannot do, the first one may be about to have done
            self._lost()
        else:
            self.drop(healthy=False)
            self._lost()

    def lost(self, reason: str, loss: Loss) -> None:
        """No answer will come."""
        if self._receiver is not None:
            self._receiver.lost(reason, loss)
            return
        self.request = None
        self.drop(healthy=None if loss is Loss.OURS else False, fatal=loss is Loss.REFUSED)
        self._lost()

    def hand_to(self, receiver: Receiver) -> None:
        """This is the only attempt now: its answer is for ``receiver``, who counts it as its own
        from here on."""
        self._receiver = receiver

    def drop(self, *, healthy: bool | None = None, fatal: bool = False) -> None:
        """Its answer is not needed, or will not come (``healthy`` False)."""
        request, self.request = self.request, None
        if request is not None:
            request.drop()
        self.target.outstanding -= 1
        now_s = time.monotonic()
        if healthy is None:
            self._table.told_nothing(self.target, now_s)
        else:
            self._table.failed(self.target, now_s, fatal=fatal)
