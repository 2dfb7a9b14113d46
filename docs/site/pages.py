"""This module makes the pages of the site: docs/, the README, CONTRIBUTING, the samples, and the reference that is
generated from the code: commands, errors, passes, operators and public names.

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
PARTS = {"Start": "start", "Guides": "guides", "Concepts": "concepts", "Reference": "reference"}
"""The parts of the documentation, with their folders."""
CONTENTS = "docs/README.md"
"""The page that lists all pages of docs/; the site has them in its order."""
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
    made = generated()
    found["contents.md"] += "\n".join(["", "## Generated from the code", "", *(
        f"- [{text.partition(chr(10))[0].removeprefix('# ')}]({place})" for place, text in made.items()
        if place.count("/") == 1
    ), ""])  # fmt: skip
    found |= made
    found["index.md"] += "\n".join(contents(found))
    return found


def generated() -> dict[str, str]:
    """The pages that are generated from the code: lists, and the pages that each list contains."""
    from mspc.commands.verbs.explain import page_of
    from mspc.ir.error_codes import mistakes

    lists = {
        "errors": ("Errors", {entry.code: page_of(entry) for entry in mistakes()}),
        "options": ("Options of every command", dict(command_pages())),
        "passes": ("Passes", dict(pass_pages())),
        "operators": ("Operators and their rules", dict(operator_pages())),
        "python": ("Public names", {f"{f'mspc.{module}'.rstrip('.')}": reference(module) for module in MODULES}),
    }
    found: dict[str, str] = {}
    for folder, (title, pages) in lists.items():
        intro = passes() if folder == "passes" else f"# {title}\n"
        found[f"reference/{folder}.md"] = "\n".join([
            intro, "```{toctree}", ":maxdepth: 1", "", *(f"{folder}/{name}.md" for name in pages), "```", "",
        ])  # fmt: skip
        found |= {f"reference/{folder}/{name}.md": text for name, text in pages.items()}
    return found


def contents(places: Iterable[str]) -> Iterator[str]:
    """The order of the pages, for Sphinx: that of the contents, and then what the contents do not list."""
    links = _LINK.findall((ROOT / CONTENTS).read_text(encoding="utf-8"))
    listed = [page for link in links for page in _page_of(link)]
    for title, folder in PARTS.items():
        own = [place for place in places if place.startswith(f"{folder}/") and place.count("/") == 1]
        order = sorted(own, key=lambda place: (listed.index(place) if place in listed else len(listed), place))
        yield from _tree(title, order)
    yield from _tree("Samples", [place for place in places if place.startswith("samples/")])
    yield from _tree("Project", ["contents.md", "contributing.md", "changelog.md"])
    yield ""


def _page_of(link: tuple[str, str, str]) -> list[str]:
    """The page of the site to which a link of the contents leads, as a list of at most one."""
    place = sources().get(posixpath.normpath(posixpath.join("docs", link[2].partition("#")[0])))
    return [] if place is None else [place]


def _tree(title: str, pages: Iterable[str]) -> list[str]:
    """The list of the pages of a part, for Sphinx."""
    return ["", "```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```"]


def sources() -> dict[str, str]:
    """Files of the checkout that are pages: where each is on the site."""
    found = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md",
             CONTENTS: "contents.md"}  # fmt: skip
    found |= {f"samples/{p.parent.name}/README.md": f"samples/{p.parent.name}.md"
              for p in sorted((ROOT / "samples").glob("*/README.md"))}  # fmt: skip
    folders = (path for part in PARTS.values() for path in sorted((ROOT / "docs" / part).glob("*.md")))
    return found | {path.relative_to(ROOT).as_posix(): path.relative_to(ROOT / "docs").as_posix() for path in folders}


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
    """For every folder of ops/ a page: its operators with their rules, as `mspc ops` has them."""
    from mspc.commands.verbs.ops import describe
    from mspc.ops.op import load_operators

    folders: dict[str, list[dict[str, Any]]] = {}
    for operator in load_operators().values():
        folders.setdefault(operator.__module__.split(".")[2], []).append(describe(operator))
    for folder, rows in sorted(folders.items()):
        lines = [
            f"# {folder}", "",
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
        yield folder, "\n".join([*lines, ""])


def passes() -> str:
    """The list of the passes, in the order in which they run."""
    from mspc.commands.verbs.passes import conditions_of
    from mspc.compiler import pipeline

    lines = [
        "# Passes", "",
        "The passes of a compile, in order. `mspc compile --save-graphs` writes the graph after each.", "",
        "| pass | runs in |", "|---|---|",
        *(f"| [{step.name}](passes/{step.name}.md) | {conditions_of(step)} |" for step in pipeline.STEPS),
    ]  # fmt: skip
    return "\n".join([*lines, ""])


def pass_pages() -> Iterator[tuple[str, str]]:
    """A page for each pass: what its file says, its options, and its smallest golden before and after."""
    from mspc.compiler import pipeline
    from mspc.passes.base import find_pass

    for name in dict.fromkeys(step.name for step in pipeline.STEPS):
        found = type(find_pass(name))
        module = inspect.getmodule(found)
        fields = [f"`{field}`" for field in getattr(found, "__annotations__", {}) if not field.startswith("_")]
        lines = [f"# {name}", "", "```text", inspect.getdoc(module) or "", "```", ""]
        lines += [f"Options: {', '.join(fields)}. ", ""] if fields else []
        yield name, "\n".join([*lines, *_example(name), ""])


def _example(name: str) -> list[str]:
    """The smallest golden of a pass: the graph before it and after it, without headers and sources."""
    cases = [case for case in (ROOT / "tests" / "passes").glob(f"*/{name}/*.ir") if case.name.endswith(".out.ir")]
    if not cases:
        return []
    after = min(cases, key=lambda case: (case.stat().st_size, case.name))
    before = after.with_name(f"{after.name.removesuffix('.out.ir')}.ir").read_text(encoding="utf-8")
    ran = re.findall(r"# RUN: (.*)", before)
    source = after.relative_to(ROOT).as_posix().replace(".out.ir", ".ir")
    return [
        "## Example", "", f"`{ran[0]}` makes of `{source}`", "", *_graph(before), "", "this graph:", "",
        *_graph(after.read_text(encoding="utf-8")),
    ]  # fmt: skip


def _graph(text: str) -> list[str]:
    """The graphs of a dump, without comments, as a block."""
    lines = [line for line in text.split("\n") if line.strip() and not line.lstrip().startswith("#")]
    begin = next((place for place, line in enumerate(lines) if line.startswith(("%para", "subgraph"))), 0)
    return ["```text", *lines[begin:], "```"]


# Commands


def command_pages() -> Iterator[tuple[str, str]]:
    """A page for each command, from the declarations of its options."""
    from mspc.cli import loaded
    from mspc.commands.verbs.table import VERBS

    for verb in VERBS:
        command = loaded(verb)
        lines = [f"# mspc {verb.name}", "", verb.help, ""]
        for name, each in getattr(command, "commands", {"": command}).items():
            lines += [f"## mspc {verb.name} {name}", "", plain(each.help or ""), ""] if name else []
            lines += ["| option | meaning |", "|---|---|", *map(_option, each.params), ""]
        yield verb.name, "\n".join(lines)


def _option(option: Any) -> str:
    """A row of a command's table."""
    names = ", ".join(f"`{name}`" for name in getattr(option, "opts", [])) if option.param_type_name == "option" else ""
    name = names or f"`{option.make_metavar() if option.metavar is None else option.metavar}`"
    value = f" `{option.metavar}`" if names and option.metavar else ""
    return f"| {name}{value} | {plain(getattr(option, 'help', '') or '')} |".replace("\n", " ")
