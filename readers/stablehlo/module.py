"""A StableHLO module as data: functions, operations, regions, types and attributes."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np

from mspc.ir.diagnostics import Frames, Location, MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import BOOL, COMPLEX64, FLOAT32, FLOAT64, DType, TensorType, dtype_of

ELEMENT_TYPES: Mapping[str, DType] = {short: dtype_of(name) for short, name in {
    "i1": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "ui8": "uint8", "ui16": "uint16",
    "ui32": "uint32", "ui64": "uint64", "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
    "complex<f32>": "complex64", "complex<f64>": "complex128", "si8": "int8", "si16": "int16", "si32": "int32",
    "si64": "int64", "index": "int64",
}.items()}  # fmt: skip
"""Element types by their names in MLIR."""


@dataclass(frozen=True, slots=True)
class OtherType:
    """A type that no tensor of mspc has: a token, a tuple, a quantized or a dynamic tensor. text: as it is written."""

    text: str

    def __str__(self) -> str:
        return self.text


HloType = TensorType | OtherType


@dataclass(frozen=True, slots=True)
class Dense:
    """Elements of a constant. text: the token with them, as it is written."""

    text: str


@dataclass(frozen=True, slots=True)
class SymbolReference:
    """A reference to a function or a mesh by name."""

    name: str


@dataclass(frozen=True, slots=True)
class Words:
    """An attribute of a dialect. name: `stablehlo.gather`. entries: those without a key. fields: those with one."""

    name: str
    entries: tuple[Any, ...]
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class HloOrigin:
    """The place from which a framework says that an operation comes. frames: source lines, the innermost first. name:
    that of a parameter, or the path of scopes and the operator; "" if there is none."""

    frames: Frames = ()
    name: str = ""


class HloOperation:
    """An operation.

    name: with its dialect, `stablehlo.add`. operands: names of values (`%2`, `%3#1`). attributes: by name. entries:
    attributes without names, in order. words: other words of the operation's text. place: offset in the text.
    """

    __slots__ = ("attributes", "entries", "name", "operand_types", "operands", "origin", "place", "regions", "results",
                 "types", "words")  # fmt: skip

    def __init__(self, name: str, place: int) -> None:
        self.name = name
        self.place = place
        self.operands: list[str] = []
        self.operand_types: list[HloType] = []
        self.attributes: dict[str, Any] = {}
        self.entries: list[Any] = []
        self.words: list[str] = []
        self.regions: list[HloRegion] = []
        self.results: list[str] = []
        self.types: list[HloType] = []
        self.origin: Any = None


class HloRegion:
    """A block of operations with arguments."""

    __slots__ = ("arguments", "operations", "types")

    def __init__(self) -> None:
        self.arguments: list[str] = []
        self.types: list[HloType] = []
        self.operations: list[HloOperation] = []

    def all_operations(self) -> Iterator[HloOperation]:
        """Yield the operations, and those in regions inside."""
        for operation in self.operations:
            yield operation
            for region in operation.regions:
                yield from region.all_operations()


class HloFunction:
    """A function. argument_attributes, result_attributes: a dictionary for each. origins: of the arguments."""

    def __init__(self, name: str, place: int) -> None:
        self.name = name
        self.place = place
        self.body = HloRegion()
        self.argument_attributes: list[Mapping[str, Any]] = []
        self.origins: list[Any] = []
        self.result_types: list[HloType] = []
        self.result_attributes: list[Mapping[str, Any]] = []


@dataclass(frozen=True)
class HloModule:
    """A module. file: its name in messages. meshes: names and sizes of axes by the mesh's name. resources: the bytes of
    large constants, as hexadecimal digits, by name. rank: the device whose program it is, -1 for a step of all."""

    file: str
    text: str
    functions: Mapping[str, HloFunction]
    attributes: Mapping[str, Any]
    meshes: Mapping[str, Sequence[tuple[str, int]]]
    resources: Mapping[str, str] = field(default_factory=dict[str, str])
    rank: int = -1

    @property
    def main(self) -> HloFunction:
        """The function that a step calls. Raise MspcError if there is none."""
        if "main" in self.functions:
            return self.functions["main"]
        if len(self.functions) == 1:
            return next(iter(self.functions.values()))
        names = ", ".join(list(self.functions)[:4]) or "none"
        raise MspcError(f"{self.file} has no function @main; its functions are {names}", code="E0116")

    @property
    def partitions(self) -> int:
        """The number of devices that the module was made for, 0 if it does not say."""
        found = self.attributes.get("mhlo.num_partitions", 0)
        return found if isinstance(found, int) and found > 1 else 0

    @property
    def devices(self) -> int:
        """The number of devices that run the module: of its partitions, or of its replicas."""
        return max(1, self.partitions) * self.attributes.get("mhlo.num_replicas", 1)

    def location(self, place: int) -> Location:
        """Return the line and column of an offset of the text."""
        number = bisect.bisect_right(self.lines, place)
        begin = self.lines[number - 1] if number else 0
        end = self.text.find("\n", place)
        line = self.text[begin : len(self.text) if end < 0 else end]
        return Location(self.file, number, place - begin + 1, text=line[:160])

    @cached_property
    def lines(self) -> list[int]:
        """Offsets of the beginnings of lines."""
        return [0, *(found.end() for found in re.finditer("\n", self.text))]


def constant_array(module: HloModule, dense: Dense, type: TensorType) -> np.ndarray[Any, Any]:
    """Return the elements of a constant. A splat has sizes 1. Raise ValueError if they are none of its type."""
    text = dense.text
    dtype = type.dtype.numpy
    if text.startswith("dense_resource<"):
        name = text[len("dense_resource<") : -1].strip().strip('"')
        if name not in module.resources:
            raise ValueError(f"the module has no resource {name!r:.60}")
        digits = module.resources[name][8:]  # the first four bytes are the alignment
    elif text.startswith('dense<"0x'):
        digits = text[len('dense<"0x') : -2]
    else:
        return _listed(text[len("dense<") : -1].strip(), type)
    try:
        raw = bytes.fromhex(digits)
    except ValueError:
        raise ValueError("the constant is no even number of hexadecimal digits") from None
    if type.dtype == BOOL and len(raw) == -(-type.size // 8) != type.size:
        return np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little")[: type.size].astype(bool).reshape(
            type.shape)  # fmt: skip
    if len(raw) % dtype.itemsize:
        raise ValueError(f"the constant has {len(raw)} bytes, no multiple of {dtype.itemsize}")
    return _shaped(np.frombuffer(raw, dtype), type)


def _shaped(flat: np.ndarray[Any, Any], type: TensorType) -> np.ndarray[Any, Any]:
    """Return elements in the shape of a type, or a splat."""
    if flat.size == type.size:
        return flat.reshape(type.shape)
    if flat.size != 1:
        raise ValueError(f"the constant has {flat.size} elements, and its type has {type.size}")
    return flat.reshape((1,) * type.rank)


def _listed(text: str, type: TensorType) -> np.ndarray[Any, Any]:
    """Return the elements of nested lists of numbers."""
    dtype = type.dtype
    if not text:
        return _shaped(np.zeros(0, dtype.numpy), type)
    flat = text.replace("[", " ").replace("]", " ").replace(" ", "").replace("\n", "")
    if dtype.is_complex:
        parts = flat.replace("(", "").replace(")", "")
        pairs = _numbers(parts.split(","), FLOAT32 if dtype == COMPLEX64 else FLOAT64)
        if pairs.size % 2:
            raise ValueError("a complex number has one part alone")
        return _shaped(pairs.view(dtype.numpy), type)
    return _shaped(_numbers([each for each in flat.split(",") if each], dtype), type)


_TRUTH = {"true": True, "false": False, "1": True, "0": False, "-1": True}


def _numbers(texts: Sequence[str], dtype: DType) -> np.ndarray[Any, Any]:
    """Return numbers in decimal digits, or floats by their bits. Raise ValueError for other text."""
    try:
        if dtype == BOOL:
            return np.array([_TRUTH[each] for each in texts], bool)
        if dtype.is_integer:
            return np.array([int(each, 0) for each in texts], dtype.numpy)
        if not any(each.startswith("0x") for each in texts):
            return np.array([float(each) for each in texts]).astype(dtype.numpy)
        bits = np.dtype(f"u{dtype.itemsize}")
        return np.array([
            np.array(int(each, 16), bits).view(dtype.numpy) if each.startswith("0x")
            else np.array(float(each)).astype(dtype.numpy) for each in texts
        ])  # fmt: skip
    except (KeyError, ValueError, OverflowError):
        shown = ", ".join(texts[:3])
        raise ValueError(f"the constant has elements ({shown:.60}) that are no {dtype}") from None
