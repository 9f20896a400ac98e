"""A picture of a node, with the replicas drawn in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape, quoteattr

from exaslurm.core.topology import NodeTopology
from exaslurm.topo.files import as_list
from exaslurm.topo.layout import Domain, domains, gib, hca_text, summary
from exaslurm.topo.replicas import PlacedReplica
from exaslurm.topo.tree import link_lines

# Okabe and Ito's colours, lightened: told apart by people who see few colours, and dark text can
# be read on all of them. There are more replicas than colours: devices carry the number too.
_COLOURS = (
    "#f3c46b", "#9bd3f0", "#7fd1b3", "#f4ec8a", "#7fb0dc", "#ee9f6b", "#e0a6c8", "#c9c9c9",
)  # fmt: skip
_FREE = "#ffffff"
_CELL = 24
_GAP = 12
_LINE = 18
_BOX = 26
_PER_ROW = 4
_TAGS = 60  # for the numbers of the replicas at the right of a device


@dataclass(slots=True)
class _Canvas:
    parts: list[str] = field(default_factory=list)
    width: float = 0
    height: float = 0

    def box(self, x: float, y: float, w: float, h: float, *, fill: str, title: str = "") -> None:
        self.width, self.height = max(self.width, x + w), max(self.height, y + h)
        head = f"<title>{escape(title)}</title>" if title else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="3" fill={quoteattr(fill)} '
            f'stroke="#444">{head}</rect>'
        )

    def text(
        self, x: float, y: float, words: str, *, size: int = 12, anchor: str = "start"
    ) -> None:
        if anchor == "start":
            # About 0.6 of the size for each letter; the page must hold the longest line.
            self.width = max(self.width, x + 0.6 * size * len(words))
        self.height = max(self.height, y + 4)
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}">'
            f"{escape(words)}</text>"
        )


def svg(topology: NodeTopology, replicas: Sequence[PlacedReplica] = ()) -> str:
    """The picture as an SVG document."""
    canvas = _Canvas()
    title = f"{topology.host or 'node'}: {summary(topology)}"
    canvas.text(_GAP, _GAP + 16, title, size=16)
    y = float(_GAP + 34)
    found = domains(topology)
    wide = max((_width(domain) for domain in found), default=0)
    for start in range(0, len(found), _PER_ROW):
        row = found[start : start + _PER_ROW]
        tall = max(_height(domain) for domain in row)
        for place, domain in enumerate(row):
            x = _GAP + place * (wide + _GAP)
            _draw_domain(canvas, x, y, wide, tall, domain, replicas)
        y += tall + _GAP
    for line in link_lines(topology):
        canvas.text(_GAP, y + 12, f"links between GPUs, {line}")
        y += _LINE
    y = _legend(canvas, y, replicas)
    width, height = canvas.width + _GAP, canvas.height + _GAP
    size = f'width="{width:g}" height="{height:g}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" {size} '
        f'font-family="DejaVu Sans, Arial, sans-serif" role="img" aria-label={quoteattr(title)}>'
    )
    return "\n".join([head, f'<rect {size} fill="#ffffff"/>', *canvas.parts, "</svg>", ""])


def _columns(domain: Domain) -> int:
    """Cores side by side: a power of two, so that the rows say something."""
    return 8 if len(domain.cores) <= 64 else 16


def _width(domain: Domain) -> float:
    devices = [len(_gpu_words(domain, i)) for i in range(len(domain.gpus))]
    devices += [len(hca_text(hca)) for hca in domain.hcas]
    longest = max([len(_head(domain)), *devices], default=0)
    return max(_columns(domain) * _CELL, 7.0 * longest + _TAGS) + 2 * _GAP


def _height(domain: Domain) -> float:
    rows = -(-len(domain.cores) // _columns(domain))
    boxes = len(domain.gpus) + len(domain.hcas) + len(domain.drives)
    return 30 + rows * _CELL + boxes * (_BOX + 4) + 2 * _GAP


def _head(domain: Domain) -> str:
    if domain.numa is None:
        return "near to no single NUMA node"
    socket = "" if domain.package is None else f", socket {domain.package}"
    return f"NUMA {domain.numa.index}{socket}: {gib(domain.numa.mem_mib)}"


def _gpu_words(domain: Domain, number: int) -> str:
    _, gpu = domain.gpus[number]
    memory = "" if gpu.memory_node is None else f", NUMA {gpu.memory_node}"
    return f"GPU {gpu.index} {gpu.name or gpu.vendor} {gib(gpu.mem_mib)}{memory}"


def _draw_domain(
    canvas: _Canvas,
    x: float,
    y: float,
    w: float,
    h: float,
    domain: Domain,
    replicas: Sequence[PlacedReplica],
) -> None:
    canvas.box(x, y, w, h, fill="#f4f4f4")
    canvas.text(x + _GAP, y + 20, _head(domain))
    columns = _columns(domain)
    top = y + 30
    for place, core in enumerate(domain.cores):
        users = [
            number
            for number, replica in enumerate(replicas)
            if replica.pinned and set(core.cpus) & set(replica.cpus)
        ]
        left = x + _GAP + place % columns * _CELL
        at = top + place // columns * _CELL
        fill = _colour(users[0]) if users else _FREE
        who = f", {replicas[users[0]].id}" if users else ""
        canvas.box(
            left, at, _CELL - 3, _CELL - 3, fill=fill, title=f"CPUs {as_list(core.cpus)}{who}"
        )
        canvas.text(left + (_CELL - 3) / 2, at + 14, str(core.cpus[0]), size=9, anchor="middle")
    at = top + -(-len(domain.cores) // columns) * _CELL + 6
    for number, (place, gpu) in enumerate(domain.gpus):
        mine = [i for i, replica in enumerate(replicas) if place in replica.gpus]
        _device(canvas, x, at, w, _gpu_words(domain, number), gpu.pci, _tags(mine, replicas))
        at += _BOX + 4
    for hca in domain.hcas:
        mine = [i for i, replica in enumerate(replicas) if hca.name in replica.hcas]
        _device(canvas, x, at, w, hca_text(hca), hca.pci, _tags(mine, replicas))
        at += _BOX + 4
    for drive in domain.drives:
        _device(canvas, x, at, w, f"{drive.name} {drive.model or ''}".rstrip(), drive.pci, [])
        at += _BOX + 4


def _tags(users: Sequence[int], replicas: Sequence[PlacedReplica]) -> list[tuple[int, str]]:
    """(number, its last part: r0004) of each replica that uses a device."""
    return [(user, replicas[user].id.rpartition("-")[2]) for user in users]


def _device(
    canvas: _Canvas,
    x: float,
    y: float,
    w: float,
    words: str,
    pci: str | None,
    users: Sequence[tuple[int, str]],
) -> None:
    """A box in the colours of those that use it, side by side."""
    left, wide = x + _GAP, w - 2 * _GAP
    share = wide / max(1, len(users))
    for place, (user, _) in enumerate(users):
        canvas.box(left + place * share, y, share, _BOX, fill=_colour(user), title=pci or "")
    if not users:
        canvas.box(left, y, wide, _BOX, fill=_FREE, title=pci or "")
    canvas.text(left + 6, y + 17, words, size=11)
    if users:
        tags = " ".join(tag for _, tag in users[:4]) + (" ..." if len(users) > 4 else "")
        canvas.text(left + wide - 6, y + 17, tags, size=9, anchor="end")


def _legend(canvas: _Canvas, y: float, replicas: Sequence[PlacedReplica]) -> float:
    for number, replica in enumerate(replicas):
        canvas.box(_GAP, y, 20, 14, fill=_colour(number))
        shared = "" if replica.pinned else ", shares its cores with others"
        canvas.text(
            _GAP + 28,
            y + 12,
            f"{replica.id} {replica.shard}: CPUs {as_list(replica.cpus) or '-'}{shared}"
            f"{''.join(f', {port}' for port in replica.ports)}",
        )
        y += _LINE
    return y


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]
