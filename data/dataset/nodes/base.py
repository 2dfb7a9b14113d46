"""A stage is what a data set does to rows; each reads the one before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mspc.api.errors import ApiValueError
from mspc.data.dataset.nodes.block import Block
from mspc.data.dataset.pipeline_random import DataPass

ROWS = 64
"""Rows of a block that a source of mspc's own reads at once."""


class PipelineNode:
    """Rows of columns. columns: their names. sources: the stages that it reads."""

    is_own = True
    """Whether the stage itself runs nothing of the user's in the thread that reads it."""

    def __init__(self, columns: Sequence[str], sources: Sequence[PipelineNode] = ()) -> None:
        self.columns = list(columns)
        self.sources = list(sources)

    @property
    def runs_ahead(self) -> bool:
        """Whether another thread may read the stage: neither it nor what it reads runs anything of the user's there."""
        return self.is_own and all(source.runs_ahead for source in self.sources)

    def blocks(self, reading: DataPass) -> Iterator[Block]:
        """The rows of one pass."""
        raise NotImplementedError

    def count(self, most: int | None = None) -> int:
        """Number of rows of a pass. Whoever needs to know of `most` only says so: a source may be endless."""
        counted = 0
        for block in self.blocks(DataPass.begin(0)):
            counted += len(block)
            if most is not None and counted >= most:
                return most
        return counted

    @property
    def batch_size(self) -> int:
        """Rows per batch, 1 without batches."""
        return self.sources[0].batch_size if self.sources else 1

    @property
    def repeat_count(self) -> int:
        return self.sources[0].repeat_count if self.sources else 1

    @property
    def classes(self) -> int | None:
        """Number of classes of the labels, None where it is not known."""
        return self.sources[0].classes if self.sources else None

    @property
    def class_indexing(self) -> dict[str, int]:
        """Numbers of classes by their names, where there are names."""
        return self.sources[0].class_indexing if self.sources else {}

    def place(self, column: str) -> int:
        """Index of a column. Raises ValueError for an unknown one."""
        if column not in self.columns:
            raise ApiValueError(f"there is no column {column!r}; there are {', '.join(map(repr, self.columns))}")
        return self.columns.index(column)


class RowwiseNode(PipelineNode):
    """A stage over one other, of as many rows."""

    def __init__(self, source: PipelineNode, columns: Sequence[str] | None = None) -> None:
        super().__init__(source.columns if columns is None else columns, [source])

    @property
    def source(self) -> PipelineNode:
        return self.sources[0]

    def count(self, most: int | None = None) -> int:
        return self.source.count(most)

