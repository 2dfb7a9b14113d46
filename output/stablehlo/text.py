"""The text of a StableHLO module: operations with their types and regions, constants and locations."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mspc.ir.diagnostics import Frames, MspcError
from mspc.ir.late_dataclass import dataclass

Shape = Sequence[int]
Content = Any
"""A `Ref`, or a NumPy array: its elements are known while the text is written."""
_LISTED = 16
"""Most elements of a constant that are written one by one; others are written as the bytes of all."""


class NotWritten(MspcError):
    """An operator that has no form in StableHLO; the message has the reason."""


@dataclass(frozen=True, eq=False, slots=True)
class Ref:
    """A value in the text."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def type_of(value: Content) -> str:
    """Return the type of a value: tensor<2x3xf32>."""
    kind, bits = value.dtype.kind, value.dtype.itemsize * 8
    element = "bf16" if kind == "V" or value.dtype.name == "bfloat16" else "i1" if kind == "b" else (
        f"complex<f{bits // 2}>" if kind == "c" else {"i": "i", "u": "ui", "f": "f"}[kind] + str(bits))  # fmt: skip
    return f"tensor<{''.join(f'{n}x' for n in value.shape)}{element}>"


def _number(value: Any) -> str:
    if value.dtype.kind in "biu":
        return str(value.item()).lower()
    if value.dtype.kind == "c":
        return f"({_number(value.real)}, {_number(value.imag)})"
    if not np.isfinite(value):
        return f"0x{value.tobytes()[::-1].hex()}"
    mantissa, mark, exponent = repr(float(value)).partition("e")
    return mantissa + (".0" if "." not in mantissa else "") + mark + exponent


def dense(array: np.ndarray) -> str:
    """Return the attribute of a constant."""
    first = array[(0,) * array.ndim] if array.size else None
    if first is not None and (not any(array.strides) or (array == first).all()):
        return f"dense<{_number(first)}>"
    if array.size > _LISTED and array.dtype.kind != "b":
        return f'dense<"0x{np.ascontiguousarray(array).tobytes().hex()}">'
    return f"dense<{_listed(array) if array.size else ''}>"


def _listed(array: np.ndarray) -> str:
    return f"[{', '.join(map(_listed, array))}]" if array.ndim else _number(array[()])


def _setting(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{dense(value)} : {type_of(value)}"
    if isinstance(value, str | bool):
        return str(value).lower() if isinstance(value, bool) else value
    listed = ", ".join(map(str, value)) if not isinstance(value, int) else ""
    return f"{value} : i64" if isinstance(value, int) else f"array<i64{': ' * bool(listed)}{listed}>"


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "/").replace('"', "'") + '"'


class ModuleText:
    """Writes operations into the innermost open region. frames: the source lines of the operations. used: names of
    operands."""

    def __init__(self) -> None:
        self._open: list[tuple[list[str], dict[str, Ref]]] = [([], {})]
        self._count = 0
        self._places: dict[str, int] = {}
        self.frames: Frames = ()
        self.used = set[str]()

    def emit(
        self, name: str, operands: Sequence[Content], *results: tuple[Any, Shape], regions: Sequence[list[str]] = (),
        **settings: Any,
    ) -> Any:  # fmt: skip
        """Write an operation and return its result, a list of several. results: element types and shapes."""
        given, made = [self.ref(each) for each in operands], [self.value(each) for each in results]
        self.used.update(each.name for each in given)
        left = f"{', '.join(each.name for each in made)} = " if made else ""
        text = f'"{name if "." in name else f"stablehlo.{name}"}"({", ".join(each.name for each in given)})'
        if settings:
            text += f" <{{{', '.join(f'{key} = {_setting(value)}' for key, value in settings.items())}}}>"
        types = ", ".join(map(type_of, made))
        end = f" : ({', '.join(map(type_of, given))}) -> {types if len(made) == 1 else f'({types})'}"
        lines, indent = self._open[-1][0], "  " * (len(self._open) + 1)
        if regions:
            for number, region in enumerate(regions):
                lines += [f"{indent}}}, {{" if number else f"{indent}{left}{text} ({{", *region]
            left, text = "", "})"
        lines.append(f"{indent}{left}{text}{end}{self._place()}")
        return made[0] if len(made) == 1 else made

    def value(self, type: tuple[Any, Shape]) -> Ref:
        self._count += 1
        return Ref(f"%{self._count}", np.dtype(type[0]), tuple(type[1]))

    def ref(self, content: Content) -> Ref:
        """Return a value with this content, or that of an array; known elements become a constant."""
        content = getattr(content, "content", content)
        if isinstance(content, Ref):
            return content
        text = f"{dense(content)} : {type_of(content)}"
        found = next((known[text] for _, known in self._open if text in known), None)
        if found is None:
            found = self._open[-1][1][text] = self.emit("constant", (), (content.dtype, content.shape), value=text)
        return found

    @contextlib.contextmanager
    def region(self, *types: tuple[Any, Shape]) -> Iterator[tuple[list[str], list[Ref]]]:
        """Open a region with arguments of these types; its lines are complete when it is closed."""
        values = [self.value(each) for each in types]
        indent = "  " * (len(self._open) + 1)
        head = [f"{indent}^bb0({', '.join(f'{v.name}: {type_of(v)}' for v in values)}):"] if values else []
        self._open.append((head, {}))
        try:
            yield head, values
        finally:
            self._open.pop()

    def _place(self) -> str:
        text = ""
        for frame in reversed(self.frames):
            own = f"{quoted(frame.file)}:{max(frame.line, 1)}:{max(frame.column, 1)}"
            text = own if not text else f"callsite({own} at {text})"
        return f" loc(#loc{self._places.setdefault(text, len(self._places))})" if text else ""

    def lines(self, name: str, ranks: int, arguments: Sequence[str], results: Sequence[str]) -> list[str]:
        """Return the lines of the module. arguments, results: of its function, with their attributes."""
        return [
            f"module @{name} attributes {{mhlo.num_partitions = 1 : i32, mhlo.num_replicas = {ranks} : i32}} {{",
            f"  func.func public @main({', '.join(arguments)}) -> ({', '.join(results)}) {{",
            *self._open[0][0], "  }", "}", *(f"#loc{n} = loc({text})" for text, n in self._places.items()), "",
        ]  # fmt: skip
