"""A node is read ahead of who asks, in blocks of a good size, or row by row."""

from __future__ import annotations

from collections.abc import Iterator

from mspc.data.dataset.nodes.base import ROWS, PipelineNode
from mspc.data.dataset.nodes.block import Block, joined
from mspc.data.dataset.nodes.prefetching import nbytes, read_ahead
from mspc.data.dataset.pipeline_random import DataPass

DEPTH = 16
"""How many blocks are read ahead where a script sets nothing else."""

GROUP_BYTES = 1 << 20
"""Blocks of so many bytes are large enough, however few rows they have: a batch is one row, too."""


def read(node: PipelineNode, reading: DataPass, depth: int = DEPTH) -> Iterator[Block]:
    """The blocks of a node, read ahead where that runs nothing of the user's in another thread."""
    blocks = node.blocks(reading)
    return read_ahead(blocks, depth) if node.runs_ahead and not reading.types_only else blocks


def each_row(node: PipelineNode, reading: DataPass) -> Iterator[tuple[Block, int]]:
    """Every row as its block and its place there."""
    for block in read(node, reading):
        for i in range(len(block)):
            yield block, i


def grouped(blocks: Iterator[Block], size: int = ROWS) -> Iterator[Block]:
    """The same rows in blocks of at least `size` rows or GROUP_BYTES, apart from the last one."""
    waiting: list[Block] = []
    rows = held = 0
    for block in blocks:
        waiting.append(block)
        rows += len(block)
        held += nbytes(block)
        if rows >= size or held >= GROUP_BYTES:
            yield joined(waiting)
            waiting, rows, held = [], 0, 0
    if waiting:
        yield joined(waiting)
