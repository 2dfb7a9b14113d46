"""This module has kinds of element types, for `isinstance(x.dtype, Float)`."""

from __future__ import annotations

from typing import Any

from mspc.ir.types import BFLOAT16, DType


class _DtypeKind(type):
    """A class whose instances are the element types of one kind."""

    letters: str

    def __new__(mcs, name: str, bases: tuple[type, ...], names: dict[str, Any], letters: str = "") -> _DtypeKind:
        made = super().__new__(mcs, name, bases, names)
        made.letters = letters
        return made

    def __init__(cls, name: str, bases: tuple[type, ...], names: dict[str, Any], letters: str = "") -> None:
        super().__init__(name, bases, names)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, DType) and ("B" if instance == BFLOAT16 else instance.kind) in cls.letters


class Float(metaclass=_DtypeKind, letters="f"):
    """Float16, Float32, Float64."""


class BFloat(metaclass=_DtypeKind, letters="B"):
    """BFloat16, which MindSpore counts as a kind of its own."""


class Int(metaclass=_DtypeKind, letters="i"):
    """Int8 to Int64."""


class UInt(metaclass=_DtypeKind, letters="u"):
    """UInt8 to UInt64."""


class Complex(metaclass=_DtypeKind, letters="c"):
    """Complex64, Complex128."""


class Bool(metaclass=_DtypeKind, letters="b"):
    """Bool."""


class Number(metaclass=_DtypeKind, letters="biufcB"):
    """Every element type."""
