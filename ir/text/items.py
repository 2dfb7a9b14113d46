"""The items of a file: comments, attribute lines, parameters and graphs, as tokens.

Tokens are coarse (a node's head, its groups, its type line), since a file has thousands of nodes that repeat the same
few types, attributes and layouts; `mspc.ir.text.fragments` reads those texts once each.
"""

from __future__ import annotations

from typing import Any

from mspc.ir.text.fragments import CLOSE, CLOSE_BRACE, COMMA, read_next_value
from mspc.ir.text.scanner import QUOTED, Scanner, token

_BRACES = rf"(?:[^{{}}\"\n]++|{QUOTED})*+"
_REFERENCE = rf"%(?:para\d+_{QUOTED}|[\w.\-\/\[\]$]+(?:\{{\d+\.\.\d+\}}[\w.\-\/\[\]$]*)?)"
_VECTOR = r"<[^<>\n]*x\w+\[const vector\]"

COMMENTS = token("comments", r"(?:#[^\n]*(?:\n\s*|$))+")
ATTRIBUTE_LINE = token("attribute line", rf"(?:{QUOTED}[ ]*|[A-Za-z_][^:\n]*+):[^\n]*(?:\n\s*)?")
PARAMETER_HEAD = token("parameter head", rf"%para\d+_(?:{QUOTED}|[^\s:\"]*)\s*:(?=[ ])")
RETURN_TUPLE = token("return tuple", r"Return\(\(")
_CONFIGURATION = token("", r"jit config \{")
_TYPE = token("type", r"<[^<>\n]*+>")
_HAS_DEFAULT = token("has default", r":\s+has_default")
_SHAPE = token("shape", r":\s+\[[^\]\n]*\]")
_DEVICE = token("", r":\s+<[^<>\n]*>\s+:\s+IsWeight: \w+")
_SUBGRAPH_HEAD = token(
    "subgraph head", rf"subgraph @(?:{QUOTED}|[^\s(\"]+)(?: parent: \[[^\]\n]*\])?\([^()\n]*\) \{{"
)
_NODE_HEAD = token(
    "node head",
    rf"%\d+(?:\((?:{QUOTED}|[^()\"\n]+)\))? = (?:[A-Za-z_]\w*|call @[^\s(\"]+|%\d+(?:\[@[^\"\n]*?\])?)\(",
)
_RETURN = token("return", r"Return\(")
_REFERENCES = token("references", rf"{_REFERENCE}(?:, {_REFERENCE})*+")
_GROUPS = token("groups", rf"(?:(?:\w+: ?)?\{{{_BRACES}(?:\{{{_BRACES}\}}{_BRACES})*+\}}[ ]*)+")
_TYPES = token("types", r": \((?:<[^<>\n]*+>(?:\*\d+)?(?:, )?)*+\)(?: -> \(<[^<>\n]*+>\))?\s*")
_KERNEL = token(
    "",
    rf": \((?=[^<)]|{_VECTOR}|\) -> \((?:[^<]|{_VECTOR}))"
    r"(?:<[^<>\n]*+>|[^()<>\n])*+\)(?: -> \((?:<[^<>\n]*+>|[^()<>\n])*+\))?\s*",
)
"""What a kernel of MindSpore's takes: `: (<Float32xDefaultFormat[const vector]{4}>) -> (...)`, `: (Tensor) -> (..)`."""


def read_items(scanner: Scanner) -> list[Any]:
    """Return the items of a file: tokens of comments and of attribute lines, [head, type, default or shape, groups] of
    a parameter, and [head, comments, nodes..., result] of a graph, in which a node is [head, operands, groups, types,
    comments] and operands are tokens of references, or values. Raise Malformed."""
    found: list[Any] = []
    while not scanner.ends():
        item = scanner.take(COMMENTS) or _parameter(scanner) or _subgraph(scanner)
        if item is None and scanner.match(_CONFIGURATION):
            while scanner.match(ATTRIBUTE_LINE):
                continue
            scanner.need(CLOSE_BRACE)
            continue
        item = item or scanner.take(ATTRIBUTE_LINE)
        if item is None:
            scanner.fail()
        found.append(item)
    return found


def _parameter(scanner: Scanner) -> list[Any] | None:
    head = scanner.take(PARAMETER_HEAD)
    if head is None:
        return None
    type = scanner.take(_TYPE)
    if type is None:
        scanner.fail()
    default = scanner.take(_HAS_DEFAULT) or scanner.take(_SHAPE)
    scanner.match(_DEVICE)
    return [head, type, default, scanner.take(_GROUPS)]


def _subgraph(scanner: Scanner) -> list[Any] | None:
    head = scanner.take(_SUBGRAPH_HEAD)
    if head is None:
        return None
    found: list[Any] = [head, scanner.take(COMMENTS)]
    while (head := scanner.take(_NODE_HEAD)) is not None:
        found.append(_node(scanner, head))
    head = scanner.take(RETURN_TUPLE) or scanner.take(_RETURN)
    if head is None:
        scanner.fail()
    found.append(_node(scanner, head))
    scanner.need(CLOSE_BRACE)
    return found


def _node(scanner: Scanner, head: Any) -> list[Any]:
    operands: list[Any] = []
    while not scanner.match(CLOSE):
        if operands:
            scanner.need(COMMA)
        references = scanner.take(_REFERENCES)
        operands.append(read_next_value(scanner) if references is None else references)
    if head.type == RETURN_TUPLE.name:
        scanner.need(CLOSE)
    groups = scanner.take(_GROUPS)
    types = None if scanner.match(_KERNEL) else scanner.take(_TYPES)
    while scanner.match(_KERNEL):
        continue
    return [head, operands, groups, types, scanner.take(COMMENTS)]
