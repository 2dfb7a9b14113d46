"""This module splits a file into the items of grammar.lark without the grammar, where all lines are as
`mspc.ir.text.printer` writes them: those of a large graph take the grammar ten times as long.

It knows the terminals of the grammar alone, and of their orders those that are written. Anything else, mistakes above
all, it leaves to the grammar, which says what is wrong.
"""

from __future__ import annotations

import re
from typing import Any

from mspc.ir.text.pieces import TextToken
from mspc.ir.text.source_text import Malformed
from mspc.ir.text.tensor_text import read_tensor

_QUOTED = r'"(?:[^"\\\n]|\\.)*+"'
_COMMENTS = r"(?:#[^\n]*(?:\n\s*|$))+"
_GROUPS = rf"(?:(?:\w+: ?)?\{{(?:[^{{}}\"\n]++|{_QUOTED}|\{{(?:[^{{}}\"\n]++|{_QUOTED})*+\}})*+\}}[ ]*)+"
_TYPES = r": \((?:<[^<>\n]*+>(?:\*\d+)?(?:, )?)*+\)(?: -> \(<[^<>\n]*+>\))?\s*"
_REFERENCE = rf"%(?:para\d+_{_QUOTED}|[\w.\-\/\[\]$]+(?:\{{\d+\.\.\d+\}}[\w.\-\/\[\]$]*)?)"
_REFERENCES = rf"{_REFERENCE}(?:, {_REFERENCE})*+"
_TENSOR = r"Tensor\(shape=\[[^\]\n]*\], dtype=\w+, value=[^()]*\)"
_OPERANDS = rf"(?:(?:{_REFERENCE}|{_TENSOR})(?:, (?={_REFERENCE}|{_TENSOR}))?+)*+"
_HEAD = rf"%\d+(?:\((?:{_QUOTED}|[^()\"\n]+)\))? = [A-Za-z_]\w*\("

_ANY_COMMENTS = re.compile(_COMMENTS)
_ATTRIBUTE_LINE = re.compile(rf"(?:{_QUOTED}[ ]*|[A-Za-z_][^:\n]*+):[^\n]*(?:\n\s*)?")
_PARAMETER = re.compile(
    rf"(%para\d+_(?:{_QUOTED}|[^\s:\"]*):)(?=[ ]) (<[^<>\n]*+>)(?:  (:  has_default))? ?({_GROUPS})?\n\s*"
)
_SUBGRAPH = re.compile(rf"(subgraph @(?:{_QUOTED}|[^\s(\"]+)\([^()\n]*\) \{{)\n\s*")
_NODE = re.compile(rf"({_HEAD})({_OPERANDS})\) ?({_GROUPS})?\n\s*({_TYPES})({_COMMENTS})?")
_RESULT = re.compile(rf"(Return\((\(?))({_OPERANDS})\)(\)?)\n\s*({_TYPES})\}}\s*")
_OPERAND = re.compile(rf"({_REFERENCES})|({_TENSOR})")
_FOREIGN = ("jit config {", "[const vector]")
"""Texts that mean something else in MindSpore's dumps."""


def own_items(text: str) -> list[Any] | None:
    """The items of a file as the rule `module` of the grammar gives them, an attribute's line as a piece; None for a
    file that is to be read by the grammar."""
    if any(words in text for words in _FOREIGN):
        return None
    items: list[Any] = []
    at = len(text) - len(text.lstrip())
    try:
        while at < len(text):
            at = _next_item(text, at, items)
    except (_OfTheGrammar, Malformed):
        return None
    return items


class _OfTheGrammar(Exception):
    """Something is not as it is written."""


def _next_item(text: str, at: int, items: list[Any]) -> int:
    """Append the item that begins at a character; where the next one begins."""
    if match := _ANY_COMMENTS.match(text, at):
        items.append(TextToken.of("COMMENTS", match[0], at))
    elif match := _PARAMETER.match(text, at):
        names = ("PARAMETER_HEAD", "TYPE", "HAS_DEFAULT", "GROUPS")
        items.append([_piece(match, group, name) for group, name in enumerate(names, 1)])
    elif match := _SUBGRAPH.match(text, at):
        subgraph: list[Any] = [_piece(match, 1, "SUBGRAPH_HEAD"), None]
        items.append(subgraph)
        return _rest_of_graph(text, match.end(), subgraph)
    elif match := _ATTRIBUTE_LINE.match(text, at):
        items.append(TextToken.of("ATTRIBUTE_LINE", match[0], at))
    else:
        raise _OfTheGrammar
    return match.end()


def _rest_of_graph(text: str, at: int, subgraph: list[Any]) -> int:
    """Append the nodes and the result; where the item behind the graph begins."""
    while match := _NODE.match(text, at):
        subgraph.append([
            _piece(match, 1, "NODE_HEAD"), _operands(match, 2), _piece(match, 3, "GROUPS"), _piece(match, 4, "TYPES"),
            _piece(match, 5, "COMMENTS"),
        ])  # fmt: skip
        at = match.end()
    match = _RESULT.match(text, at)
    if match is None or len(match[2]) != len(match[4]):
        raise _OfTheGrammar
    head = _piece(match, 1, "RETURN_TUPLE" if match[2] else "RETURN")
    subgraph.append([head, _operands(match, 3), None, _piece(match, 5, "TYPES"), None])
    return match.end()


def _piece(match: re.Match[str], group: int, name: str) -> TextToken | None:
    text = match[group]
    return None if text is None else TextToken.of(name, text, match.start(group))


def _operands(match: re.Match[str], group: int) -> list[Any]:
    """References that follow each other are one piece."""
    text, at = match[group], match.start(group)
    if not text or "Tensor(" not in text:
        return [TextToken.of("REFERENCES", text, at)] if text else []
    found: list[Any] = []
    for operand in _OPERAND.finditer(text):
        references, tensor = operand.groups()
        found.append(
            TextToken.of("REFERENCES", references, at + operand.start()) if references else read_tensor(tensor)
        )
    return found
