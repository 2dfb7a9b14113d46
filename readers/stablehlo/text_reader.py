"""Reading of MLIR text: a module of StableHLO, CHLO and Shardy operations in pretty or generic form.

One pass over the tokens. Operations are read by one grammar, whatever their kind: operands, words, attributes with and
without names, regions and types, in any order. `kinds/` says which of them a kind has.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from mspc.ir.diagnostics import Location, MspcError
from mspc.ir.files.regular import check_regular
from mspc.ir.text.limits import LARGEST_SIZE, MAX_DIMENSIONS, number_of
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
    Words,
)

TOKEN = re.compile(
    r"""(?:\s|//[^\n]*+)*+(?:
    (%[\w.$-]++(?:\#\d++)?+
    |tensor<[^<>"\n]*+(?:<[^<>"\n]*+>)?+[^<>"\n]*+>
    |loc\(\#[\w.]++\)
    |dense(?:_resource)?<(?:"0x[0-9A-Fa-f]*+"|[^<>"]*+)>
    |"(?:[^"\\\n]|\\.)*+"
    |@(?:[\w.$-]++|"[^"\n]*+")
    |[\#!^][\w.$]++
    |->|\{-\#|\#-\}
    |-?0x[0-9A-Fa-f]++|-?\d++(?:\.\d*+)?+(?:[eE][+-]?\d++)?+
    |[A-Za-z_][\w.$]*+
    |\S)|$)""",
    re.VERBOSE,
)
PLACE = re.compile(r'"((?:[^"\\\n]|\\.)*+)"(?::(\d+):(\d+))?+|(\#[\w.]+)')
"""A line of a file, a name, or an alias in the text of a place; callers follow their callees."""
TENSOR = re.compile(r"tensor<((?:(?:\d++|\?)x)*+)([^,\s]+?)(?:,.*)?>")
RESOURCE = re.compile(r'([\w.$-]+)\s*:\s*"0x([0-9A-Fa-f]*)"')
DEEPEST = 48
"""Brackets and regions inside of each other."""
NUMBER = re.compile(r"-?(?:0x[0-9A-Fa-f]+|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)")
_CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}
_MAX_DIGITS = 40
_MAX_FRAMES = 128


def read_module(path: Path) -> HloModule:
    """Return the module in a file. Raise MspcError if there is none, or it is no text of StableHLO."""
    try:
        check_regular(path)
        content = path.read_bytes()
    except OSError as error:
        raise MspcError(f"cannot read {path}: {error.strerror}") from None
    if content[:4] == b"ML\xefR":
        raise MspcError(
            f"{path} is bytecode of MLIR, which mspc does not read", code="E0701",
            notes=["write the text: print(lowered.as_text(debug_info=True)), or exported.mlir_module()"],
        )  # fmt: skip
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise MspcError(f"{path} is no text in UTF-8", code="E0116") from None
    return read_text(text, str(path))


def read_text(text: str, file: str) -> HloModule:
    """Return the module of a text. file: its name in messages. Raise MspcError if it is none of StableHLO."""
    was_enabled = gc.isenabled()
    gc.disable()  # nothing that is read is garbage, and looking for some takes longer than reading
    try:
        return _TextReader(text, file).module()
    finally:
        if was_enabled:
            gc.enable()


class _TextReader:
    """Reads one text. Its methods raise MspcError at the line and column of a mistake."""

    def __init__(self, text: str, file: str) -> None:
        self.text, self.file = text, file
        self.tokens: list[str] = []
        self.starts: list[int] = []
        resources = text.find("{-#")
        end = len(text) if resources < 0 else resources
        add_token, add_start = self.tokens.append, self.starts.append
        for match in TOKEN.finditer(text, 0, end):
            token = match[1]
            if token is not None:
                add_token(token)
                add_start(match.start(1))
        self.resources = dict(RESOURCE.findall(text, end))
        self.tokens += [""] * 3  # an end that may be looked past
        self.starts += [end] * 3
        self.at = 0
        self.depth = 0
        self.types: dict[str, HloType] = {}
        self.aliases: dict[str, Any] = {}
        self.origins: dict[str, str | None] = {}
        self.places: dict[str, HloOrigin | None] = {}
        self.functions: dict[str, HloFunction] = {}
        self.meshes: dict[str, list[tuple[str, int]]] = {}
        self.attributes: dict[str, Any] = {}
        self.argument_origins: dict[int, list[Any]] = {}
        """Places of the arguments of regions, by the regions' identities."""

    # Tokens.

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        place = self.starts[min(self.at if at is None else at, len(self.starts) - 1)]
        empty = HloModule(self.file, self.text, {}, {}, {})
        raise MspcError(f"{self.file} is no text of StableHLO: {message}", empty.location(place), code="E0116")

    def expect(self, token: str) -> None:
        found = self.tokens[self.at]
        if found != token:
            self.fail(f"expected {token!r}, not {found!r:.60}" if found else f"it ends where {token!r} is expected")
        self.at += 1

    def taken(self, token: str) -> bool:
        """Pass over a token if it is the next one, and return whether it was."""
        if self.tokens[self.at] == token:
            self.at += 1
            return True
        return False

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            self.fail(f"brackets are nested deeper than {DEEPEST}")

    def listed(self, opening: str, one: Callable[[], Any]) -> list[Any]:
        """Return the entries between brackets, separated by commas."""
        self.expect(opening)
        self.deeper()
        closing, found = _CLOSING[opening], list[Any]()
        while self.tokens[self.at] != closing:
            found.append(one())
            if not self.taken(",") and self.tokens[self.at] != closing:
                self.fail(f"expected ',' or {closing!r}, not {self.tokens[self.at]!r:.60}")
        self.at += 1
        self.depth -= 1
        return found

    # The module.

    def module(self) -> HloModule:
        while self.tokens[self.at]:
            token = self.tokens[self.at]
            if token == '"builtin.module"':
                self.generic_module(self.operation())
            elif token in ("module", "builtin.module"):
                self.at += 1
                if self.tokens[self.at][:1] == "@":
                    self.at += 1
                if self.taken("attributes"):
                    self.attributes.update(self.dictionary())
                self.expect("{")
                while not self.taken("}"):
                    self.definition()
                self.location()
            else:
                self.definition()
        if not self.functions:
            self.fail("it has no function")
        for function in self.functions.values():
            function.origins = [self.resolved(each) for each in function.origins]
            for operation in function.body.all_operations():
                operation.origin = self.resolved(operation.origin)
        return HloModule(self.file, self.text, self.functions, self.attributes, self.meshes, self.resources)

    def generic_module(self, operation: HloOperation) -> None:
        """Take functions and meshes from a module in generic form."""
        self.attributes.update(operation.attributes)
        for each in operation.regions[0].operations if operation.regions else ():
            name = each.attributes.get("sym_name")
            if not isinstance(name, str):
                self.fail(f"{each.name} has no name")
            if each.name == "sdy.mesh" and isinstance(each.attributes.get("mesh"), Words):
                self.meshes[name] = self.axes_of(name, each.attributes["mesh"])
            elif each.name == "func.func" and each.regions:
                made = self.functions[name] = HloFunction(name, each.place)
                made.body = each.regions[0]
                made.origins = self.argument_origins.get(id(made.body), [None] * len(made.body.arguments))
                attributes = [each.attributes.get(f"{kind}_attrs") or [] for kind in ("arg", "res")]
                made.argument_attributes = attributes[0] or [{} for _ in made.body.arguments]
                last = made.body.operations[-1] if made.body.operations else None
                made.result_types = last.operand_types if last is not None else []
                made.result_attributes = attributes[1] or [{} for _ in made.result_types]

    def definition(self) -> None:
        """Read a function, a mesh or an alias."""
        token = self.tokens[self.at]
        if token == "func.func" or token == "func":
            self.function()
        elif token == "sdy.mesh":
            self.mesh()
        elif token[:1] in ("#", "!") and self.tokens[self.at + 1] == "=":
            self.at += 2
            if token[0] == "#" and self.tokens[self.at].startswith("loc"):
                self.origins[token] = self.location()
            else:
                self.aliases[token] = self.type() if token[0] == "!" else self.attribute()
        else:
            self.fail(f"expected a function, a mesh or an alias, not {token!r:.60}" if token else "it ends in a module")

    def mesh(self) -> None:
        self.at += 1
        name = self.symbol()
        self.expect("=")
        self.meshes[name] = self.axes_of(name, self.angles("sdy.mesh"))
        self.braced_attributes()
        self.location()

    def axes_of(self, name: str, value: Words) -> list[tuple[str, int]]:
        """Return the names and sizes of a mesh's axes."""
        axes: list[tuple[str, int]] = []
        for each in value.entries[0] if value.entries and isinstance(value.entries[0], list) else ():
            if not (isinstance(each, tuple) and len(each) == 2 and isinstance(each[1], int) and each[1] > 0):
                self.fail(f"axes of mesh @{name} have no sizes")
            axes.append((str(each[0]), each[1]))
        ids = value.fields.get("device_ids")
        if ids is not None and ids != list(range(len(ids))):
            self.fail(f"mesh @{name} orders its devices otherwise than by number, which mspc does not read")
        return axes

    def function(self) -> None:
        start = self.at
        self.at += 1
        while self.tokens[self.at] in ("public", "private", "nested"):
            self.at += 1
        function = HloFunction(self.symbol(), self.starts[start])
        if function.name in self.functions:
            self.fail(f"there are two functions @{function.name}", start)
        found = self.arguments(function.body)
        function.argument_attributes = [attributes for _, _, attributes, _ in found]
        function.origins = [origin for _, _, _, origin in found]
        if self.taken("->"):
            found = self.listed("(", self.result) if self.tokens[self.at] == "(" else [(self.type(), {}, None)]
            function.result_types = [type for type, _, _ in found]
            function.result_attributes = [attributes for _, attributes, _ in found]
        if self.taken("attributes"):
            self.dictionary()
        if self.tokens[self.at] == "{":
            self.block(function.body)
            self.functions[function.name] = function
        self.location()

    def argument(self) -> tuple[str, HloType, dict[str, Any], Any]:
        """Return an argument of a function or a block: name, type, attributes, origin."""
        name = self.tokens[self.at]
        if name[:1] != "%":
            self.fail(f"expected an argument as in '%arg0: tensor<f32>', not {name!r:.60}")
        self.at += 1
        self.expect(":")
        return name, *self.result()

    def result(self) -> tuple[HloType, dict[str, Any], Any]:
        """Return a result of a function: type, attributes, origin."""
        return self.type(), self.braced_attributes(), self.location()

    def symbol(self) -> str:
        token = self.tokens[self.at]
        if token[:1] != "@":
            self.fail(f"expected a name that begins with @, not {token!r:.60}")
        self.at += 1
        return token[1:].strip('"')

    # Types.

    def type(self) -> HloType:
        token = self.tokens[self.at]
        known = self.types.get(token)
        if known is not None:
            self.at += 1
            return known
        if token == "(":  # a function
            self.signature()
            return OtherType("a function")
        if token == "tuple" and self.tokens[self.at + 1] == "<":
            self.at += 1
            inner = self.listed("<", self.type)
            return OtherType(f"tuple<{', '.join(map(str, inner))}>")
        if token[:1] == "!":
            self.at += 1
            found = self.aliases.get(token)
            if found is not None:
                return found
            if self.tokens[self.at] == "<":
                self.angles(token)
            return OtherType(token)
        if not token or not (token[0].isalpha()):
            self.fail(f"expected a type, not {token!r:.60}")
        made = self.types[token] = self.tensor_type(token)
        self.at += 1
        return made

    def tensor_type(self, token: str) -> HloType:
        if not token.startswith("tensor<"):
            return TensorType(ELEMENT_TYPES[token], ()) if token in ELEMENT_TYPES else OtherType(token)
        found = TENSOR.fullmatch(token)
        sizes = found[1].split("x")[:-1] if found else []
        shape = [number_of(size, LARGEST_SIZE) for size in sizes]
        if found is None or any(size is None for size, text in zip(shape, sizes, strict=True) if text != "?"):
            self.fail(f"{token!r:.60} is no type")
        dtype = ELEMENT_TYPES.get(found[2])
        if dtype is None or None in shape or len(shape) > MAX_DIMENSIONS:
            return OtherType(token)
        made = TensorType(dtype, tuple(n for n in shape if n is not None))
        if is_too_large(made.shape):
            self.fail(f"{token!r:.60} has more elements than any memory holds")
        return made

    def signature(self) -> tuple[list[HloType], list[HloType]]:
        """Return the types of operands and of results: `(t, t) -> t`."""
        operands = self.listed("(", self.type)
        self.expect("->")
        return operands, self.one_or_several_types()

    def one_or_several_types(self) -> list[HloType]:
        return self.listed("(", self.type) if self.tokens[self.at] == "(" else [self.type()]

    # Attributes.

    def dictionary(self) -> dict[str, Any]:
        """Return the attributes between braces; one without a value is True."""
        return dict(self.listed("{", self.named))

    def braced_attributes(self) -> dict[str, Any]:
        """Return the attributes of a dictionary if one comes next; none otherwise."""
        return self.dictionary() if self.tokens[self.at] == "{" else {}

    def named(self) -> tuple[str, Any]:
        name = self.tokens[self.at].strip('"')
        if not name or not (name[0].isalpha() or name[0] == "_"):
            self.fail(f"expected the name of an attribute, not {name!r:.60}")
        self.at += 1
        return name, self.attribute() if self.taken("=") else True

    def attribute(self) -> Any:
        """Return the value of an attribute. Numbers lose their types."""
        token = self.tokens[self.at]
        first = token[:1]
        if first == "[":
            return self.chain(self.listed("[", self.element))
        if first == '"':
            self.at += 1
            return self.typed(unescaped(token))
        if first == "{":
            return self.braces()
        if first == "<":
            return self.angles("")
        if first == "@":
            name = self.symbol()
            while self.taken(":"):
                self.expect(":")
                self.symbol()
            return SymbolReference(name)
        if first == "#":
            self.at += 1
            if self.tokens[self.at] == "<":
                return self.angles(token[1:])
            return self.aliases.get(token, Words(token[1:], (), {}))
        if token.startswith("dense"):
            self.at += 1
            return self.typed(Dense(token)) if token != "dense" else self.fail("a constant has no elements")
        if token == "array" and self.tokens[self.at + 1] == "<":
            self.at += 1
            return list(self.angles(token).entries[1:])  # after the element type
        if NUMBER.fullmatch(token):
            self.at += 1
            return self.typed(self.number(token))
        if token in ("true", "false"):
            self.at += 1
            return token == "true"
        if token == "(" or token.startswith(("tensor<", "tuple", "!")) or token in ELEMENT_TYPES:
            return self.type()
        if token == "dense_resource" or not token or not token[0].isalpha():
            self.fail(f"expected the value of an attribute, not {token!r:.60}")
        self.at += 1
        if self.tokens[self.at] == "<":
            return self.angles(token)
        return token

    def typed(self, value: Any) -> Any:
        """Pass over the type of a value."""
        if self.tokens[self.at] == ":" and self.tokens[self.at + 1] != ":":
            token = self.tokens[self.at + 1]
            is_tensor = token == "(" or token.startswith("tensor<")
            if not NUMBER.fullmatch(token) and (isinstance(value, Dense) or not is_tensor):
                self.at += 1  # neither the limit of a slice nor the type of an operation's result
                self.type()
        return value

    def number(self, token: str) -> int | float:
        if len(token) > _MAX_DIGITS:
            self.fail(f"the number {token:.20}... is too long")
        if re.fullmatch(r"-?\d+", token):
            return int(token)
        return int(token, 16) if "0x" in token else float(token)

    def element(self) -> Any:
        """Return an entry of a list: an attribute, `begin:end:step` of a slice, or an axis with its size."""
        if self.tokens[self.at] == "?":
            self.at += 1
            return "?"
        value = self.attribute()
        token = self.tokens[self.at]
        if token == ":" and isinstance(value, int):
            numbers = [value]
            while self.taken(":"):
                number = self.attribute()
                numbers.append(number if isinstance(number, int) else self.fail("a slice has no numbers"))
            return tuple(numbers)
        if token == "=" and isinstance(value, str):
            self.at += 1
            return value, self.attribute()
        if re.fullmatch(r"p\d+", token):  # the priority of a sharding
            self.at += 1
        return value

    def chain(self, first: list[Any]) -> Any:
        """Return a list, or a tuple of lists as in `[1] x [0]` and `[b, 0]x[i, o]->[b, 0]`."""
        found = [first]
        while self.tokens[self.at] in ("x", "->") and self.tokens[self.at + 1] == "[":
            self.at += 1
            found.append(self.listed("[", self.element))
        return first if len(found) == 1 else tuple(found)

    def braces(self) -> Any:
        """Return a dictionary, or the axes of a sharding: names, sub-axes (name, before, size), and "?"."""
        first, second = self.tokens[self.at + 1], self.tokens[self.at + 2]
        if first == "?" or (first[:1] == '"' and second != "="):
            return self.listed("{", self.axis)
        return self.dictionary()

    def axis(self) -> Any:
        token = self.tokens[self.at]
        self.at += 1
        if token == "?":
            return token
        if token[:1] != '"':
            self.fail(f"expected the name of an axis, not {token!r:.60}", self.at - 1)
        name = unescaped(token)
        if not self.taken(":"):
            return name
        self.expect("(")
        before = self.attribute()
        self.expect(")")
        return name, before, self.attribute()

    def angles(self, name: str) -> Words:
        """Return the content of `<...>`: entries with and without names."""
        self.expect("<")
        self.deeper()
        entries, fields = list[Any](), dict[str, Any]()
        while not self.taken(">"):
            token = self.tokens[self.at]
            if token in (",", ":", "->"):
                self.at += 1
            elif token == "(" and self.tokens[self.at + 1] == "[":  # the dimensions of a rule's operands
                entries.append(self.listed("(", self.element))
            elif token[:1].isalpha() and self.tokens[self.at + 1] == "=":
                self.at += 2
                fields[token] = self.attribute()
            else:
                entries.append(self.element())
        self.depth -= 1
        return Words(name, tuple(entries), fields)

    # Places in other sources.

    def location(self) -> str | None:
        """Pass over `loc(...)` if it comes next, and return its text; None if there is none."""
        token, begin, depth = self.tokens[self.at], self.starts[self.at], 1
        if token.startswith("loc("):
            self.at += 1
            return token
        if token != "loc" or self.tokens[self.at + 1] != "(":
            return None
        self.at += 2
        while depth and self.tokens[self.at]:
            depth += {"(": 1, ")": -1}.get(self.tokens[self.at], 0)
            self.at += 1
        if depth:
            self.expect(")")
        return self.text[begin : self.starts[self.at]]

    def resolved(self, place: str | None, depth: int = 0) -> HloOrigin | None:
        """Return the frames and the name of a place; each text is read once. None for an unknown place."""
        if place is None or depth > _MAX_FRAMES:
            return None
        if place not in self.places:
            frames, name = list[Location](), ""
            for text, line, column, alias in PLACE.findall(place):
                inner = self.resolved(self.origins.get(alias), depth + 1) if alias else None
                if inner is not None:
                    frames, name = frames + list(inner.frames), name or inner.name
                elif line:
                    frames.append(Location(text, number_of(line, 1 << 31) or 0, number_of(column, 1 << 31) or 0))
                else:
                    name = name or unescaped(f'"{text}"')
            self.places[place] = HloOrigin(tuple(frames[:_MAX_FRAMES]), name) if frames or name else None
        return self.places[place]

    # Operations.

    def block(self, region: HloRegion | None = None) -> HloRegion:
        """Read `{ operations }` into a region, a new one by default."""
        region = region or HloRegion()
        self.expect("{")
        self.deeper()
        if self.tokens[self.at][:1] == "^":
            self.at += 1
            if self.tokens[self.at] == "(":
                self.arguments(region)
            self.expect(":")
        tokens, operations, names = self.tokens, region.operations, {*region.arguments}
        while tokens[self.at] != "}":
            if tokens[self.at][:1] == "^":
                self.fail("a region has several blocks, which mspc does not read")
            start = self.at
            operations.append(self.operation())
            if not names.isdisjoint(operations[-1].results):
                self.fail(f"{tokens[start]} is defined twice", start)
            names.update(operations[-1].results)
        self.at += 1
        self.depth -= 1
        return region

    def arguments(self, region: HloRegion) -> list[tuple[str, HloType, dict[str, Any], Any]]:
        """Read the arguments of a region's block, and return them; see `argument`."""
        found = self.listed("(", self.argument)
        region.arguments = [name for name, _, _, _ in found]
        region.types = [type for _, type, _, _ in found]
        self.argument_origins[id(region)] = [origin for _, _, _, origin in found]
        return found

    def operation(self) -> HloOperation:
        """Read one operation."""
        tokens, start = self.tokens, self.at
        results: list[tuple[str, int]] = []
        while tokens[self.at][:1] == "%":
            name = tokens[self.at]
            self.at += 1
            count = 1
            if self.taken(":"):
                count = number_of(tokens[self.at], 1 << 16) or self.fail("expected the number of results")
                self.at += 1
            results.append((name, count))
            if not self.taken(","):
                self.expect("=")
                break
        token = tokens[self.at]
        if not token:
            self.fail("it ends inside of a region")
        is_generic = token[0] == '"'
        if not (is_generic or token[0].isalpha()):
            self.fail(f"expected an operation, not {token!r:.60}")
        self.at += 1
        made = HloOperation(token.strip('"'), self.starts[start])
        if is_generic:
            self.generic(made)
        else:
            self.pretty(made)
        made.origin = self.location()
        named = sum(count for _, count in results)
        if not (is_generic or named or made.operand_types):
            made.operand_types, made.types = made.types, []
        elif not is_generic and len(made.types) > named:  # `select`: the type of the condition comes first
            made.types = made.types[-named:]
        for name, count in results:
            made.results += [name] if count == 1 else [f"{name}#{n}" for n in range(count)]
        return made

    def generic(self, made: HloOperation) -> None:
        """Read `(operands) <{properties}> ({regions}) {attributes} : signature`."""
        made.operands = self.listed("(", self.operand)
        if self.tokens[self.at] == "<" and self.tokens[self.at + 1] == "{":
            self.at += 1
            made.attributes.update(self.dictionary())
            self.expect(">")
        if self.tokens[self.at] == "(":
            made.regions = self.listed("(", self.block)
        made.attributes.update(self.braced_attributes())
        self.expect(":")
        made.operand_types, made.types = self.signature()

    def operand(self) -> str:
        token = self.tokens[self.at]
        if token[:1] != "%":
            self.fail(f"expected a value, not {token!r:.60}")
        self.at += 1
        return token

    def pretty(self, made: HloOperation) -> None:
        """Read the parts of an operation up to its types, and the regions after them."""
        tokens, waiting = self.tokens, HloRegion()
        while True:
            at = self.at
            token = tokens[at]
            first = token[:1]
            if first == "%":
                made.operands.append(token)
                self.at += 1
            elif first == ",":
                self.at += 1
            elif first == ":":
                self.at += 1
                self.pretty_types(made)
                break
            elif first == "(":
                self.group(made, waiting)
            elif first == "{":
                if self.is_region():
                    made.regions.append(self.block(waiting))
                    waiting = HloRegion()
                else:
                    made.attributes.update(self.dictionary())
            elif first == "}" or not token or self.on_new_line(at):
                break
            elif first.isalpha() and not token.startswith(("dense", "array", "tensor<", "loc(")):
                self.at += 1
                if self.taken("="):
                    made.attributes[token] = self.attribute()
                else:
                    made.words.append(token)
            elif token.startswith("loc("):
                break
            elif first == "@":
                made.entries.append(SymbolReference(self.symbol()))
            elif token.startswith("dense"):
                self.at += 1  # the type that follows is that of the result
                made.entries.append(Dense(token))
            else:
                made.entries.append(self.attribute())
        self.pretty_regions(made, waiting)

    def on_new_line(self, at: int) -> bool:
        """Return whether a token is the first one of its line."""
        end = self.starts[at - 1] + len(self.tokens[at - 1])
        return self.tokens[at - 1] != "," and self.text.find("\n", end, self.starts[at]) >= 0

    def is_region(self) -> bool:
        """Return whether the next brace begins a region, not attributes."""
        first, second = self.tokens[self.at + 1], self.tokens[self.at + 2]
        return first[:1] in ("%", "^") or (first != "}" and second not in ("=", ",", "}"))

    def group(self, made: HloOperation, waiting: HloRegion) -> None:
        """Read a group in parentheses: operands, values of arguments (`%arg = %0`), or the arguments of a region."""
        if self.tokens[self.at + 1][:1] == "%" and self.tokens[self.at + 2] == ":":
            self.arguments(waiting)
            return

        def one() -> None:
            token = self.tokens[self.at]
            if token[:1] == "%":
                self.at += 1
                if self.taken("="):
                    waiting.arguments.append(token)
                    token = self.operand()
                made.operands.append(token)
                if self.taken("init"):
                    self.expect(":")
                    made.entries.append(len(made.operands))
                    made.operands.append(self.operand())
            else:
                name, value = self.named()
                made.attributes[name] = value

        self.listed("(", one)

    def pretty_types(self, made: HloOperation) -> None:
        """Read a signature, or types separated by commas."""
        if self.tokens[self.at] == "(":
            made.operand_types, made.types = self.signature()
            return
        made.types.append(self.type())
        while self.taken(","):
            made.types.append(self.type())
        if self.taken("->"):
            made.operand_types = made.types
            made.types = self.one_or_several_types()

    def pretty_regions(self, made: HloOperation, waiting: HloRegion) -> None:
        """Read the regions after the types of a loop (`cond {...} do {...}`) or a reduction."""
        arguments, waiting.arguments = waiting.arguments, []
        while self.tokens[self.at] in ("cond", "do", "reducer") or (self.tokens[self.at] == "attributes"):
            token = self.tokens[self.at]
            self.at += 1
            if token == "attributes":
                made.attributes.update(self.dictionary())
                continue
            region = HloRegion()
            region.arguments = list(arguments) if token != "reducer" else []
            region.types = list(made.types) if token != "reducer" else []
            pairs = [self.listed("(", self.argument) for _ in iter(lambda: self.tokens[self.at] == "(", False)]
            for group in pairs:
                for name, type, _, _ in group:
                    region.arguments.append(name)
                    region.types.append(type)
            if len(pairs) > 1:  # `(%a0, %b0) (%a1, %b1)` of several reduced operands: first all a, then all b
                region.arguments = region.arguments[::2] + region.arguments[1::2]
                region.types = region.types[::2] + region.types[1::2]
            made.regions.append(self.block(region))


_ESCAPE = re.compile(r"\\([0-9A-Fa-f]{2}|.)")


def unescaped(token: str) -> str:
    """Return the content of a string in quotes."""
    if "\\" not in token:
        return token[1:-1]
    return _ESCAPE.sub(lambda m: chr(int(m[1], 16)) if len(m[1]) == 2 else m[1], token[1:-1])
