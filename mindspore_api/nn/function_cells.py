"""Bases of cells that apply one operator or one function."""

from __future__ import annotations

from typing import Any, ClassVar

from mspc.mindspore_api import ops
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.nn.cell import Cell

__all__: tuple[str, ...] = ()


class OperatorCell(Cell):
    """Applies the operator with the name of the class.

    Class attributes:
        attribute: the attribute with the operator, which scripts shard or replace. operator: its class in `ops`.
    """

    attribute: ClassVar[str]
    operator: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        setattr(self, self.attribute, getattr(ops, self.operator)())

    def construct(self, x: Any) -> Tensor:
        return getattr(self, self.attribute)(x)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if OperatorCell in cls.__bases__:
            cls.attribute, cls.operator = cls.__name__.lower(), cls.__name__


class FunctionCell(Cell):
    """Applies a function to the input and to the arguments of the cell."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        super().__init__()
        self.function, self.arguments = function, arguments

    def construct(self, input: Any) -> Any:
        return self.function(input, *self.arguments)
