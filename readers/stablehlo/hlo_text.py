"""Reading of HLO text, which XLA writes after its passes, as operations of StableHLO.

Tuples are read as their elements, so that `tuple` and `get-tuple-element` only name values; fusions are calls.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from mspc.ir.diagnostics import Location, MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.limits import LARGEST_SIZE, MOST_DIMENSIONS, number_of
from mspc.ir.types import TensorType, is_too_large
from mspc.readers.stablehlo.module import (
    ELEMENT_TYPES,
    Dense,
    HloFunction,
    HloModule,
    HloOperation,
    HloOrigin,
    HloRegion,
    HloType,
    OtherType,
    SymbolReference,
)

HEADER = "HloModule"
_ELEMENTS = {"pred": "i1", "c64": "complex<f32>", "c128": "complex<f64>"}
_COMMENT = re.compile(r"/\*.*?\*/")
_COMPUTATION = re.compile(r"(ENTRY\s+)?%?([\w.-]+)\s*(?:\([^{}]*(?:\{[\d,]*\}[^{}]*)*\)\s*->.*)?\{\s*$")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.-]+) = ")
_ARRAY = re.compile(r"(\w+)\[([^\]]*)\](?:\{([\d,]*)[^}]*\})?")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_METADATA = re.compile(r'(\w+)=(?:"((?:[^"\\]|\\.)*)"|(\d+))')
_TABLE = re.compile(r"\d+ (?:\"|\{)")
_OPENING, _CLOSING = "({[", ")}]"
_DEEPEST = 48
_RENAMED = {
    "broadcast": "broadcast_in_dim", "dot": "dot_general", "erf": "chlo.erf", "topk": "chlo.top_k",
}  # fmt: skip
"""Operations of StableHLO by those of HLO, if they differ in more than `_` for `-`."""
_DIMENSIONS = {
    "broadcast": "broadcast_dimensions", "transpose": "permutation", "concatenate": "dimension", "sort": "dimension",
    "all-gather": "all_gather_dim", "reduce-scatter": "scatter_dimension", "all-to-all": "split_dimension",
}  # fmt: skip
"""Attributes of StableHLO for `dimensions` of HLO."""
_ATTRIBUTES = {
    "direction": "comparison_direction", "type": "compare_type", "dynamic_slice_sizes": "slice_sizes",
    "custom_call_target": "call_target_name",
}  # fmt: skip
_SAME = frozenset(("copy", "opt-barrier", "optimization-barrier", "domain", "add-dependency", "copy-start"))
"""Operations whose result is their first operand."""
_CALLS = frozenset(("call", "fusion", "async-start"))


@dataclass(frozen=True)
class Shape:
    """The type of a value. leaves: of an array its type alone. counts: for each element of a tuple, the number of its
    leaves; None for an array. order: dimensions of an array from the minor one on."""

    leaves: tuple[HloType, ...]
    counts: tuple[int, ...] | None = None
    elements: tuple[Shape, ...] = ()
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class Instruction:
    """A line of a computation. operands: names of values, of a constant its text. attributes: as they are written."""

    name: str
    shape: Shape
    code: str
    operands: tuple[str, ...]
    attributes: Mapping[str, str]
    place: int
    is_root: bool


def is_hlo(text: str) -> bool:
    """Return whether a text is HLO."""
    return text.lstrip().startswith(HEADER)


def read_hlo(text: str, file: str) -> HloModule:
    """Return the module of a text. file: its name in messages. Raise MspcError if it is no HLO."""
    return _HloReader(text, file).module()


def split_text(text: str) -> list[str]:
    """Return the parts of a text between commas that are outside of brackets and strings."""
    parts, depth, begin = list[str](), 0, 0
    masked = _QUOTED.sub(lambda found: "_" * len(found[0]), text)
    for match in re.finditer(r"[({\[\])},]", masked):
        sign, at = match[0], match.start()
        if sign in _OPENING:
            depth += 1
        elif sign in _CLOSING:
            depth -= 1
        elif depth == 0:
            parts.append(text[begin:at].strip())
            begin = at + 1
    last = text[begin:].strip()
    return [*parts, last] if last else parts


def end_of_group(text: str, begin: int) -> int:
    """Return the offset behind the bracket that closes the one at `begin`; -1 if none does."""
    depth, masked = 0, _QUOTED.sub(lambda found: "_" * len(found[0]), text)
    for match in re.finditer(r"[({\[\])}]", masked[begin:]):
        depth += 1 if match[0] in _OPENING else -1
        if depth == 0:
            return begin + match.end()
    return -1


def value_of(text: str) -> Any:
    """Return an attribute: a truth value, a number, a list of numbers, or a word."""
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    if re.fullmatch(r"\{[\d,\s-]*\}", text):
        return numbers_in(text)
    return text.strip('"')


def numbers_in(text: str) -> list[int]:
    """Return the integers of a text."""
    return [int(each) for each in re.findall(r"-?\d{1,18}", text)]


def groups_in(text: str) -> list[list[int]]:
    """Return groups of devices: `{{0,1},{2,3}}`, `[2,4]<=[8]` or `[4,2]<=[2,4]T(1,0)`. Raise ValueError for another
    text."""
    found = re.fullmatch(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text.replace(" ", ""))
    if found is None:
        return [numbers_in(each) for each in re.findall(r"\{([\d,\s]*)\}", text[1:-1])]
    shape, mesh = numbers_in(found[1]), numbers_in(found[2])
    order = numbers_in(found[3]) if found[3] else list(range(len(mesh)))
    strides = [1]
    for size in reversed(mesh[1:]):
        strides.insert(0, strides[0] * size)
    if sorted(order) != list(range(len(mesh))) or len(shape) != 2 or shape[0] * shape[1] != strides[0] * mesh[0]:
        raise ValueError(f"{text:.60} is no list of groups")
    flat = [sum(place * strides[d] for place, d in zip(places, order, strict=True))
            for places in itertools.product(*(range(mesh[d]) for d in order))]  # fmt: skip
    return [flat[k : k + shape[1]] for k in range(0, len(flat), shape[1])]


class _HloReader:
    """Reads one text. Its methods raise MspcError at the line of a mistake."""

    def __init__(self, text: str, file: str) -> None:
        self.text, self.file = text, file
        self.empty = HloModule(file, text, {}, {}, {})
        self.computations: dict[str, list[Instruction]] = {}
        self.functions: dict[str, HloFunction] = {}
        self.main = ""
        self.header: dict[str, str] = {}
        self.tables: dict[str, dict[int, str]] = {}
        self.shapes: dict[str, Shape] = {}
        self.working: list[str] = []

    def fail(self, message: str, place: int) -> NoReturn:
        raise MspcError(f"{self.file} is no text of HLO: {message}", self.empty.location(place), code="E0116")

    def module(self) -> HloModule:
        place, table = 0, ""
        instructions: list[Instruction] | None = None
        for line in self.text.splitlines(keepends=True):
            begin, place = place, place + len(line)
            line = _COMMENT.sub("", line.rstrip())
            found = _COMPUTATION.match(line)
            if line.startswith(HEADER):
                parts = split_text(line)
                self.header = dict(each.split("=", 1) for each in parts if "=" in each)
            elif found is not None and not line.startswith(" "):
                name = found[2]
                instructions = self.computations[name] = []
                self.main = name if found[1] else self.main
            elif instructions is not None and line.strip():
                if line.strip() == "}":
                    instructions = None
                else:
                    instructions.append(self.instruction(line, begin))
            elif line.isidentifier():
                table = line
            elif _TABLE.match(line):
                self.tables.setdefault(table, {})[int(line.split(" ")[0])] = line
        if not self.main:
            self.fail("it has no entry computation", 0)
        for name in self.computations:
            self.function(name)
        functions = dict(self.functions)
        functions["main"] = main = functions.pop(self.main)
        shardings = self.header.get("spmd_output_sharding", "")
        if shardings:
            own = split_text(shardings[1:-1]) if shardings.startswith("{{") else [shardings]
            main.result_attributes = [{"mhlo.sharding": each} for each in own]
        attributes = {f"mhlo.num_{name}": value_of(self.header.get(key, "1")) for name, key in (
            ("partitions", "num_partitions"), ("replicas", "replica_count"))}  # fmt: skip
        return HloModule(self.file, self.text, functions, attributes, {})

    # Lines.

    def shape(self, text: str, place: int, depth: int = 0) -> Shape:
        """Return the shape that a text contains."""
        known = self.shapes.get(text)
        if known is not None:
            return known
        if text.startswith("("):
            if depth > _DEEPEST:
                self.fail("tuples are nested too deeply", place)
            elements = tuple(self.shape(each, place, depth + 1) for each in split_text(text[1:-1]))
            leaves = tuple(leaf for each in elements for leaf in each.leaves)
            made = Shape(leaves, tuple(len(each.leaves) for each in elements), elements)
        else:
            found = _ARRAY.fullmatch(text)
            if found is None:
                self.fail(f"{text!r:.60} is no shape", place)
            made = self.array(found, text)
        self.shapes[text] = made
        return made

    def array(self, found: re.Match[str], text: str) -> Shape:
        sizes = [number_of(each.strip(), LARGEST_SIZE) for each in found[2].split(",")] if found[2] else []
        name = found[1]
        short = _ELEMENTS.get(name) or re.sub(r"^s(?=\d)", "i", re.sub(r"^u(?=\d)", "ui", name))
        dtype = ELEMENT_TYPES.get(short)
        order = tuple(numbers_in(found[3])) if found[3] else tuple(reversed(range(len(sizes))))
        if name == "token":
            return Shape((), ())
        if dtype is None or None in sizes or len(sizes) > MOST_DIMENSIONS:
            return Shape((OtherType(text),))
        shape = tuple(size for size in sizes if size is not None)
        if is_too_large(shape):
            return Shape((OtherType(text),))
        return Shape((TensorType(dtype, shape),), None, (), order if len(order) == len(shape) else ())

    def instruction(self, line: str, place: int) -> Instruction:
        found = _INSTRUCTION.match(line)
        if found is None:
            self.fail("expected an instruction as in '%x = f32[2] add(%a, %b)'", place)
        begin = found.end()
        end = end_of_group(line, begin) if line[begin : begin + 1] == "(" else line.find(" ", begin)
        opening = line.find("(", end)
        close = end_of_group(line, opening) if end > 0 and opening > 0 else -1
        if close < 0:
            self.fail("an instruction has no operands in parentheses", place)
        shape = self.shape(line[begin:end], place)
        code = line[end:opening].strip()
        inside = line[opening + 1 : close - 1]
        operands = (inside,) if code in ("constant", "parameter") else tuple(
            each.split(" ")[-1].lstrip("%") for each in split_text(inside))  # fmt: skip
        attributes = dict(each.split("=", 1) for each in split_text(line[close:].lstrip(", ")) if "=" in each)
        return Instruction(found[2], shape, code, operands, attributes, place + found.start(2), found[1] is not None)

    def origin(self, text: str) -> HloOrigin | None:
        """Return the line and the name in metadata."""
        fields = {name: string or number for name, string, number in _METADATA.findall(text)}
        frames: list[Location] = []
        if "source_file" in fields:
            line, column = (number_of(fields.get(f"source_{each}", ""), 1 << 31) or 0 for each in ("line", "column"))
            frames.append(Location(fields["source_file"], line, column))
        frame = fields.get("stack_frame_id", "")
        while frame and len(frames) < _DEEPEST:
            entry = self.table("StackFrames", frame)
            where = self.table("FileLocations", entry.get("file_location_id", ""))
            name = self.tables.get("FileNames", {}).get(int(where.get("file_name_id", "0")), "").partition(" ")[2]
            if not name:
                break
            frames.append(Location(name.strip('"'), int(where.get("line", "0")), int(where.get("column", "0"))))
            parent = entry.get("parent_frame_id", "")
            frame = parent if parent != frame else ""
        name = fields.get("op_name", "")
        return HloOrigin(tuple(frames), name) if frames or name else None

    def table(self, name: str, number: str) -> dict[str, str]:
        """Return the numbers of an entry of a table of places."""
        text = self.tables.get(name, {}).get(int(number) if number else 0, "")
        return {key: number for key, _, number in _METADATA.findall(text)}

    # Computations.

    def function(self, name: str, place: int = 0) -> HloFunction:
        """Return a computation as a function."""
        name = name.lstrip("%")
        if name in self.functions:
            return self.functions[name]
        if name not in self.computations:
            self.fail(f"there is no computation {name!r:.60}", place)
        if name in self.working or len(self.working) > _DEEPEST:
            self.fail(f"computations call each other deeper than {_DEEPEST}, or {name!r:.60} calls itself", place)
        self.working.append(name)
        made = _Computation(self, self.computations[name]).function(name)
        self.working.pop()
        self.functions[name] = made
        return made


class _Computation:
    """Makes the operations of one computation. values: (shape, names of leaves) of each value."""

    def __init__(self, reader: _HloReader, instructions: Sequence[Instruction]) -> None:
        self.reader, self.instructions = reader, instructions
        self.values: dict[str, tuple[Shape, list[str]]] = {}
        self.region = HloRegion()
        self.names = (f"%_{number}" for number in itertools.count())

    def function(self, name: str) -> HloFunction:
        """Return the function."""
        place = self.instructions[0].place if self.instructions else 0
        made = HloFunction(name, place)
        made.body = self.region
        parameters = [each for each in self.instructions if each.code == "parameter"]
        try:
            parameters.sort(key=lambda each: int(each.operands[0]))
        except ValueError:
            self.reader.fail("a parameter has no number", place)
        for each in parameters:
            leaves = self.named(each)
            self.region.arguments += leaves
            self.region.types += each.shape.leaves
            sharding = each.attributes.get("sharding")
            origin = self.reader.origin(each.attributes.get("metadata", ""))
            made.argument_attributes += [{"mhlo.sharding": sharding} if sharding else {} for _ in leaves]
            made.origins += [origin for _ in leaves]
        root = next((each for each in self.instructions if each.is_root), None)
        if root is None:
            self.reader.fail(f"computation {name!r:.60} has no root", place)
        for each in self.instructions:
            if each.code != "parameter":
                self.add(each)
        last = HloOperation("stablehlo.return", root.place)
        last.operands = self.values[root.name][1]
        made.result_types = last.operand_types = list(root.shape.leaves)
        made.result_attributes = [{} for _ in made.result_types]
        self.region.operations.append(last)
        return made

    def named(self, each: Instruction, shape: Shape | None = None) -> list[str]:
        """Return names for the leaves of an instruction, by which others read it."""
        shape = shape or each.shape
        count = len(shape.leaves)
        leaves = [f"%{each.name}"] if shape.counts is None else [f"%{each.name}#{n}" for n in range(count)]
        self.values[each.name] = shape, leaves
        return leaves

    def of(self, each: Instruction, at: int = 0) -> tuple[Shape, list[str]]:
        """Return the shape and the leaves of an operand."""
        name = each.operands[at] if at < len(each.operands) else ""
        if name not in self.values:
            self.reader.fail(f"{name!r:.60} is read, which nothing before it gives", each.place)
        return self.values[name]

    def add(self, each: Instruction) -> None:
        """Add the operations of an instruction."""
        code = each.code
        if code == "tuple":
            leaves = [leaf for at in range(len(each.operands)) for leaf in self.of(each, at)[1]]
            self.values[each.name] = each.shape, leaves
        elif code == "get-tuple-element":
            shape, leaves = self.of(each)
            at = value_of(each.attributes.get("index", ""))
            if shape.counts is None or not isinstance(at, int) or not 0 <= at < len(shape.counts):
                self.reader.fail("there is no such element", each.place)
            begin = sum(shape.counts[:at])
            self.values[each.name] = shape.elements[at], leaves[begin : begin + shape.counts[at]]
        elif code == "after-all":
            self.values[each.name] = each.shape, []
        elif code in _SAME or code.endswith("-done"):
            shape, leaves = self.of(each)
            self.values[each.name] = each.shape if len(each.shape.leaves) == len(leaves) else shape, leaves
        elif code == "bitcast":
            self.bitcast(each)
        else:
            self.operation(each)

    def made(self, each: Instruction, name: str, operands: Sequence[str], types: Sequence[HloType]) -> HloOperation:
        """Return a new operation of the region."""
        made = HloOperation(name, each.place)
        made.operands, made.types = list(operands), list(types)
        made.origin = self.reader.origin(each.attributes.get("metadata", ""))
        self.region.operations.append(made)
        return made

    def bitcast(self, each: Instruction) -> None:
        """Read the same bits in another shape: elements follow each other in the order of both layouts."""
        shape, (name, *_) = self.of(each)
        (source,), (target,) = shape.leaves[:1], each.shape.leaves[:1]
        if not (isinstance(source, TensorType) and isinstance(target, TensorType)):
            self.reader.fail("a bitcast is of no array", each.place)
        if source.dtype != target.dtype:
            self.made(each, "stablehlo.bitcast_convert", [name], [target]).results = self.named(each)
            return
        before, after = (tuple(reversed(x.order or range(t.rank)[::-1])) for x, t in (
            (shape, source), (each.shape, target)))  # fmt: skip
        dtype, chain = source.dtype, list[tuple[str, tuple[int, ...], tuple[int, ...]]]()
        if before != tuple(range(source.rank)):
            chain.append(("transpose", tuple(source.shape[d] for d in before), before))
        major = tuple(target.shape[d] for d in after)
        chain.append(("reshape", major, ()))
        if after != tuple(range(target.rank)):
            chain.append(("transpose", target.shape, tuple(after.index(d) for d in range(target.rank))))
        for kind, sizes, order in chain:
            made = self.made(each, f"stablehlo.{kind}", [name], [TensorType(dtype, sizes)])
            made.attributes["permutation"] = list(order)
            name = next(self.names) if (kind, sizes, order) != chain[-1] else f"%{each.name}"
            made.results = [name]
        self.named(each)

    def operation(self, each: Instruction) -> None:
        """Add the operation of StableHLO for an instruction."""
        code, reader = each.code, self.reader
        shape = each.shape
        if code.endswith("-start") and code not in _CALLS:
            code = code.removesuffix("-start")
            if code in ("all-gather", "collective-permute") and len(shape.elements) > 1:
                shape = shape.elements[1]  # after the operand
        if code == "async-start" and len(shape.elements) > 1:
            shape = shape.elements[1]
        operands = [] if code == "constant" else [
            leaf for at in range(len(each.operands)) for leaf in self.of(each, at)[1]]  # fmt: skip
        name = _RENAMED.get(code, code.replace("-", "_"))
        name = name if name.startswith("chlo.") else f"stablehlo.{name}"
        made = self.made(each, "func.call" if code in _CALLS else name, operands, shape.leaves)
        try:
            self.fill(each, code, made)
        except (ValueError, IndexError) as error:
            reader.fail(f"{each.code}: its attributes do not fit each other ({error})"[:200], each.place)
        made.results = self.named(each, shape)

    def fill(self, each: Instruction, code: str, made: HloOperation) -> None:
        """Give an operation its attributes and regions."""
        texts = each.attributes
        for key, text in texts.items():
            if key in _FORMS:
                _FORMS[key](made, text, code)
            elif key not in ("metadata", "sharding", "backend_config", "frontend_attributes"):
                made.attributes[_ATTRIBUTES.get(key, key)] = value_of(text)
        if code == "constant":
            made.attributes["value"] = self.elements(each)
        elif code in _CALLS:
            name = texts.get("to_apply") or texts.get("calls", "")
            self.reader.function(name, each.place)
            made.attributes["callee"] = SymbolReference(self.reader.functions[name.lstrip("%")].name)
        elif code == "while":
            made.regions = [self.body(each, key) for key in ("condition", "body")]
        elif code == "conditional":
            self.branches(each, made)
        elif code == "select-and-scatter":
            made.regions = [self.body(each, key) for key in ("select", "scatter")]
        elif "to_apply" in texts:
            made.regions = [self.body(each, "to_apply")]

    def body(self, each: Instruction, key: str) -> HloRegion:
        """Return the region of a computation that an attribute names."""
        return self.reader.function(each.attributes.get(key, ""), each.place).body

    def branches(self, each: Instruction, made: HloOperation) -> None:
        """Make the branches of a conditional, each of which calls a computation with its operand."""
        texts = each.attributes
        is_two = "true_computation" in texts
        names = [texts["true_computation"], texts.get("false_computation", "")] if is_two else split_text(
            texts.get("branch_computations", "{}")[1:-1])  # fmt: skip
        made.name = "stablehlo.if" if is_two else "stablehlo.case"
        made.operands = self.of(each)[1]
        for at, name in enumerate(names):
            self.reader.function(name, each.place)
            call, last = HloOperation("func.call", each.place), HloOperation("stablehlo.return", each.place)
            call.attributes["callee"] = SymbolReference(name.lstrip("%"))
            call.operands, call.types = self.of(each, at + 1)[1], list(each.shape.leaves)
            call.origin = made.origin
            call.results = last.operands = [next(self.names) for _ in call.types]
            region = HloRegion()
            region.operations = [call, last]
            made.regions.append(region)

    def elements(self, each: Instruction) -> Dense:
        """Return the elements of a constant."""
        text = each.operands[0].strip()
        if "..." in text:
            raise MspcError(
                f"{self.reader.file} leaves out elements of the constant {each.name}",
                self.reader.empty.location(each.place),
                ["write them: XLA_FLAGS=--xla_dump_large_constants, or read the .hlo.pb beside it"], code="E0116",
            )  # fmt: skip
        return Dense(f"dense<{text.replace('{', '[').replace('}', ']')}>")


def _dimensions(made: HloOperation, text: str, code: str) -> None:
    name = _DIMENSIONS.get(code, "dimensions")
    found = numbers_in(text)
    made.attributes[name] = found[0] if name in _OF_ONE else found
    if code == "all-to-all":
        made.attributes["concat_dimension"] = found[0]


_OF_ONE = frozenset(("dimension", "all_gather_dim", "scatter_dimension", "split_dimension"))


def _window(made: HloOperation, text: str, code: str) -> None:
    """Read `{size=3x3 stride=2x2 pad=0_1x0_1 lhs_dilate=.. rhs_dilate=.. rhs_reversal=..}`."""
    fields = dict(each.split("=", 1) for each in text.strip("{}").split())
    is_convolution = code == "convolution"
    base, apart = ("lhs_dilation", "rhs_dilation") if is_convolution else ("base_dilations", "window_dilations")
    names = {"size": "window_dimensions", "stride": "window_strides", "lhs_dilate": base, "rhs_dilate": apart}
    for key, name in names.items():
        if key in fields:
            made.attributes[name] = [int(n) for n in fields[key].split("x")]
    if "pad" in fields:
        made.attributes["padding"] = [[int(n) for n in pair.split("_")] for pair in fields["pad"].split("x")]
    if "rhs_reversal" in fields:
        made.attributes["window_reversal"] = [n != "0" for n in fields["rhs_reversal"].split("x")]


def _padding(made: HloOperation, text: str, code: str) -> None:
    """Read `low_high_interior` for each dimension."""
    rows = [[*map(int, each.split("_")), 0][:3] for each in text.split("x")] if text else []
    for at, name in enumerate(("edge_padding_low", "edge_padding_high", "interior_padding")):
        made.attributes[name] = [row[at] for row in rows]


def _labels(made: HloOperation, text: str, code: str) -> None:
    """Read `b01f_01io->b01f`."""
    parts = re.split(r"_|->", text)
    made.attributes["dim_numbers"] = tuple([int(c) if c.isdigit() else c for c in part] for part in parts)


def _slice(made: HloOperation, text: str, code: str) -> None:
    """Read `{[0:4], [2:8:2]}`."""
    made.entries.append([tuple(map(int, each.split(":"))) for each in re.findall(r"\[([\d:]+)\]", text)])


def _pair(name: str, at: int) -> Callable[[HloOperation, str, str], None]:
    def form(made: HloOperation, text: str, code: str) -> None:
        pair = made.attributes.get(name, ([], []))
        made.attributes[name] = tuple(numbers_in(text) if k == at else each for k, each in enumerate(pair))

    return form


def _groups(made: HloOperation, text: str, code: str) -> None:
    made.attributes["replica_groups"] = groups_in(text)


def _pairs(made: HloOperation, text: str, code: str) -> None:
    found = numbers_in(text)
    made.attributes["source_target_pairs"] = [list(each) for each in zip(found[::2], found[1::2], strict=True)]


_FORMS: Mapping[str, Callable[[HloOperation, str, str], None]] = {
    "dimensions": _dimensions, "window": _window, "padding": _padding, "dim_labels": _labels, "slice": _slice,
    "lhs_batch_dims": _pair("batching_dims", 0), "rhs_batch_dims": _pair("batching_dims", 1),
    "lhs_contracting_dims": _pair("contracting_dims", 0), "rhs_contracting_dims": _pair("contracting_dims", 1),
    "replica_groups": _groups, "source_target_pairs": _pairs,
}  # fmt: skip
"""Functions that read attributes which StableHLO has in another form."""
