"""From what a cell says now and what it wrote down to the replicas that a router sees. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import orjson

from exaslurm.core.cell import CellRecord, EngineLoad, ReplicaRecord
from exaslurm.errors import RegistryError
from exaslurm.registry.replica import Replica, is_text

Replicas = dict[str, Replica]
Row = list[Any]
"""``running``, ``waiting`` and ``kv_use`` of an engine, as the controller wrote them."""

# A controller that has just been started (again) does not know its replicas yet: what it says
# of them then is no reason to leave one alone that answers.
_KNOWS_LITTLE = frozenset(("nodes", "ray"))
_NOT_KNOWN_YET = frozenset(("pending", "warming"))


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    """What an answer of a controller tells.

    ``replicas`` is None where they are the same as in the answer with this ``tag`` (empty: this
    controller knows no tags); ``ids`` are theirs, in the order of ``rows`` (None: no figures).
    """

    replicas: Replicas | None
    tag: str
    ids: tuple[str, ...]
    rows: list[Row | None]


NOTHING_TOLD = Told(None, "", (), [])


def from_record(record: CellRecord) -> Replicas:
    """The replicas of a registry record."""
    return {
        item.id: Replica(
            id=item.id,
            cell=record.cell,
            model=item.model,
            served_names=item.served_names,
            url=item.url,
            node=item.node,
            ready=item.ready,
            state="ready" if item.ready else "not ready",
            max_model_len=item.max_model_len,
            weight=item.weight,
            priority=item.priority,
            simulated=item.simulated,
            version=item.version,
            switch=item.labels.get("switch", ""),
        )
        for item in record.replicas
    }


def from_state(
    raw: bytes, record: CellRecord, known: Mapping[str, Replica], before: Told = NOTHING_TOLD
) -> Told:
    """What an answer to ``GET /v1/state`` tells, given what was known and told before.

    Only the fields a router needs are looked at, so that cells of another version can be
    served. RegistryError if the answer is not that of the record's cell.
    """
    try:
        data = orjson.loads(raw)
        if data["deployment"] != record.deployment or data["cell"] != record.cell:
            raise RegistryError(
                f"{record.state_url} is the controller of {data['deployment']}/{data['cell']}, "
                f"not of {record.deployment}/{record.cell}"
            )
        phase = data["phase"]
        tag = data.get("tag", "")
        if "replicas" not in data and tag and tag == before.tag:
            return Told(None, tag, before.ids, _rows(data["loads"], len(before.ids)))
        items = data["replicas"]
        ids = tuple(item["id"] for item in items)
        loads = data["loads"] if tag else [_row(item.get("load")) for item in items]
        rows = _rows(loads, len(ids))
        written = {item.id: item for item in record.replicas}
        fresh = {item["id"]: _replica(item, record.cell, written.get(item["id"])) for item in items}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RegistryError(f"no cell state at {record.state_url}: {error!r}") from None
    if phase in _KNOWS_LITTLE:
        for ident, replica in known.items():
            if replica.ready and ident not in fresh:
                fresh[ident] = replica
    replicas = {ident: _settle(new, known.get(ident)) for ident, new in fresh.items()}
    return Told(replicas, tag, ids, rows)


def load_of(row: Row) -> EngineLoad:
    """Figures of an engine that is awake: of a sleeping one its replica tells."""
    running, waiting, kv_use = row
    return EngineLoad(running=int(running), waiting=int(waiting), kv_use=float(kv_use))


def _rows(loads: list[Any], count: int) -> list[Row | None]:
    if len(loads) != count:
        raise ValueError(f"{len(loads)} figures for {count} replicas")
    return loads


def _row(load: Mapping[str, Any] | None) -> Row | None:
    return None if load is None else [load["running"], load["waiting"], load["kv_use"]]


def _settle(new: Replica, before: Replica | None) -> Replica:
    """The new word on a replica, unless it only means that the controller does not know yet."""
    if before is not None and new.pid is None and new.url == before.url:
        # Who has just started does not know the process yet: it is no new one for that.
        new = dataclasses.replace(new, pid=before.pid)
    if before is None or not before.ready or new.ready or new.state not in _NOT_KNOWN_YET:
        return new
    same = new.url == before.url and new.pid in (None, before.pid)
    return dataclasses.replace(new, ready=True, pid=before.pid) if same else new


def _text(item: Mapping[str, Any], name: str) -> str:
    value = item[name]
    if type(value) is not str or not is_text(value):
        raise TypeError(f"{name} is {value!r}, no text")
    return value


def _number(item: Mapping[str, Any], name: str) -> int | None:
    value = item.get(name)
    if value is not None and type(value) is not int:
        raise TypeError(f"{name} is {value!r}, no whole number")
    return value


def _replica(item: Mapping[str, Any], cell: str, written: ReplicaRecord | None) -> Replica:
    """TypeError for what no router could use: one odd replica must not reach the table of all."""
    state = _text(item, "state")
    names = tuple(item["served_names"])
    if not all(map(is_text, names)):
        raise TypeError(f"served_names are {names!r}")
    load = item.get("load") or item
    written_version = written.version if written else ""
    return Replica(
        id=_text(item, "id"),
        cell=cell,
        model=_text(item, "model"),
        served_names=names,
        url=_text(item, "url"),
        node=_text(item, "node"),
        ready=state in ("ready", "draining"),
        draining=state == "draining",
        sleeping=bool(load.get("sleeping", False)),
        state=state,
        cause=item.get("cause"),
        pid=_number(item, "pid"),
        max_model_len=_number(item, "max_model_len"),
        weight=written.weight if written else 1.0,
        priority=written.priority if written else 0,
        simulated=bool(item.get("simulated", False)),
        version=_text(item, "version") if item.get("version") else written_version,
        switch=written.labels.get("switch", "") if written else "",
    )
