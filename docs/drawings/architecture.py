"""Write ``architecture.svg``, the drawing at the top of ``docs/architecture.md``; run this file after a change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

SVG = Path(__file__).with_suffix(".svg")
WIDTH, HEIGHT = 1150, 480
LINE_HEIGHT = 17
STYLE = """
text { font: 13px ui-sans-serif, system-ui, sans-serif; fill: #1f2933 }
.title { font-weight: 600; font-size: 15px }
.file { font: 12px ui-monospace, monospace; fill: #52606d }
.step { font-weight: 600; fill: #fff; text-anchor: middle }
.frame { fill: #f5f7fa; stroke: #9aa5b1; stroke-dasharray: 5 4 }
.box { fill: #fff; stroke: #52606d }
.redis { fill: #fff; stroke: #c0392b }
.arrow { stroke: #1f2933; stroke-width: 1.5; fill: none; marker-end: url(#head) }
.number { fill: #2b6cb0 }
"""


@dataclass(frozen=True)
class Box:
    """Something that a request goes through.

    Args:
        files: of the package, each on a line of its own.
        notes: lines in front of these.
    """

    x: int
    y: int
    width: int
    height: int
    title: str
    files: Sequence[str] = ()
    notes: Sequence[str] = ()
    kind: str = "box"


@dataclass(frozen=True)
class Arrow:
    """A step, from one point to another on the same height."""

    number: int
    start: tuple[int, int]
    end: tuple[int, int]


FRAMES = (
    Box(10, 10, 870, 380, "One worker: a Scrapy process", kind="frame"),
    Box(910, 10, 230, 380, "One Redis server", kind="frame"),
    Box(
        10,
        406,
        1130,
        64,
        "On any machine",
        notes=("more workers; operators (commands/) and other programs (client/)",),
        kind="frame",
    ),
)
BOXES = (
    Box(30, 50, 150, 325, "Scrapy", notes=("engine", "downloader", "spider", "item pipelines")),
    Box(
        *(250, 50, 200, 110), "Store a request", ("scheduler.py", "queues/frontier.py", "tiers.py", "codec/requests.py")
    ),
    Box(250, 175, 200, 80, "Settle a request", ("engine.py", "queues/endings.py")),
    Box(250, 270, 200, 105, "Start a request", ("scheduler.py", "queues/frontier.py", "codec/requests.py")),
    Box(520, 50, 145, 205, "Outbox", ("pump/outbox.py",), ("requests and acks", "in batches")),
    Box(520, 270, 145, 105, "Inbox", ("pump/inbox.py",), ("leased requests,", "best first")),
    Box(
        *(735, 50, 130, 325),
        "Exchange",
        ("pump/pump.py", "pump/loop.py"),
        ("one round trip", "for many pages"),
    ),
    Box(
        *(930, 50, 190, 205),
        "Commit a batch",
        ("lua/worker/commit.lua",),
        ("mark fingerprints,", "store requests,", "end leases"),
        "redis",
    ),
    Box(930, 270, 190, 105, "Lease requests", ("lua/worker/lease.lua",), ("by rank, slot and limits",), "redis"),
)
ARROWS = (
    Arrow(1, (180, 105), (250, 105)),
    Arrow(2, (450, 105), (520, 105)),
    Arrow(3, (665, 150), (735, 150)),
    Arrow(4, (865, 150), (930, 150)),
    Arrow(5, (930, 322), (865, 322)),
    Arrow(6, (735, 322), (665, 322)),
    Arrow(7, (520, 322), (450, 322)),
    Arrow(8, (250, 322), (180, 322)),
    Arrow(9, (180, 215), (250, 215)),
    Arrow(10, (450, 215), (520, 215)),
)
"""From left to right, and back."""


def _box(box: Box) -> Iterator[str]:
    yield f'<rect class="{box.kind}" x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="6"/>'
    lines = [("title", box.title), *(("", note) for note in box.notes), *(("file", name) for name in box.files)]
    for number, (kind, text) in enumerate(lines):
        y = box.y + 22 + number * LINE_HEIGHT
        yield f'<text class="{kind}" x="{box.x + 12}" y="{y}">{escape(text)}</text>'


def _arrow(arrow: Arrow) -> Iterator[str]:
    (x1, y), (x2, _) = arrow.start, arrow.end
    yield f'<path class="arrow" d="M {x1} {y} H {x2}"/>'
    x = (x1 + x2) // 2
    yield f'<circle class="number" cx="{x}" cy="{y}" r="11"/>'
    yield f'<text class="step" x="{x}" y="{y + 5}">{arrow.number}</text>'


def drawing() -> str:
    """Return the text of the SVG file."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        "<title>How a request goes through a worker, Redis and back</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M 0 0 L 8 4 L 0 8 z"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        *(line for box in (*FRAMES, *BOXES) for line in _box(box)),
        *(line for arrow in ARROWS for line in _arrow(arrow)),
        "</svg>\n",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    SVG.write_text(drawing())
