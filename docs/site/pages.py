"""This module makes the pages of the site: docs/, the README, CONTRIBUTING, the samples, and what is made from the
code.

Links that lead to another page are turned to where it is on the site; those to other files of the checkout become
plain text.
"""

from __future__ import annotations

import inspect
import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
MODULES = (
    "", "nn", "ops", "mint", "mint.nn", "mint.nn.functional", "numpy", "amp", "train", "dataset", "dataset.transforms",
    "dataset.vision", "communication", "communication.comm_func", "parallel", "common.initializer",
)  # fmt: skip
"""Modules of mspc whose names have reference pages."""
FIRST = ("tutorial.md", "how-a-compile-runs.md")
FORMATS = ("passes.md", "ir-format.md", "program.md", "in-memory.md", "names.md")
LAST = ("contributing.md",)
TAKEN = {"search.md": "finding-a-plan.md"}
"""Files of docs/ whose names are those of pages that Sphinx makes, and what they are called on the site."""
LONGEST = 40
"""Characters of a default that is shown."""
_LINK = re.compile(r"(!?)\[([^\]\n]*(?:\n[^\]\n]*)?)\]\(([^)\s]+)\)")
_CODE = re.compile(r"(`+[^`]*`+)")
_SECTION = re.compile(r"(Args|Returns|Raises|Class attributes):")
_ENTRY = re.compile(r"\*{0,2}\w+(?:, \*{0,2}\w+)*: ")


# The pages


def all_pages() -> dict[str, str]:
    """The text of every page, by its place on the site."""
    found = {place: linked((ROOT / source).read_text(encoding="utf-8"), source, place)
             for source, place in sources().items()}  # fmt: skip
    for module in MODULES:
        found[f"reference/{f'mspc.{module}'.rstrip('.')}.md"] = reference(module)
    found |= operator_pages()
    found["passes.md"] = passes()
    found["index.md"] += "\n".join(contents(found))
    return found


def contents(places: Iterable[str]) -> Iterator[str]:
    """The order of the pages, for Sphinx; those of docs/ that no list names are among the guides."""
    named = {"index.md", *FIRST, *FORMATS, *LAST}
    sections = {
        "Start": FIRST, "Samples": [p for p in places if p.startswith("samples/")],
        "Guides": sorted(p for p in places if "/" not in p and p not in named),
        "Reference": [p for p in places if p.startswith("reference/")],
        "Operators": [p for p in places if p.startswith("operators/")], "Formats": FORMATS, "Project": LAST,
    }  # fmt: skip
    for title, pages in sections.items():
        yield from ("", "```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```")
    yield ""


def sources() -> dict[str, str]:
    """Files of the checkout that are pages: where each is on the site."""
    found = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}
    found |= {f"samples/{p.parent.name}/README.md": f"samples/{p.parent.name}.md"
              for p in sorted((ROOT / "samples").glob("*/README.md"))}  # fmt: skip
    return found | {f"docs/{p.name}": TAKEN.get(p.name, p.name) for p in sorted((ROOT / "docs").glob("*.md"))}


def linked(markdown: str, source: str, place: str) -> str:
    """The text of a file with its links as they are on the site.

    Args:
        markdown: the text. source: the file, from the root of the checkout. place: the page, on the site.
    """
    pages = sources()

    def turned(match: re.Match[str]) -> str:
        image, text, target = match.groups()
        path, mark, anchor = target.partition("#")
        if "://" in target or not path:
            return match[0]
        at = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if image and at.startswith("docs/images/"):
            return f"![{text}]({posixpath.relpath(at.removeprefix('docs/'), posixpath.dirname(place) or '.')})"
        if posixpath.join(at, "README.md") in pages:
            at = posixpath.join(at, "README.md")
        if at in pages:
            return f"[{text}]({posixpath.relpath(pages[at], posixpath.dirname(place) or '.')}{mark}{anchor})"
        return text if (ROOT / at).exists() else match[0]

    return _LINK.sub(turned, markdown)


# The reference


def reference(module: str) -> str:
    """The page of a module: its classes and functions, with what their docstrings say."""
    import importlib

    name = f"mspc.{module}".rstrip(".")
    found = importlib.import_module(name)
    lines = [f"# {name}", "", plain(inspect.getdoc(found) or ""), ""]
    for member, value in members(module):
        lines += [f"## {member}", "", "```python", f"{name}.{member}{_signature(value)}", "```", ""]
        lines += [described(value), ""]
        for method, function in _methods(value):
            first, *others = described(function).split("\n")
            lines += [f"`{method}{_signature(function)}`", "", f": {first}"]
            lines += [*(f"  {line}".rstrip() for line in others), ""]
    return "\n".join(lines)


def members(module: str) -> list[tuple[str, Any]]:
    """Public classes and functions of a module; the operators of `ops` have pages of their own."""
    import importlib

    from mspc.ops.op import load_operators

    found = importlib.import_module(f"mspc.{module}".rstrip("."))
    operators = load_operators() if module == "ops" else {}
    listed = [(name, getattr(found, name)) for name in sorted(dir(found)) if not name.startswith("_")]
    return [
        (name, value)
        for name, value in listed
        if (inspect.isclass(value) or inspect.isroutine(value)) and name not in operators
        and str(getattr(value, "__module__", "")).startswith(("mspc.mindspore_api", "mspc.ir"))
    ]  # fmt: skip


def _methods(value: Any) -> Iterator[tuple[str, Any]]:
    """The methods that a class documents itself."""
    for name, method in vars(value).items() if inspect.isclass(value) else ():
        if not name.startswith("_") and inspect.isfunction(method) and method.__doc__:
            yield name, method


def _signature(value: Any) -> str:
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return "()"
    shown = [
        parameter.replace(annotation=inspect.Parameter.empty, default=_default(parameter.default))
        for parameter in found.parameters.values() if parameter.name != "self"
    ]  # fmt: skip
    return str(found.replace(parameters=shown, return_annotation=inspect.Signature.empty))


class _Shown:
    """A default as the reference prints it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _default(value: Any) -> Any:
    if value is inspect.Parameter.empty or isinstance(value, int | float | str | bool | tuple | type(None)):
        return value
    text = value.__name__ if isinstance(value, type) else str(value)
    return _Shown("..." if text.startswith("<") or len(text) > LONGEST else text)


def described(value: Any) -> str:
    """A docstring as Markdown: its sections as lists."""
    lines: list[str] = []
    inside = False
    for line in (inspect.getdoc(value) or "").split("\n"):
        heading = _SECTION.fullmatch(line)
        if heading is not None:
            lines += ["", f"**{heading[1]}**", ""]
            inside = True
        elif inside and line.startswith("    "):
            entry = line[4:]
            starts = _ENTRY.match(entry) is not None or not lines[-1]
            lines.append(f"- {plain(entry)}" if starts else f"  {plain(entry.strip())}")
        else:
            inside = inside and not line
            lines.append(line if line.startswith("    ") else plain(line))
    return "\n".join(lines)


def plain(text: str) -> str:
    """Text in which only code between backticks means something to Markdown."""
    parts = _CODE.split(text)
    for place in range(0, len(parts), 2):
        part = parts[place].replace("&", "&amp;").replace("<", "&lt;").replace("*", "\\*").replace("](", "]\\(")
        parts[place] = part
    return "".join(parts)


# Operators and passes


def operator_pages() -> Iterator[tuple[str, str]]:
    """For every room of ops/ a page: its operators with their rules, as `mspc ops` has them."""
    from mspc.commands.verbs.ops import describe
    from mspc.ops.op import load_operators

    rooms: dict[str, list[dict[str, Any]]] = {}
    for operator in load_operators().values():
        rooms.setdefault(operator.__module__.split(".")[2], []).append(describe(operator))
    for room, rows in sorted(rooms.items()):
        lines = [
            f"# {room}", "",
            "A letter is a dimension: one letter is one size and is sharded alike, one in no result is added up, "
            "and `!` stays replicated.", "",
            "| operator | what it does | rule | gradient | attributes |", "|---|---|---|---|---|",
        ]  # fmt: skip
        for row in sorted(rows, key=lambda row: str(row["name"])):
            cells = (
                f"`{row['name']}`", plain(row["summary"]), f"`{row['rule']}`" if row["rule"] else "-",
                plain(row["gradient"]), ", ".join(f"`{name}`" for name in row["attributes"]) or "-",
            )  # fmt: skip
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
        yield f"operators/{room}.md", "\n".join([*lines, ""])


def passes() -> str:
    """The page of the passes, in the order in which they run, with what their files say."""
    from mspc.commands.verbs.passes import conditions_of
    from mspc.compiler import pipeline
    from mspc.passes.base import find_pass

    lines = [
        "# Passes", "",
        "The passes of a compile, in order. `mspc compile --save-graphs` writes the graph after each.", "",
        "| pass | runs in |", "|---|---|",
        *(f"| `{step.name}` | {conditions_of(step)} |" for step in pipeline.STEPS),
    ]  # fmt: skip
    for name in dict.fromkeys(step.name for step in pipeline.STEPS):
        module = inspect.getmodule(type(find_pass(name)))
        lines += ["", f"## {name}", "", "```text", inspect.getdoc(module) or "", "```"]
    return "\n".join([*lines, ""])
