"""Cells that hold other cells in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from mspc.api.errors import ApiIndexError, ApiTypeError
from mspc.api.nn.cell import Cell


class _Ordered(Cell):
    """Cells under the names 0, 1, 2, ..."""

    def _fill(self, cells: Iterable[Any]) -> None:
        for cell in cells:
            self.append(cell)

    def append(self, cell: Any) -> Any:
        """Add a cell at the end. Raises TypeError for anything else."""
        if not isinstance(cell, Cell):
            raise ApiTypeError(f"{type(self).__name__} holds Cells, not {type(cell).__name__}")
        self._adopt(str(len(self._cells)), cell)
        return self

    def _replace(self, cells: list[Cell]) -> None:
        self._cells.clear()
        self._fill(cells)

    def insert(self, index: int, cell: Cell) -> None:
        """Add a cell before position `index`."""
        cells = list(self._cells.values())
        cells.insert(index, cell)
        self._replace(cells)

    def extend(self, cells: Iterable[Any]) -> Any:
        self._fill(cells)
        return self

    def __getitem__(self, index: Any) -> Any:
        cells = list(self._cells.values())
        if isinstance(index, slice):
            return type(self)(cells[index])
        if not -len(cells) <= index < len(cells):
            raise ApiIndexError(f"{type(self).__name__} has {len(cells)} cells; there is no number {index}")
        return cells[index]

    def __setitem__(self, index: int, cell: Cell) -> None:
        cells = list(self._cells.values())
        cells[index] = cell
        self._replace(cells)

    def __delitem__(self, index: Any) -> None:
        cells = list(self._cells.values())
        del cells[index]
        self._replace(cells)

    def __len__(self) -> int:
        return len(self._cells)

    def __iter__(self) -> Iterator[Cell]:
        return iter(list(self._cells.values()))


class CellList(_Ordered):
    """A list of cells, for `for` loops in `construct`.

    Args: cells, or one list of them.
    """

    def __init__(self, *args: Any, auto_prefix: bool = True) -> None:
        super().__init__(auto_prefix)
        self._fill(args[0] if len(args) == 1 and isinstance(args[0], (list, tuple, CellList)) else args)


class SequentialCell(_Ordered):
    """Cells applied one after another.

    Args: cells, one list of them, or one dict of names and cells.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], dict):
            for name, cell in args[0].items():
                self.insert_child_to_cell(name, cell)
        else:
            self._fill(args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args)

    @property
    def cell_list(self) -> tuple[Cell, ...]:
        return tuple(self._cells.values())

    def construct(self, input_data: Any) -> Any:
        for cell in self.cell_list:
            input_data = cell(input_data)
        return input_data


class CellDict(Cell):
    """Cells by name."""

    def __init__(self, *args: Any, auto_prefix: bool = True) -> None:
        super().__init__(auto_prefix)
        for name, cell in dict(*args).items():
            self[name] = cell

    def __getitem__(self, key: str) -> Cell:
        return self._cells[key]

    def __setitem__(self, key: str, cell: Cell) -> None:
        if not isinstance(cell, Cell):
            raise ApiTypeError(f"CellDict holds Cells, not {type(cell).__name__}")
        self._adopt(key, cell)

    def __len__(self) -> int:
        return len(self._cells)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._cells))

    def __contains__(self, key: object) -> bool:
        return key in self._cells

    def keys(self) -> Any:
        return self._cells.keys()

    def values(self) -> Any:
        return self._cells.values()

    def items(self) -> Any:
        return self._cells.items()
