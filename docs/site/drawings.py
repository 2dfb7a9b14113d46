"""This program draws the pictures of docs/concepts: `python docs/site/drawings.py` writes docs/images/concept-*.svg.

They are readable on light and dark pages, because each has a background of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
RANKS = ("#8ecae6", "#ffb703", "#90be6d", "#f4978e")
"""Colours of ranks 0 to 3."""
PART = "#d9d9d9"
"""The colour of a partial sum."""
Cell = tuple[str, str]
"""The colour and the text of a cell."""


class Drawing:
    """Shapes in a picture of a given size."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.shapes: list[str] = []

    def text(self, x: float, y: float, text: str, size: int = 14, anchor: str = "middle") -> None:
        """Write a line around or from a point."""
        self.shapes.append(f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}">{text}</text>')

    def box(self, x: float, y: float, width: float, height: float, colour: str, text: str = "") -> None:
        """Draw a filled rectangle with a text in its middle."""
        self.shapes.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{colour}" stroke="#333" stroke-width="1"/>'
        )
        if text:
            self.text(x + width / 2, y + height / 2 + 5, text, 13)

    def table(self, x: float, y: float, cells: Sequence[Sequence[Cell]], size: tuple[float, float]) -> None:
        """Draw rows of cells."""
        for row, columns in enumerate(cells):
            for column, (colour, text) in enumerate(columns):
                self.box(x + column * size[0], y + row * size[1], *size, colour, text)

    def arrow(self, x: float, y: float, to: float, text: str) -> None:
        """Draw an arrow to the right with a text above it."""
        self.shapes.append(
            f'<path d="M{x} {y} H{to - 8}" stroke="#333" stroke-width="2"/>'
            f'<path d="M{to} {y} l-10 -5 v10 z" fill="#333"/>'
        )
        self.text((x + to) / 2, y - 10, text, 13)

    def write(self, name: str, title: str) -> None:
        """Write the picture to the folder of images."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'font-family="sans-serif" fill="#222" role="img"><title>{title}</title>'
            f'<rect width="{self.width}" height="{self.height}" fill="#fafafa" stroke="none"/>'
        )
        (IMAGES / f"concept-{name}.svg").write_text("\n".join([head, *self.shapes, "</svg>", ""]), encoding="utf-8")


def ranked(ranks: Iterable[Sequence[int]]) -> list[list[Cell]]:
    """Return cells in the colours of ranks, with their numbers."""
    return [[(RANKS[rank], str(rank)) for rank in row] for row in ranks]


def layouts() -> None:
    """Draw three layouts of a matrix over a mesh of 2 x 2 ranks."""
    drawing = Drawing(760, 210)
    shown = (
        ("mesh (2, 2)", ((0, 1), (2, 3))), ("[0, -]: rows", ((0, 0), (2, 2))), ("[-, 1]: columns", ((0, 1), (0, 1))),
        ("[0, 1]: both", ((0, 1), (2, 3))),
    )  # fmt: skip
    for place, (name, ranks) in enumerate(shown):
        left = 30 + 185 * place
        drawing.text(left + 70, 30, name)
        cells = ranked(ranks)
        if place in (1, 2):
            pairs = {1: (("0, 1", "0, 1"), ("2, 3", "2, 3")), 2: (("0, 2", "1, 3"), ("0, 2", "1, 3"))}[place]
            cells = [[(colour, text) for (colour, _), text in zip(row, texts, strict=True)]
                     for row, texts in zip(cells, pairs, strict=True)]  # fmt: skip
        drawing.table(left, 45, cells, (70, 60))
    drawing.text(100, 190, "axis 0 goes down, axis 1 right", 13)
    drawing.text(480, 190, "each cell: the ranks that hold this quarter of the matrix", 13)
    drawing.write("layouts", "layouts of a matrix over a mesh of 2 x 2 ranks")


def redistribution() -> None:
    """Draw the collectives that bring a matrix from one layout to another."""
    drawing = Drawing(760, 420)
    rows, columns = ranked(((0,), (1,), (2,), (3,))), ranked(((0, 1, 2, 3),))
    whole = [[("#ffffff", "all ranks")]]
    partial = [[(PART, "4 partial sums")]]
    for place, (before, size, after, to, name) in enumerate((
        (rows, (120, 20), whole, (120, 80), "AllGather: [0] to [-]"),
        (rows, (120, 20), columns, (30, 80), "AlltoAll: [0, -] to [-, 0]"),
        (whole, (120, 80), rows, (120, 20), "a slice, nothing is sent: [-] to [0]"),
        (partial, (120, 80), rows, (120, 20), "ReduceScatter: sum[0] to [0]"),
    )):  # fmt: skip
        drawing.table(60, 15 + 100 * place, before, size)
        drawing.arrow(220, 55 + 100 * place, 540, name)
        drawing.table(580, 15 + 100 * place, after, to)
    drawing.write("redistribution", "collectives between layouts")


def partial_sums() -> None:
    """Draw a matmul of which each rank has a partial sum."""
    drawing = Drawing(760, 190)
    drawing.text(110, 30, "x [-, 0]")
    drawing.table(50, 45, ranked(((0, 1, 2, 3),)), (30, 90))
    drawing.text(205, 95, "x", 24)
    drawing.text(290, 30, "w [0, -]")
    drawing.table(240, 45, ranked(((0,), (1,), (2,), (3,))), (100, 22))
    drawing.text(370, 95, "=", 24)
    for rank, colour in enumerate(RANKS):
        drawing.box(400 + 14 * rank, 45 + 10 * rank, 90, 60, colour, "" if rank < 3 else "sum[0]")
    drawing.arrow(560, 90, 640, "AllReduce")
    drawing.box(650, 55, 90, 70, "#ffffff", "sum")
    drawing.text(380, 175, "every rank multiplies its columns by its rows; the results add up", 13)
    drawing.write("partial-sums", "a matmul sharded along its sum")


def pipelines() -> None:
    """Draw 1F1B for two stages and four micro-batches; a backward takes twice a forward."""
    drawing = Drawing(760, 170)
    unit = 36
    orders = (
        ((0, "F0"), (1, "F1"), (4, "B0"), (6, "F2"), (7, "B1"), (9, "F3"), (10, "B2"), (13, "B3"), (15, "U")),
        ((1, "F0"), (2, "B0"), (4, "F1"), (5, "B1"), (7, "F2"), (8, "B2"), (10, "F3"), (11, "B3"), (13, "U")),
    )
    for stage, order in enumerate(orders):
        drawing.text(20, 55 + 55 * stage, f"stage {stage}", 13, "start")
        for start, name in order:
            length = 2 if name[0] == "B" else 1
            colour = {"F": RANKS[0], "B": RANKS[2], "U": RANKS[1]}[name[0]]
            drawing.box(90 + unit * start, 30 + 55 * stage, unit * length, 40, colour, name)
    drawing.text(380, 158, "F: forward, B: backward, U: update; gaps are idle", 13)
    drawing.write("pipelines", "the 1F1B schedule of two stages")


def costs() -> None:
    """Draw the roofline: time is limited by memory for little work per byte, else by arithmetic."""
    drawing = Drawing(760, 260)
    drawing.shapes.append(
        '<path d="M80 20 V215 H720" fill="none" stroke="#333" stroke-width="2"/>'
        '<path d="M80 210 L380 60 H700" fill="none" stroke="#d62828" stroke-width="3"/>'
    )
    for x, y, name in ((170, 165, "Add"), (250, 125, "LayerNorm"), (560, 60, "MatMul 4096"), (420, 60, "attention")):
        drawing.shapes.append(f'<circle cx="{x}" cy="{y}" r="6" fill="#1d3557"/>')
        drawing.text(x + 10, y + 25, name, 13, "start")
    drawing.text(90, 35, "operations per second", 13, "start")
    drawing.text(560, 238, "operations per byte of memory", 13)
    drawing.text(230, 70, "limited by memory", 13)
    drawing.text(600, 45, "limited by arithmetic", 13)
    drawing.write("costs", "the roofline of a machine")


def proof() -> None:
    """Draw how a large plan is proved at small sizes."""
    drawing = Drawing(760, 230)
    drawing.text(110, 30, "the plan: 8 slices")
    drawing.table(30, 45, [[(RANKS[place % 4], "8192") for place in range(1)] for _ in range(8)], (160, 18))
    drawing.arrow(215, 115, 330, "divisors")
    drawing.text(420, 30, "the same slices, small")
    drawing.table(370, 70, [[(RANKS[0], "2")] for _ in range(8)], (60, 12))
    drawing.text(540, 125, "beside", 13)
    drawing.box(600, 70, 60, 96, "#ffffff", "16")
    drawing.text(630, 60, "one device", 13)
    drawing.text(380, 210, "every rank's program runs; all values are compared in Float64", 13)
    drawing.write("proof", "a proof at small sizes")


if __name__ == "__main__":
    for draw in (layouts, redistribution, partial_sums, pipelines, costs, proof):
        draw()
