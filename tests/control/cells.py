"""Cells and parameters for judges that run a script as plain Python: a parameter is an attribute that is assigned."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any


class Parameter:
    """A tensor of a cell, as `__init__` makes it."""

    def __init__(self, value: Any, name: str = "", requires_grad: bool = True) -> None:
        self.value, self.name, self.requires_grad = value, name, requires_grad


class Cell:
    """A cell whose parameters read as tensors; assigning one updates it."""

    def __init__(self) -> None:
        self.__dict__.update(parameters={}, cells={})

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Parameter):
            self.parameters[name] = value
        elif isinstance(value, Cell):
            self.__dict__[name] = self.cells[name] = value
        elif name in self.parameters:
            self.parameters[name].value = value
        else:
            self.__dict__[name] = value

    def __getattr__(self, name: str) -> Any:
        known = self.__dict__.get("parameters", {})
        if name not in known:
            raise AttributeError(name)
        value = known[name].value
        value.place = known[name]
        return value

    def __call__(self, *given: Any) -> Any:
        return self.construct(*given)  # type: ignore[attr-defined]  # of the script's class

    def trainable(self) -> dict[str, Parameter]:
        """The trained parameters, by the names that MindSpore gives them: the cells on the way, then its own."""
        found = {name: parameter for name, parameter in self.parameters.items() if parameter.requires_grad}
        for name, cell in self.cells.items():
            found |= {f"{name}.{own}": parameter for own, parameter in cell.trainable().items()}
        return found


class CellList(Cell):
    """A list of cells, each by its number."""

    def __init__(self, items: Sequence[Cell]) -> None:
        super().__init__()
        self.cells.update({str(i): cell for i, cell in enumerate(items)})

    def __iter__(self) -> Iterator[Cell]:
        return iter(self.cells.values())


def assign(parameter: Any, value: Any) -> Any:
    """`ops.assign(self.p, value)`: tensors that were read from a parameter know their place."""
    parameter.place.value = value
    return value


def names(tensor: Any, ops: dict[str, Any], types: dict[str, Any]) -> dict[str, Any]:
    """The names with which the text of a script is executed. tensor: makes tensors; ops: its functions by their names;
    types: the element types. Operators that `__init__` makes are the functions of the same names; their strategies
    change nothing.
    """

    def primitive(name: str) -> Any:
        def made() -> Any:
            def call(*given: Any) -> Any:
                return ops[name](*given)

            call.shard = lambda *_: call  # type: ignore[attr-defined]
            return call

        return made

    kinds = {"Tanh": "tanh", "Add": "add", "Sub": "sub", "Mul": "mul", "MatMul": "matmul"}
    made = {kind: primitive(name) for kind, name in kinds.items()}
    return {
        "ms": SimpleNamespace(jit=lambda function: function, **types),
        "nn": SimpleNamespace(Cell=Cell, CellList=CellList),
        "ops": SimpleNamespace(**ops, **made, assign=assign),
        "Tensor": tensor,
        "Parameter": Parameter,
    }
