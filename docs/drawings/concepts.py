"""Write the drawings of ``docs/concepts.md``, ``exchange.svg`` and ``lease.svg``; run this file after a change."""

from __future__ import annotations

import runpy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

DRAWINGS = Path(__file__).parent
STYLE: str = runpy.run_path(str(DRAWINGS / "architecture.py"))["STYLE"] + ".label { text-anchor: middle }\n"
LINE_HEIGHT = 17


@dataclass(frozen=True)
class Box:
    """A rectangle with a title and lines below it."""

    x: int
    y: int
    width: int
    height: int
    title: str
    lines: Sequence[str] = ()
    kind: str = "box"


@dataclass(frozen=True)
class Arrow:
    """A line through points, with a label at a place; its lines stand below each other."""

    path: str
    at: tuple[int, int]
    label: Sequence[str]


@dataclass(frozen=True)
class Drawing:
    """Boxes and arrows on a white sheet."""

    title: str
    width: int
    height: int
    boxes: Sequence[Box]
    arrows: Sequence[Arrow]

    def __str__(self) -> str:
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img">',
                f"<title>{escape(self.title)}</title>",
                f"<style>{STYLE}</style>",
                '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"'
                ' orient="auto"><path d="M 0 0 L 8 4 L 0 8 z"/></marker></defs>',
                f'<rect width="{self.width}" height="{self.height}" fill="#fff"/>',
                *(line for box in self.boxes for line in _box(box)),
                *(line for arrow in self.arrows for line in _arrow(arrow)),
                "</svg>\n",
            ]
        )


def _box(box: Box) -> Iterator[str]:
    yield f'<rect class="{box.kind}" x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="6"/>'
    for number, text in enumerate((box.title, *box.lines)):
        kind = ' class="title"' if number == 0 else ""
        yield f'<text{kind} x="{box.x + 12}" y="{box.y + 22 + number * LINE_HEIGHT}">{escape(text)}</text>'


def _arrow(arrow: Arrow) -> Iterator[str]:
    yield f'<path class="arrow" d="{arrow.path}"/>'
    x, y = arrow.at
    for number, text in enumerate(arrow.label):
        yield f'<text class="label" x="{x}" y="{y + number * LINE_HEIGHT}">{escape(text)}</text>'


def _worker(y: int, name: str) -> Iterator[Box]:
    yield Box(10, y, 440, 165, name, kind="frame")
    yield Box(25, y + 40, 150, 110, "Scrapy", ("engine, downloader,", "callbacks,", "item pipelines"))
    yield Box(280, y + 40, 155, 50, "Outbox", ("links, acks",))
    yield Box(280, y + 100, 155, 50, "Inbox", ("best first",))


def _exchange(y: int) -> Iterator[Arrow]:
    yield Arrow(f"M 175 {y + 65} H 280", (228, y + 58), ("links, acks",))
    yield Arrow(f"M 280 {y + 125} H 175", (228, y + 118), ("next request",))
    yield Arrow(f"M 435 {y + 65} H 625", (535, y + 58), ("commit",))
    yield Arrow(f"M 625 {y + 125} H 435", (535, y + 118), ("leases",))


EXCHANGE = Drawing(
    "Workers exchange requests with the frontier in Redis",
    *(900, 360),
    (
        *_worker(10, "Worker 1: scrapy crawl books"),
        *_worker(185, "Worker 2: scrapy crawl books"),
        Box(625, 10, 265, 340, "Redis: the frontier books", kind="redis"),
        Box(
            640,
            45,
            235,
            105,
            "Pending requests",
            ("by tier and priority,", "in a queue for each slot", "(delayed ones apart)"),
        ),
        Box(640, 160, 235, 50, "Leases", ("who fetches what, until when",)),
        Box(640, 220, 235, 50, "Fingerprints", ("of everything ever stored",)),
        Box(640, 280, 235, 55, "Dead letters", ("given up, with a reason",)),
    ),
    (*_exchange(10), *_exchange(185)),
)
LEASE = Drawing(
    "The life of a request",
    *(900, 330),
    (
        Box(10, 120, 150, 62, "Found", ("on a page, by start(),", "pushed, as a seed")),
        Box(270, 10, 130, 45, "Delayed", ("waits for its time",)),
        Box(270, 128, 130, 45, "Pending", ("waits for its turn",)),
        Box(540, 128, 130, 45, "Leased", ("a worker has it",), "redis"),
        Box(770, 128, 120, 45, "Done", ("acknowledged",)),
        Box(535, 275, 140, 45, "Dead letter", ("kept with a reason",)),
    ),
    (
        Arrow("M 160 150 H 270", (215, 125), ("not seen:", "stored")),
        Arrow("M 80 120 V 33 H 270", (170, 25), ("with a delay",)),
        Arrow("M 300 55 V 128", (262, 96), ("time is up",)),
        Arrow("M 400 143 H 540", (470, 136), ("lease",)),
        Arrow("M 670 150 H 770", (721, 109), ("callback and", "pipelines end:", "ack")),
        Arrow("M 605 128 V 80 H 370 V 128", (488, 98), ("lease expired, or", "released")),
        Arrow("M 605 173 V 275", (650, 222), ("given up",)),
        Arrow("M 535 297 H 335 V 173", (435, 290), ("replay",)),
    ),
)


def drawings() -> Mapping[str, str]:
    """Return the text of each SVG file by its name."""
    return {"exchange.svg": str(EXCHANGE), "lease.svg": str(LEASE)}


if __name__ == "__main__":
    for name, text in drawings().items():
        (DRAWINGS / name).write_text(text)
