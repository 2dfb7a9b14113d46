"""What goes into an exported program and comes out of it, with the names that module and caller have for it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from mspc.ir.files.parsing import parsed_json
from mspc.ir.late_dataclass import dataclass
from mspc.readers.pytorch.entries import entry, flag_in, list_in, object_in, tagged, text_in
from mspc.readers.pytorch.plain_values import PLAIN
from mspc.readers.pytorch.program import Argument, ExportedGraph, NodeResult, ProgramInput, ProgramOutput

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
"""Kinds of outputs but the caller's, and the entry with the name of what they belong to."""
DEEPEST = 64
"""Containers inside of each other."""


@dataclass(frozen=True)
class Signature:
    """What goes in and comes out."""

    inputs: tuple[ProgramInput, ...]
    outputs: tuple[ProgramOutput, ...]


def signature_of(module: dict[str, Any], graph: ExportedGraph) -> Signature:
    """The signature of a graph, as its module describes it. Raises ValueError: they do not fit each other."""
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
    outputs = [_output(value, f"output {at}", graph.outputs[at], paths) for at, value in enumerate(specified)]
    return Signature(tuple(inputs), tuple(outputs))


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
    if tag == "custom_obj":
        raise ValueError(f"{where} is an object of TorchScript ({content!r:.80}), which cannot be read as data")
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
    """The caller's names for the inputs and for the outputs, as far as the file has them."""
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
    """The fields of named tuples by their types."""
    listed = object_in(module.get("treespec_namedtuple_fields") or {}, "treespec_namedtuple_fields")
    return {
        name: [text_in(each, name) for each in list_in(object_in(value, name).get("field_names"), name)]
        for name, value in listed.items()
    }


def _tree(owner: dict[str, Any], name: str) -> dict[str, Any]:
    """How values stand in containers, which the file has as a text of JSON."""
    content = list_in(parsed_json(text_in(entry(owner, name, "the call"), name)), name)
    if len(content) != 2:
        raise ValueError(f"{name} is no description of containers")
    return object_in(content[1], name)


def _argument_names(tree: dict[str, Any], names: list[str], fields: Mapping[str, list[str]]) -> Iterator[str]:
    """A name for every value of `forward(*args, **kwargs)`: the argument's, and its path in there."""
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
    """The path of every value, as `past.0.key`."""
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
    """What the entries of a container are called: keys where it has some, else numbers."""
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
