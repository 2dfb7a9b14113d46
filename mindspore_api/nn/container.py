"""Cells that contain other cells in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from mspc.mindspore_api.common.parameter import changes
from mspc.mindspore_api.errors import ApiIndexError, ApiTypeError, ApiValueError
from mspc.mindspore_api.nn.cell import Cell


class _Ordered(Cell):
    """Cells under the names 0, 1, 2, ..."""

    def _fill(self, cells: Iterable[Any]) -> None:
        for cell in cells:
            self._add(cell)

    def append(self, cell: Any) -> Any:
        """Add a cell at the end. Raise TypeError for anything else."""
        return self._add(cell, self._front())

    def _front(self) -> str:
        """Return the text before the number in the names of the first cell's parameters, for a cell that is added
        later. MindSpore 2.10 looks for the last position at which the name has the cell's number, unless the next
        cell's name has its own number at that position. Cells of numbered cells thus get names such as `0.1.0.weight`,
        which checkpoints contain."""
        leading = ((key, next(iter(cell.get_parameters()), None)) for key, cell in self._cells.items())
        first = [(key, found.name.split(".")) for key, found in leading if found is not None][:2]
        front: list[str] = []
        for i, part in enumerate(first[0][1] if first else []):
            if part == first[0][0]:
                front = first[0][1][:i]
                if len(first) > 1 and first[1][1][i : i + 1] == [first[1][0]]:
                    break
        return "".join(f"{part}." for part in front)

    def _add(self, cell: Any, front: str = "") -> Any:
        if not isinstance(cell, Cell):
            raise ApiTypeError(f"{type(self).__name__} holds Cells, not {type(cell).__name__}", code="E1006")
        place = len(self._cells)
        while str(place) in self._cells:  # a part has the numbers of the whole
            place += 1
        self._adopt(str(place), cell)
        if front and self._auto_prefix:
            cell.update_parameters_name(f"{front}{place}.")
        return self

    def _replace(self, cells: list[tuple[str, Cell]]) -> None:
        """Replace all cells. Cells without a name from the script get their index as name, also in the names of their
        parameters."""
        front = self._front()
        changes.count += 1
        self._cells.clear()
        for place, (name, cell) in enumerate(cells):
            label = name if name and not name.isdigit() else str(place)
            self._adopt(label, cell)
            if front and self._auto_prefix:
                cell.update_parameters_name(f"{front}{label}.")

    def insert(self, index: int, cell: Cell) -> None:
        """Add a cell before position `index`. Raise TypeError for anything else."""
        if not isinstance(cell, Cell):
            raise ApiTypeError(f"{type(self).__name__} holds Cells, not {type(cell).__name__}", code="E1006")
        cells = list(self._cells.items())
        cells.insert(index, ("", cell))
        self._replace(cells)

    def extend(self, cells: Iterable[Any]) -> Any:
        front = self._front()
        for cell in cells:
            self._add(cell, front)
        return self

    def __getitem__(self, index: Any) -> Any:
        cells = list(self._cells.values())
        if isinstance(index, slice):
            return self._part(index)
        if not -len(cells) <= index < len(cells):
            raise ApiIndexError(f"{type(self).__name__} has {len(cells)} cells; there is no number {index}")
        return cells[index]

    def _part(self, index: slice) -> Any:
        """Return a container of these cells, without the attributes that a script's subclass adds. A list numbers them
        from 0, a sequence keeps their names. Assigning the part to an attribute changes names of parameters."""
        kind = next(kind for kind in type(self).__mro__ if kind.__module__ == __name__)
        part: Any = object.__new__(kind)
        Cell.__init__(part, self._auto_prefix)
        for place, (key, cell) in enumerate(list(self._cells.items())[index]):
            name = str(place) if kind is CellList else key
            part._cells[name] = cell
            part._members.add(name)
        return part

    def __setitem__(self, index: int, cell: Cell) -> None:
        if not isinstance(cell, Cell):
            raise ApiTypeError(f"{type(self).__name__} holds Cells, not {type(cell).__name__}", code="E1006")
        self[index]  # an index outside is an error
        cells = list(self._cells.items())
        cells[index] = cells[index][0], cell
        self._replace(cells)

    def __delitem__(self, index: Any) -> None:
        if not isinstance(index, slice):
            self[index]  # an index outside is an error
        cells = list(self._cells.items())
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

    def offload(self, backward_prefetch: Any = "Auto", layers: Iterable[int] | None = None) -> None:
        """Call `Cell.offload` for every cell of the list, or those with these numbers. Raise ValueError or TypeError as
        that does, or if a number has no cell."""
        cells = list(self)
        for number in range(len(cells)) if layers is None else layers:
            if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(cells):
                raise ApiValueError(
                    f"CellList.offload: layers has {number!r}, and the list has cells 0 to {len(cells) - 1}"
                )
            cells[number].offload(backward_prefetch)


class SequentialCell(_Ordered):
    """Cells applied in sequence.

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
            raise ApiTypeError(f"CellDict holds Cells, not {type(cell).__name__}", code="E1006")
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
