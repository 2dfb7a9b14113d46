"""Reads a page's data back, as its own code does, to hold it against graphs."""

import html.parser
import json
from pathlib import Path
from typing import Any

from mspc.commands.view.page import html_of
from mspc.ir.graph import Graph, Parameter, Value, element_layouts
from mspc.ir.layout import Layout
from tests.compiled_scripts import QUIET, CompileOptions, compile_target


def compiled(script: Path, folder: Path, ranks: int | None = None, level: int = 2, **others: Any) -> Path:
    """The folder of a compile."""
    compile_target(str(script), CompileOptions(ranks=ranks, out=folder, level=level, loudness=QUIET, **others))
    return folder


class _Page(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.facts = ""
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = dict(attrs).get("id") == "facts"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.facts += data

    def handle_endtag(self, tag: str) -> None:
        self._inside = False


def elements(page: str) -> list[tuple[str, dict[str, str | None]]]:
    """The elements of a page with their attributes."""
    reader = _Page()
    reader.feed(page)
    return reader.elements


def read_back(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts, through the page that holds them."""
    reader = _Page()
    reader.feed(html_of(facts))
    return json.loads(reader.facts)


def check_equal(facts: dict[str, Any], shown: dict[str, Any], graph: Graph) -> None:
    """Hold one graph of a page against the graph: operators, operands, types, layouts, lines, parameters."""
    columns = shown["nodes"]

    def text(number: int) -> str:
        return facts["strings"][number] if number >= 0 else ""

    def layout(number: int) -> str:
        mesh, dims, partial, reduction = facts["layouts"][number]
        return str(Layout.of(mesh, dims, partial, reduction or "sum"))

    assert len(columns["op"]) == len(graph.nodes)
    places: dict[Value, int] = {node: i for i, node in enumerate(graph.nodes)}
    places |= {parameter: -1 - i for i, parameter in enumerate(graph.parameters)}
    for i, node in enumerate(graph.nodes):
        assert text(columns["op"][i]) == node.op.name
        assert (text(columns["instance"][i]), text(columns["value"][i])) == (node.instance, node.name)
        assert (text(columns["scope"][i]), text(columns["provenance"][i])) == (node.scope, node.provenance)
        assert facts["types"][columns["type"][i]][0] == str(node.type)
        assert [layout(n) for n in columns["layout"][i]] == [str(own) for own in element_layouts(node.layout)]
        assert text(columns["reason"][i]) == str(node.attrs.get("reason", ""))
        assert [places.get(value) for value in node.inputs] == [
            None if operand >= len(graph.nodes) else operand for operand in columns["inputs"][i]
        ]
        stack = facts["stacks"][columns["stack"][i]] if node.frames else []
        lines = [(text(f), line, text(source)) for f, line, _, _, source in (facts["frames"][n] for n in stack)]
        assert lines == [(frame.file, frame.line, frame.text) for frame in node.frames]
    for i, parameter in enumerate(graph.parameters):
        _check_parameter(facts, shown["parameters"], i, parameter)


def _check_parameter(facts: dict[str, Any], columns: dict[str, list[Any]], i: int, parameter: Parameter) -> None:
    assert facts["strings"][columns["name"][i]] == parameter.name
    assert facts["types"][columns["type"][i]][0] == str(parameter.type)
    assert facts["types"][columns["whole"][i]][0] == str(parameter.global_type or parameter.type)
