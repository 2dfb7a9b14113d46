"""Text formats of configurations, read as data: YAML's block mappings and lists, TOML and JSON, with lines."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.readers.configurations.settings import Setting, Values, error_at

DEEPEST = 64
"""Most levels of a YAML file."""
MAX_VALUES = 100_000
"""Most values of a YAML file. Aliases of aliases would make exponentially many."""


def file_values(file: str, text: str, suffix: str) -> Values:
    """Return the values of a file by dotted path, with their lines. Raise MspcError if it cannot be read.

    suffix: ".toml", ".json", or another one for YAML.
    """
    if suffix in (".toml", ".json"):
        try:
            content = tomllib.loads(text) if suffix == ".toml" else json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MspcError(f"{file} is no {suffix[1:].upper()} file: {error}") from None
        if not isinstance(content, dict):
            raise MspcError(f"{file} has no object of settings but {type(content).__name__}")
        return Values(file, {path: Setting(path, value, _line_of(text, path)) for path, value in _flat(content, "")})
    return _yaml_values(file, text)


def _flat(content: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flat(value, path + ".")
        else:
            yield path, value


def _line_of(text: str, path: str) -> int:
    """Return the line in which the last key of a path stands, after the lines of the keys before it; 0 if unknown."""
    place = 0
    for key in path.split("."):
        found = re.compile(rf"""(?m)^[^\n#]*?["'\[{{. \t]?{re.escape(key)}["'\]]?[ \t]*[:=\].]""").search(text, place)
        if found is None:
            continue
        place = found.start()
    return text.count("\n", 0, place) + 1


def scalar(text: str) -> Any:
    """Return the value of a plain scalar of YAML: a text, a number, a truth value or None."""
    word = text.lower()
    if word in ("true", "false", "yes", "no", "on", "off"):
        return word in ("true", "yes", "on")
    if word in ("", "null", "~", "none"):
        return None
    for kind in (int, float):
        try:
            return kind(text.replace("_", "")) if re.match(r"^[-+.\d]", text) else text
        except ValueError:
            continue
    return text


def _yaml_values(file: str, text: str) -> Values:
    """Return the values of a YAML text. Nodes are composed, no object is constructed."""
    import yaml  # late, for the start-up time of commands that read no YAML

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        # A line without a colon is found at the line after it; the context is that line.
        mark = error.context_mark if error.context == "while scanning a simple key" else error.problem_mark
        line = mark.line + 1 if mark is not None else 0
        raise error_at(file, line, " ".join(filter(None, (error.context, error.problem)))) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise MspcError(f"{file} is no YAML file: {error}") from None
    found: dict[str, Setting] = {}
    twice: list[Setting] = []

    def value(node: Any) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return scalar(node.value) if node.style is None else node.value.rstrip("\n")
        return [value(each) for each in node.value]

    def add(node: Any, path: str, merges: bool = False) -> None:
        line = node.start_mark.line + 1
        if path.count(".") > DEEPEST or len(found) > MAX_VALUES:
            raise error_at(file, line, f"more than {DEEPEST} levels or {MAX_VALUES:,} values; write fewer")
        if node.tag.startswith("!"):
            raise error_at(file, line, f"the value has the tag {node.tag}; write it without the tag")
        prefix = path and f"{path}."
        if isinstance(node, yaml.MappingNode):
            # The keys of a merge come last, because those of the mapping itself override them.
            for key, inner in sorted(node.value, key=lambda entry: entry[0].value == "<<"):
                if key.value == "<<":
                    for merged in inner.value if isinstance(inner, yaml.SequenceNode) else (inner,):
                        add(merged, path, merges=True)
                else:
                    add(inner, f"{prefix}{key.value}", merges)
        elif isinstance(node, yaml.SequenceNode) and not (
            node.flow_style and all(isinstance(each, yaml.ScalarNode) for each in node.value)
        ):
            for number, inner in enumerate(node.value):
                add(inner, f"{prefix}{number}", merges)
        elif path not in found or not merges:
            if path in found:  # the last one counts, as in other readers of YAML; `Settings` notes both
                twice.append(found[path])
            found[path] = Setting(path, value(node), line)

    if root is not None and not isinstance(root, yaml.MappingNode):
        raise error_at(file, root.start_mark.line + 1, "the file has no mapping of settings; write `key: value` lines")
    if root is not None:
        add(root, "")
    return Values(file, found, twice)
