"""Nodes that choose, reorder or repeat rows, choose columns, and concatenate or zip data sets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mspc.mindspore_api.dataset.nodes.block import ROWS, Block, column_values, picked
from mspc.mindspore_api.dataset.nodes.pipeline_node import PipelineNode, RowFault, RowwiseNode, each_row, name_of, read
from mspc.mindspore_api.dataset.pipeline_random import DataPass
from mspc.mindspore_api.errors import ApiValueError


class Shuffled(RowwiseNode):
    """Rows in random order, sampled from a window of rows. fixed: use the same order in every epoch."""

    def __init__(self, source: PipelineNode, window: int, key: int, fixed: bool = False) -> None:
        super().__init__(source)
        self.window = window
        self.key = key
        self.fixed = fixed

    def blocks(self, reading: DataPass) -> Iterator[Block]:
        if reading.types_only:
            yield from self.source.blocks(reading)
            return
        sampled = self._sampled(reading)
        size = ROWS if self.source.runs_ahead else 1
        while rows := list(itertools.islice(sampled, size)):
            yield picked(rows)

    def _sampled(self, reading: DataPass) -> Iterator[tuple[Block, int]]:
        generator = (reading.number(0) if self.fixed else reading).generator(self.key)
        window: list[tuple[Block, int]] = []
        for block in self.source.blocks(reading.one_by_one()):
            count = max(0, len(window) + len(block) - self.window)
            places = iter(generator.integers(self.window + 1, size=count).tolist())
            for i in range(len(block)):
                window.append((block, i))
                if len(window) > self.window:
                    yield _taken(window, next(places))
        for place in generator.integers(np.arange(len(window), 0, -1)).tolist():
            yield _taken(window, place)


def _taken(window: list[tuple[Block, int]], place: int) -> tuple[Block, int]:
    window[place], window[-1] = window[-1], window[place]
    return window.pop()


class Repeated(RowwiseNode):
    """Rows repeated `times` times in one epoch, or endlessly for None."""

    def __init__(self, source: PipelineNode, times: int | None) -> None:
        super().__init__(source)
        self.times = times

    def blocks(self, reading: DataPass) -> Iterator[Block]:
        for i in itertools.count() if self.times is None else range(self.times):
            rows = 0
            for block in self.source.blocks(reading.number(reading.epoch * (self.times or 1) + i)):
                rows += len(block)
                yield block
            if not rows:
                return

    def count(self, most: int | None = None) -> int:
        rows = self.source.count(most)
        if self.times is not None:
            return rows * self.times
        if most is None and rows:
            raise ApiValueError(
                "a data set that is repeated for ever has no size", ["give repeat a count, or take a number of rows"]
            )
        return most if most is not None and rows else 0

    @property
    def repeat_count(self) -> int:
        return -1 if self.times is None else self.times * self.source.repeat_count


class RowRange(RowwiseNode):
    """Rows first to last, excluding last; None means all rows from first on."""

    def __init__(self, source: PipelineNode, first: int, last: int | None) -> None:
        super().__init__(source)
        self.first = first
        self.last = last

    def blocks(self, reading: DataPass) -> Iterator[Block]:
        at = 0
        if self.last is not None and self.last <= self.first:
            return
        for block in self.source.blocks(reading.one_by_one()):
            last = len(block) if self.last is None else min(len(block), self.last - at)
            first = max(0, self.first - at)
            if first < last:
                yield block.part(first, last)
            at += len(block)
            if self.last is not None and at >= self.last:
                return

    def count(self, most: int | None = None) -> int:
        ends = [end for end in (self.last, None if most is None else self.first + most) if end is not None]
        rows = self.source.count(min(ends, default=None))
        return max(0, min([rows, *ends]) - self.first)


class Filtered(RowwiseNode):
    """Rows for which a user function returns true."""

    is_own = False

    def __init__(
        self, source: PipelineNode, predicate: Callable[..., Any], columns: Sequence[str], fault: RowFault
    ) -> None:
        super().__init__(source)
        self.predicate = predicate
        self.taken = [source.place(name) for name in columns]
        self.fault = fault

    def blocks(self, reading: DataPass) -> Iterator[Block]:
        for number, (block, i) in enumerate(each_row(self.source, reading.one_by_one())):
            values = (np.array(column_values(block.columns[place])[i]) for place in self.taken)
            try:
                holds = bool(self.predicate(*values))
            except Exception as error:
                raise self.fault.error(error, name_of(self.predicate), number, block.place(i)) from error
            if holds:
                yield block.part(i, i + 1)

    def count(self, most: int | None = None) -> int:
        return PipelineNode.count(self, most)


class Projected(RowwiseNode):
    """Some columns, optionally renamed."""

    def __init__(self, source: PipelineNode, columns: Sequence[str], names: Sequence[str] | None = None) -> None:
        self.taken = [source.place(name) for name in columns]
        super().__init__(source, columns if names is None else names)

    def blocks(self, reading: DataPass) -> Iterator[Block]:
        for block in self.source.blocks(reading):
            yield Block(tuple(block.columns[i] for i in self.taken), block.origin, block.positions)


class Concatenated(PipelineNode):
    """Rows of several nodes with the same columns, one node after another."""

    def __init__(self, sources: Sequence[PipelineNode]) -> None:
        super().__init__(sources[0].columns, sources)
        for source in sources[1:]:
            if source.columns != self.columns:
                raise ApiValueError(f"concat: columns {source.columns} are not {self.columns}", code="E1101")

    def blocks(self, reading: DataPass) -> Iterator[Block]:
        for source in self.sources:
            yield from (Block(block.columns, block.origin) for block in source.blocks(reading))

    def count(self, most: int | None = None) -> int:
        found = 0
        for source in self.sources:
            if most is not None and found >= most:
                break
            found += source.count(None if most is None else most - found)
        return found


class Zipped(PipelineNode):
    """Rows of several nodes side by side, as many as the shortest has."""

    def __init__(self, sources: Sequence[PipelineNode]) -> None:
        names = [name for source in sources for name in source.columns]
        for name in names:
            if names.count(name) > 1:
                raise ApiValueError(f"zip: column {name!r} is in several data sets", ["rename one of them"])
        super().__init__(names, sources)

    def blocks(self, reading: DataPass) -> Iterator[Block]:
        reading = reading.one_by_one()
        readers = [_RowBlocks(read(source, reading) if not self.runs_ahead else source.blocks(reading)) for source in
                   self.sources]  # fmt: skip
        while True:
            parts: list[Block] = []
            size = min(reader.waiting() for reader in readers)
            if not size:
                return
            parts = [reader.take(size) for reader in readers]
            yield Block(tuple(column for part in parts for column in part.columns), parts[0].origin, parts[0].positions)

    def count(self, most: int | None = None) -> int:
        counts: list[int] = []
        for source in self.sources:
            most = min([*counts, *([] if most is None else [most])], default=None)
            counts.append(source.count(most))
        return min(counts)


class _RowBlocks:
    """Reader that takes blocks in parts."""

    def __init__(self, blocks: Iterator[Block]) -> None:
        self.blocks = blocks
        self.block: Block | None = None

    def waiting(self) -> int:
        """Return the number of rows that can be taken at once, 0 after the last."""
        if self.block is None:
            self.block = next(self.blocks, None)
        return 0 if self.block is None else len(self.block)

    def take(self, size: int) -> Block:
        block = self.block
        assert block is not None
        self.block = block.part(size, len(block)) if size < len(block) else None
        return block.part(0, size)
