"""Reading of an exported program's JSON: values, types, signature, graphs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from mspc.ir.diagnostics import Frames, Location, MspcError
from mspc.ir.files.parsing import entry, flag_in, list_in, object_in, parsed_json, text_in, whole_in
from mspc.readers.pytorch.archive import (
    LAYOUTS,
    MAX_DIMENSIONS,
    MEMORY_FORMATS,
    Archive,
    ProgramWeights,
    element_type,
    named,
    tagged,
    weights_of,
)
from mspc.readers.pytorch.exported_program import (
    Argument,
    ExportedGraph,
    ExportedNode,
    ExportedProgram,
    ExportedType,
    NodeResult,
    ProgramInput,
    ProgramOutput,
    Range,
    SymbolicSize,
    TensorPlace,
    parsed,
)
from mspc.readers.pytorch.kinds.aten_table import kind_of

FRAME = re.compile(r'^\s*File "(?P<file>[^"\n]*)", line (?P<line>\d{1,9})(?:, in .*)?$')
MAX_FRAMES = 256
REPEATED = re.compile(r"@\d+$")
"""The suffix of a module's path if it is called once more."""
_OLD_PATH = re.compile(r"\['?([^'\]]*)'?\]")


def frames_in(text: str) -> Frames:
    """Return the lines of a call stack as Python prints it, the innermost first. Lines that are none are passed
    over."""
    found: list[Location] = []
    file, number = "", 0
    for line in text.split("\n"):
        match = FRAME.match(line)
        if match is not None:
            if number:
                found.append(Location(file, number))
            file, number = match["file"], int(match["line"])
        elif number:
            found.append(Location(file, number, text=line.strip()))
            number = 0
    if number:
        found.append(Location(file, number))
    return tuple(found[: -MAX_FRAMES - 1 : -1])


def modules_in(text: str) -> tuple[str, tuple[str, ...]]:
    """Return (the path of the innermost module, the classes from the outermost one on) of
    `L__self__,,__main__.Net;L__self__fc,fc,torch.nn.modules.linear.Linear`."""
    path, classes = "", list[str]()
    for each in text.split(";"):
        parts = each.split(",")
        if len(parts) < 3 or parts[0].startswith("_empty_nn_module_stack"):
            continue
        path = _path(",".join(parts[1:-1]))
        classes.append(parts[-1].rpartition(".")[2])
    return path, tuple(classes)


def _path(text: str) -> str:
    """Return the path `layers.0.fc`, also from `L['self'].layers[0].fc` of older versions."""
    path = REPEATED.sub("", text).removeprefix("L['self']")
    return _OLD_PATH.sub(r".\1", path).strip(".")


def _float(content: Any, where: str) -> float:
    """Return a float; infinities and NaN may be words."""
    if content in ("Infinity", "-Infinity", "NaN"):
        return float(content)
    if isinstance(content, bool) or not isinstance(content, int | float):
        raise ValueError(f"{where} is {content!r:.60}, not a number")
    return float(content)


def _device(content: Any, where: str) -> TensorPlace:
    owner = object_in(content, where)
    kind, index = text_in(entry(owner, "type", where), where), owner.get("index")
    return TensorPlace(kind if index is None else f"{kind}:{whole_in(index, where)}")


def _complex(content: Any, where: str) -> complex:
    owner = object_in(content, where)
    return complex(_float(entry(owner, "real", where), where), _float(entry(owner, "imag", where), where))


def _custom(content: Any, where: str) -> NoReturn:
    raise ValueError(f"{where} is an object of TorchScript ({content!r:.80}), which cannot be read as data")


def _list_of(one: Callable[[Any, str], Argument]) -> Callable[[Any, str], Argument]:
    return lambda content, where: tuple(one(value, where) for value in list_in(content, where))


def _int(content: Any, where: str) -> int:
    return whole_in(content, where, -(1 << 63), (1 << 64) - 1)


NUMBERS: Mapping[str, Callable[[Any, str], int | float | bool]] = {
    "as_int": _int, "as_float": _float, "as_bool": flag_in,
}  # fmt: skip
PLAIN: Mapping[str, Callable[[Any, str], Argument]] = {
    "as_none": lambda content, where: None,
    **NUMBERS,
    **{f"{tag}s": _list_of(one) for tag, one in NUMBERS.items()},
    "as_int_lists": _list_of(_list_of(_int)),
    "as_float_lists": _list_of(_list_of(_float)),
    "as_string": text_in,
    "as_strings": _list_of(text_in),
    "as_operator": text_in,
    "as_complex": _complex,
    "as_scalar_type": element_type,
    "as_memory_format": lambda content, where: TensorPlace(named(content, MEMORY_FORMATS, where)),
    "as_layout": lambda content, where: TensorPlace(named(content, LAYOUTS, where)),
    "as_device": _device,
    "as_custom_obj": _custom,
}
"""Kinds of arguments that are data of their own."""


def plain_number(tag: str, content: Any, where: str) -> int | float | bool:
    """Return a number that no symbol is in. Raise ValueError if it is none."""
    if tag not in NUMBERS:
        raise ValueError(f"{where} is of kind {tag!r:.40}, not a number")
    return NUMBERS[tag](content, where)


QUALIFIED: Mapping[str, tuple[str, str]] = {
    "parameter": ("parameter", "parameter_name"),
    "buffer": ("buffer", "buffer_name"),
    "tensor_constant": ("constant", "tensor_constant_name"),
}
"""Kinds of inputs that the module has, and the entry with its name for them."""
TARGETS: Mapping[str, tuple[str, str]] = {
    "loss_output": ("loss", ""),
    "buffer_mutation": ("buffer_mutation", "buffer_name"),
    "parameter_mutation": ("parameter_mutation", "parameter_name"),
    "user_input_mutation": ("user_input_mutation", "user_input_name"),
    "gradient_to_parameter": ("gradient_to_parameter", "parameter_name"),
    "gradient_to_user_input": ("gradient_to_user_input", "user_input_name"),
}
"""Kinds of outputs other than the caller's, and the entry with the name of their target."""
TOKEN = "token"
"""The kind of inputs and outputs that order operators with effects."""
DEEPEST = 64
"""Containers inside of each other."""


def signature_of(
    module: dict[str, Any], graph: ExportedGraph
) -> tuple[tuple[ProgramInput, ...], tuple[ProgramOutput, ...]]:
    """Return the inputs and outputs of a graph as its module describes them. Raise ValueError if they do not fit each
    other."""
    owner = object_in(entry(module, "signature", "its module"), "its signature")
    outside, inside = _paths(module)
    specified = list_in(entry(owner, "input_specs", "its signature"), "its input_specs")
    if len(specified) != len(graph.inputs):
        raise ValueError(f"its signature has {len(specified)} inputs, and its graph has {len(graph.inputs)}")
    names = iter(outside)
    inputs = [_input(value, f"input {at}", graph.inputs[at], names) for at, value in enumerate(specified)]
    specified = list_in(entry(owner, "output_specs", "its signature"), "its output_specs")
    if len(specified) != len(graph.outputs):
        raise ValueError(f"its signature has {len(specified)} outputs, and its graph has {len(graph.outputs)}")
    paths = iter(inside)
    outputs = [_output(value, f"output {at}", graph.outputs[at], paths) for at, value in enumerate(specified)
               if tagged(value, f"output {at}")[0] != TOKEN]  # fmt: skip
    return tuple(inputs), tuple(outputs)


def _input(value: Any, where: str, known: tuple[str, Any], names: Iterator[str]) -> ProgramInput:
    tag, content = tagged(value, where)
    owner, (name, type) = object_in(content, where), known
    if tag in QUALIFIED:
        kind, key = QUALIFIED[tag]
        given = text_in(entry(object_in(entry(owner, "arg", where), where), "name", where), where)
        if given != name or type is None:
            raise ValueError(f"{where} is {given!r:.60} in the signature and {name!r:.60} in the graph")
        qualified = text_in(entry(owner, key, where), f"{where}: {key}")
        persistent = kind == "parameter" or flag_in(owner.get("persistent", True), f"{where}: persistent")
        trainable = kind == "parameter" and type.requires_grad
        return ProgramInput(kind, name, qualified, type, trainable, persistent and kind != "constant")
    if tag == "user_input":
        if name:
            return ProgramInput("user", name, next(names, name), type)
        tag, content = tagged(entry(owner, "arg", where), where)
        return ProgramInput("value", "", next(names, ""), None, value=_constant(tag, content, where))
    if tag == "constant_input":
        name = text_in(entry(owner, "name", where), f"{where}: name")
        tag, content = tagged(entry(owner, "value", where), f"{where}: value")
        return ProgramInput("value", name, next(names, name), None, value=_constant(tag, content, where))
    if tag == TOKEN:
        return ProgramInput("value", name, "", None)
    if tag == "custom_obj":
        _custom(content, where)
    raise ValueError(f"{where} is of kind {tag!r:.40}, which mspc does not know")


def _constant(tag: str, content: Any, where: str) -> Argument:
    if tag not in PLAIN:
        raise ValueError(f"{where} is of kind {tag!r:.40}, not a value")
    return PLAIN[tag](content, where)


def _output(value: Any, where: str, known: Argument, paths: Iterator[str]) -> ProgramOutput:
    tag, content = tagged(value, where)
    owner = object_in(content, where)
    if tag == "user_output":
        return ProgramOutput("user", known, next(paths, ""))
    if tag not in TARGETS:
        raise ValueError(f"{where} is of kind {tag!r:.40}, which mspc does not know")
    kind, key = TARGETS[tag]
    given = text_in(entry(object_in(entry(owner, "arg", where), where), "name", where), where)
    if known != NodeResult(given):
        raise ValueError(f"{where} is {given!r:.60} in the signature and another value in the graph")
    target = text_in(entry(owner, key, where), f"{where}: {key}") if key else next(paths, "")
    return ProgramOutput(kind, known, target)


def _paths(module: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the caller's names for the inputs and for the outputs, as far as the file has them."""
    calls = list_in(module.get("module_call_graph") or [], "its module_call_graph")
    outermost = next((each for each in calls if isinstance(each, dict) and each.get("fqn") == ""), None)
    found = object_in(outermost or {}, "its module_call_graph").get("signature")
    if found is None:
        return [], []
    owner = object_in(found, "the signature of its call")
    fields = _named_tuples(module)
    given = owner.get("forward_arg_names")
    names = [text_in(name, "forward_arg_names") for name in list_in(given or [], "forward_arg_names")]
    inputs = _argument_names(_tree(owner, "in_spec"), names, fields)
    return list(inputs), list(_leaves(_tree(owner, "out_spec"), "", fields))


def _named_tuples(module: dict[str, Any]) -> dict[str, list[str]]:
    """Return the fields of named tuples by their types."""
    listed = object_in(module.get("treespec_namedtuple_fields") or {}, "treespec_namedtuple_fields")
    return {
        name: [text_in(each, name) for each in list_in(object_in(value, name).get("field_names"), name)]
        for name, value in listed.items()
    }


def _tree(owner: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the containers of values, which the file has as a text of JSON."""
    content = list_in(parsed_json(text_in(entry(owner, name, "the call"), name)), name)
    if len(content) != 2:
        raise ValueError(f"{name} is no description of containers")
    return object_in(content[1], name)


def _argument_names(tree: dict[str, Any], names: list[str], fields: Mapping[str, list[str]]) -> Iterator[str]:
    """Return a name for every value of `forward(*args, **kwargs)`: the argument's, and its path in there."""
    children = list_in(tree.get("children_spec"), "in_spec")
    if len(children) != 2:
        yield from _leaves(tree, "", fields)
        return
    places, words = (object_in(child, "in_spec") for child in children)
    by_place = [object_in(each, "in_spec") for each in list_in(places.get("children_spec"), "in_spec")]
    numbers = (str(at) for at in itertools.count())
    for name, child in zip(itertools.chain(names[: len(by_place)], numbers), by_place, strict=False):
        yield from _leaves(child, name, fields)
    yield from _leaves(words, "", fields)


def _leaves(tree: dict[str, Any], path: str, fields: Mapping[str, list[str]], depth: int = 0) -> Iterator[str]:
    if depth > DEEPEST:
        raise ValueError("containers of inputs or outputs stand too deep in each other")
    if tree.get("type") is None:
        yield path
        return
    children = list_in(tree.get("children_spec"), "a container")
    for name, child in zip(_keys(tree, len(children), fields), children, strict=True):
        inner = f"{path}.{name}" if path else name
        yield from _leaves(object_in(child, "a container"), inner, fields, depth + 1)


def _keys(tree: dict[str, Any], count: int, fields: Mapping[str, list[str]]) -> list[str]:
    """Return the names of a container's entries: keys if it has some, else numbers."""
    context = tree.get("context")
    try:
        said: Any = parsed_json(context) if isinstance(context, str) else context
    except ValueError:
        said = context
    if isinstance(said, str) and said in fields and len(fields[said]) == count:
        return fields[said]
    for listed in (said, *(said if isinstance(said, list) else ())):
        if isinstance(listed, list) and len(listed) == count and all(isinstance(each, str) for each in listed):
            return listed
    return [str(at) for at in range(count)]


# A number that the graph computes from sizes is an expression in arguments, not the name of its node. Every operand is
# looked for among the inputs and the results of earlier nodes.


EFFECTS = "higher_order.with_effects"
"""The call of an operator with a token, which its first result is, too: `run_decompositions` keeps operators that
print, or have other effects, in their order so. Tokens are not read."""


def _effect(arguments: Sequence[tuple[str, Argument]], where: str) -> tuple[str, list[tuple[str, Argument]]]:
    """Return the operator that is called with a token, and its arguments. They have no names in the file."""
    target = arguments[1][1] if len(arguments) > 1 else None
    if not isinstance(target, str):
        raise ValueError(f"{where} names no operator")
    target = target.removeprefix("torch.ops.")
    kind = kind_of(target)
    names = [] if kind is None else [each.name for each in kind.arguments]
    return target, [(name or (names[at] if at < len(names) else str(at)), value)
                    for at, (name, value) in enumerate(arguments[2:])]  # fmt: skip


BY_NAME = 2
"""The mark of an argument that was given by name."""
DEEPEST_GRAPHS = 16
"""Graphs inside of each other."""


class GraphReader:
    """Reads graphs, and shares places in sources and paths of modules. examples: values of symbols when the program was
    exported, as far as they were met."""

    def __init__(self) -> None:
        self.examples: dict[str, int] = {}
        self.frames, self.modules = cache(frames_in), cache(modules_in)

    def graph(self, value: Any, where: str = "its graph", depth: int = 0) -> ExportedGraph:
        """Return a graph. Raise ValueError with the error and its place."""
        if depth > DEEPEST_GRAPHS:
            raise ValueError(f"{where} is nested too deep in other graphs")
        return _OneGraph(self, object_in(value, where), where, depth).read()


class _OneGraph:
    def __init__(self, reader: GraphReader, owner: dict[str, Any], where: str, depth: int) -> None:
        self.reader = reader
        self.owner = owner
        self.where = where
        self.depth = depth
        self.metas = object_in(entry(owner, "tensor_values", where), f"{where}: tensor_values")
        self.numbers: dict[str, Argument] = {}
        for kind in ("sym_int_values", "sym_float_values", "sym_bool_values"):
            listed = object_in(owner.get(kind) or {}, f"{where}: {kind}")
            for name, value in listed.items():
                self.numbers[name] = self._number(value, f"{where}: number {name!r:.60}")
        self.known: set[str] = set()
        self.types: dict[str, ExportedType] = {}

    def read(self) -> ExportedGraph:
        inputs = tuple(self._input(value, place) for value, place in _entries(self.owner, "input", self.where))
        nodes = tuple(self._node(value, place) for value, place in _entries(self.owner, "node", self.where))
        outputs = tuple(self.argument(value, place) for value, place in _entries(self.owner, "output", self.where))
        return ExportedGraph(nodes, inputs, outputs)

    def _input(self, value: Any, where: str) -> tuple[str, ExportedType | None]:
        """Return its name, "" for a value that is a constant of the call, and its type."""
        tag, content = tagged(value, where)
        if tag == "as_tensor":
            return self._defined(self._name(content, where), where)
        if tag in ("as_sym_int", "as_sym_float", "as_sym_bool") and isinstance(content, dict) and "as_name" in content:
            name = text_in(content["as_name"], where)
            self._define(name, where)
            return name, None
        if tag == "as_custom_obj":
            _custom(content, where)
        return "", None

    def _node(self, value: Any, where: str) -> ExportedNode:
        owner = object_in(value, where)
        target = text_in(entry(owner, "target", where), f"{where}: target").removeprefix("torch.ops.")
        where = f"{where} ({target:.80})"
        arguments: list[tuple[str, Argument]] = []
        by_name = 0
        for given, place in _entries(owner, "input", where, "argument"):
            one = object_in(given, place)
            name = text_in(entry(one, "name", place), f"{place}: name")
            by_name += one.get("kind") == BY_NAME
            arguments.append((name, self.argument(entry(one, "arg", place), place)))
        results: list[str] = []
        types: list[ExportedType | None] = []
        for given, place in _entries(owner, "output", where, "result"):
            for name, type in self._results(given, place):
                results.append(name)
                types.append(type)
        if target == EFFECTS:
            target, arguments = _effect(arguments, where)
            results, types = results[1:], types[1:]
        about = object_in(owner.get("metadata") or {}, f"{where}: metadata")
        path, classes = self.reader.modules(text_in(about.get("nn_module_stack", ""), f"{where}: nn_module_stack"))
        name = owner.get("name")
        return ExportedNode(
            text_in(name, f"{where}: name") if name is not None else next(iter(results), ""),
            target, tuple(arguments), tuple(results), tuple(types),
            self.reader.frames(text_in(about.get("stack_trace", ""), f"{where}: stack_trace")),
            path, classes, by_name,
        )  # fmt: skip

    def _results(self, value: Any, where: str) -> list[tuple[str, ExportedType | None]]:
        tag, content = tagged(value, where)
        if tag == "as_none":
            return [("", None)]
        if tag == "as_optional_tensor":
            return self._results(content, where)
        if tag == "as_tensor":
            return [self._defined(self._name(content, where), where)]
        if tag in ("as_tensors", "as_optional_tensors"):
            found: list[tuple[str, ExportedType | None]] = []
            for one in list_in(content, where):
                found += self._results({"as_tensor": one} if tag == "as_tensors" else one, where)
            return found
        if tag in ("as_sym_int", "as_sym_float", "as_sym_bool"):
            one = object_in(content, where)
            if "as_name" not in one:  # a number that no symbol is in
                return [("", None)]
            name = text_in(one["as_name"], where)
            self._define(name, where)
            return [(name, None)]
        if tag in ("as_sym_ints", "as_sym_bools", "as_sym_floats"):
            kind = tag.removesuffix("s")
            return [each for one in list_in(content, where) for each in self._results({kind: one}, where)]
        if tag in ("as_int", "as_float", "as_bool", "as_string"):
            return [("", None)]
        raise ValueError(f"{where} is of kind {tag!r:.40}, which mspc does not know")

    def _defined(self, name: str, where: str) -> tuple[str, ExportedType | None]:
        self._define(name, where)
        if name not in self.metas:
            return name, None  # one of a list that nobody reads
        type = self.types[name] = self.type(self.metas[name], f"{where}: tensor {name!r:.60}")
        return name, type

    def _define(self, name: str, where: str) -> None:
        if name in self.known:
            raise ValueError(f"{where} is called {name!r:.60}, as another value before it")
        self.known.add(name)

    def _name(self, value: Any, where: str) -> str:
        return text_in(entry(object_in(value, where), "name", where), f"{where}: name")

    def operand(self, value: Any, where: str) -> NodeResult:
        """Return a value that is there already."""
        return self._known(self._name(value, where), where)

    def _known(self, name: str, where: str) -> NodeResult:
        if name not in self.known:
            raise ValueError(f"{where} is {name!r:.60}, which nothing before it gives")
        return NodeResult(name)

    def type(self, value: Any, where: str) -> ExportedType:
        """Return the type of a tensor. Raise ValueError if it is none, or one of a kind that mspc does not have."""
        owner = object_in(value, where)
        dtype = element_type(entry(owner, "dtype", where), where)
        sizes = list_in(entry(owner, "sizes", where), f"{where}: sizes")
        if len(sizes) > MAX_DIMENSIONS:
            raise ValueError(f"{where} has {len(sizes)} dimensions")
        shape = tuple(self._size(size, f"{where}: sizes") for size in sizes)
        named(owner.get("layout", 7), LAYOUTS, f"{where}: layout")
        return ExportedType(dtype, shape, flag_in(owner.get("requires_grad", False), f"{where}: requires_grad"))

    def _size(self, value: Any, where: str) -> int | SymbolicSize:
        found = self._number(value, where)
        if isinstance(found, SymbolicSize):
            return found
        return whole_in(found, where, 0)

    def _number(self, value: Any, where: str) -> int | float | bool | SymbolicSize:
        """Return a number that may depend on symbols."""
        tag, content = tagged(value, where)
        if tag == "as_expr":
            owner = object_in(content, where)
            text = text_in(entry(owner, "expr_str", where), where)
            try:
                found = parsed(text)
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
            hint = owner.get("hint")
            example = hint.get("as_int") if isinstance(hint, dict) else None
            if isinstance(found, str) and type(example) is int:
                self.reader.examples.setdefault(found, example)
            return found if isinstance(found, int | float) else SymbolicSize(found)
        return plain_number(tag, content, where)

    def argument(self, value: Any, where: str) -> Argument:
        """Return an argument of a node. Raise ValueError if it has another form."""
        tag, content = tagged(value, where)
        plain = PLAIN.get(tag)
        if plain is not None:
            return plain(content, where)
        special = _SPECIAL.get(tag)
        if special is None:
            raise ValueError(f"{where} is of kind {tag!r:.40}, which mspc does not know")
        return special(self, content, where)

    def symbolic(self, content: Any, where: str) -> Argument:
        """Return a number by the name of its node, or itself."""
        tag, value = tagged(content, where)
        if tag != "as_name":
            return plain_number(tag, value, where)
        name = text_in(value, where)
        return self.numbers[name] if name in self.numbers else self._known(name, where)

    def pairs(self, content: Any, where: str) -> Argument:
        """Return the entries of a dictionary as pairs."""
        return tuple((name, self.argument(value, where)) for name, value in object_in(content, where).items())

    def inner_graph(self, content: Any, where: str) -> Argument:
        owner = object_in(content, where)
        name = text_in(entry(owner, "name", where), where)
        return self.reader.graph(entry(owner, "graph", where), f"{where}: graph {name!r:.60}", self.depth + 1)


def _entries(owner: dict[str, Any], kind: str, where: str, name: str = "") -> Iterator[tuple[Any, str]]:
    """Yield the entries of the list of `kind`s, each with its place for messages: its number after `name` or `kind`."""
    for at, value in enumerate(list_in(entry(owner, f"{kind}s", where), f"{where}: {kind}s")):
        yield value, f"{where}: {name or kind} {at}"


def _optional(graph: _OneGraph, content: Any, where: str) -> Argument:
    tag, value = tagged(content, where)
    return None if tag == "as_none" else graph.operand(value, where)


def _several(one: Callable[[_OneGraph, Any, str], Argument]) -> Callable[[_OneGraph, Any, str], Argument]:
    return lambda graph, content, where: tuple(one(graph, value, where) for value in list_in(content, where))


_SPECIAL: Mapping[str, Callable[[_OneGraph, Any, str], Argument]] = {
    "as_tensor": _OneGraph.operand,
    "as_tensors": _several(_OneGraph.operand),
    "as_nested_tensors": _several(_several(_OneGraph.operand)),
    "as_optional_tensor": _optional,
    "as_optional_tensors": _several(_optional),
    "as_sym_int": _OneGraph.symbolic,
    "as_sym_float": _OneGraph.symbolic,
    "as_sym_bool": _OneGraph.symbolic,
    "as_sym_ints": _several(_OneGraph.symbolic),
    "as_sym_floats": _several(_OneGraph.symbolic),
    "as_sym_bools": _several(_OneGraph.symbolic),
    "as_graph": _OneGraph.inner_graph,
    "as_string_to_argument": _OneGraph.pairs,
}
"""Kinds of arguments that name values of the graph."""


SCHEMA = 8
"""The version of the format that is read, in all its minor versions: those only add to it."""
MODELS = "models/"
FORMAT, ARCHIVE_VERSION, BYTE_ORDER = "archive_format", "archive_version", "byteorder"
OLD = "serialized_exported_program.json"
"""The graph in an archive of PyTorch 2.7 and older; in one of 2.8 it is as it is now, and tensors are pickled."""
SAVE_AGAIN = "load it with torch.export.load there and save it with torch.export.save of PyTorch 2.9 or newer"


def read_program(path: Path) -> ExportedProgram:
    """Return the program in a file.

    Raise MspcError if there is no such file, it is none of `torch.export.save`, of a version that is not read, damaged,
    or has content that cannot be read as data.
    """
    archive = Archive(path)
    _check_format(archive)
    name = _model(archive)
    try:
        content = object_in(parsed_json(archive.text(f"{MODELS}{name}.json")), "it")
        schema = _schema(archive, content)
        module = object_in(entry(content, "graph_module", "it"), "its graph_module")
        reader = GraphReader()
        graph = reader.graph(entry(module, "graph", "its module"))
        inputs, outputs = signature_of(module, graph)
        ranges = _ranges(content)
        version = text_in(content.get("torch_version", ""), "its torch_version")
    except ValueError as error:
        raise MspcError(f"{archive.shown} is damaged: {MODELS}{name}.json: {error}", code="E0116") from None
    if f"data/weights/{name}.pt" in archive:
        raise _pickled(archive, f"PyTorch {version.partition('+')[0] or '2.8'}")
    weights, same = weights_of(archive, name)
    _check_weights(archive, inputs, weights)
    return ExportedProgram(
        archive.shown, graph, inputs, outputs, weights, same, ranges, reader.examples, schema, version
    )  # fmt: skip


def _pickled(archive: Archive, writer: str) -> MspcError:
    return MspcError(
        f"{archive.shown} is written by {writer}, whose tensors are pickled, and mspc loads no pickle, which could run "
        "anything",
        notes=[SAVE_AGAIN],
    )


def _check_format(archive: Archive) -> None:
    if OLD in archive:
        raise _pickled(archive, "PyTorch 2.7 and older")
    if FORMAT not in archive:
        found = archive.names()
        notes = ["it is a file of torch.save or torch.jit.save"] if any(n.endswith("data.pkl") for n in found) else []
        raise MspcError(
            f"{archive.shown} is no exported program of PyTorch: it has no {FORMAT}",
            notes=[*notes, "torch.export.save(torch.export.export(model, inputs), 'model.pt2') writes one"],
            code="E0701",
        )
    if archive.text(FORMAT) != b"pt2":
        raise MspcError(f"{archive.shown} has format {archive.text(FORMAT)!r:.40}, not 'pt2'")
    if ARCHIVE_VERSION in archive and archive.text(ARCHIVE_VERSION) != b"0":
        raise MspcError(f"{archive.shown} has version {archive.text(ARCHIVE_VERSION)!r:.40} of archives; mspc reads 0")
    if BYTE_ORDER in archive and archive.text(BYTE_ORDER) != b"little":
        raise MspcError(f"{archive.shown} has byte order {archive.text(BYTE_ORDER)!r:.40}; mspc reads 'little'")


def _model(archive: Archive) -> str:
    """Return the name of the one program in the archive."""
    found = [name.removeprefix(MODELS).removesuffix(".json") for name in archive.names(MODELS, ".json")]
    if not found:
        raise MspcError(f"{archive.shown} has no program in {MODELS}: programs compiled for one machine cannot be read")
    if len(found) > 1:
        names = ", ".join(found[:4])
        raise MspcError(f"{archive.shown} has {len(found)} programs, {names}; mspc reads a file with one")
    return found[0]


def _schema(archive: Archive, content: dict[str, Any]) -> tuple[int, int]:
    owner = object_in(entry(content, "schema_version", "it"), "its schema_version")
    major, minor = (whole_in(entry(owner, key, "its schema_version"), key, 0) for key in ("major", "minor"))
    if major != SCHEMA:
        written = text_in(content.get("torch_version", ""), "its torch_version")
        raise MspcError(
            f"{archive.shown} is of version {major}.{minor} of exported programs"
            f"{f' (PyTorch {written})' if written else ''}; mspc reads version {SCHEMA}"
        )
    return major, minor


def _ranges(content: dict[str, Any]) -> dict[str, Range]:
    found: dict[str, Range] = {}
    for name, value in object_in(content.get("range_constraints") or {}, "its range_constraints").items():
        owner = object_in(value, f"the range of {name!r:.60}")
        least, most = (owner.get(key) for key in ("min_val", "max_val"))
        for each in (least, most):
            if each is not None and type(each) is not int:
                raise ValueError(f"the range of {name!r:.60} ends with {each!r:.60}")
        found[name] = least, most
    return found


def _check_weights(archive: Archive, inputs: Sequence[ProgramInput], weights: ProgramWeights) -> None:
    """Check that the program has values for all tensors, or none, which leaves them to initializers, and of its
    types."""
    for each in inputs:
        stored = weights.tensors.get(each.qualified) if each.kind in ("parameter", "buffer", "constant") else None
        if stored is not None and each.type is not None and (each.type.dtype, each.type.shape) != (
            stored.type.dtype, stored.type.shape,
        ):  # fmt: skip
            shape = ", ".join(map(str, each.type.shape))
            raise MspcError(
                f"{archive.shown} is damaged: the {each.kind} {each.qualified!r:.100} is {each.type.dtype}[{shape}] in "
                f"the graph, and {stored.type} is stored", code="E0116"
            )
