"""Text formats of configurations, read as data: YAML's block mappings and lists, TOML and JSON, with lines.

The reader of YAML takes the part that configurations use: nested mappings and lists, flow lists and mappings on one
line, values on several lines, quoted texts and anchors. It needs no other package and gives every value its line.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.readers.configurations.settings import Setting, Values, error_at

_KEY = re.compile(r"""^(?:"(?P<d>[^"]*)"|'(?P<s>[^']*)'|(?P<p>[^\s#:"'\[{][^#:]*?)):(?:\s+(?P<rest>.*))?$""")
DEEPEST = 64
"""Most levels of a YAML file."""


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    indent: int
    text: str


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
    yaml = _Yaml(file, text)
    return Values(file, yaml.settings(), yaml.twice)


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
    """Return the value of a scalar of YAML: a text, a number, a truth value, None, or a flow list."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    if text.startswith("[") and text.endswith("]") and "*" not in text:
        return [scalar(item) for item in text[1:-1].split(",") if item.strip()]
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


class _Yaml:
    """One reading of a YAML text."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.found: dict[str, Setting] = {}
        self.twice: list[Setting] = []
        self.anchors: dict[str, str] = {}
        self.lines: list[_Line] = []
        for number, line in enumerate(text.splitlines(), 1):
            plain = _without_comment(line)
            if plain.strip() in ("", "---", "..."):
                continue
            if "\t" in line[: len(line) - len(line.lstrip())]:
                raise self.error(number, "is indented with a tab", "indent with spaces")
            self.lines.append(_Line(number, len(plain) - len(plain.lstrip()), plain.strip()))

    def error(self, number: int, problem: str, right: str) -> MspcError:
        """Return the error of a line."""
        return error_at(self.file, number, f"the line {problem}; {right}")

    def settings(self) -> dict[str, Setting]:
        """Return all values by path."""
        end = self.block(0, self.lines[0].indent if self.lines else 0, "", 0)
        if end < len(self.lines):
            raise self.error(self.lines[end].number, "is indented less than the first", "indent it as its neighbours")
        return self.found

    def block(self, start: int, indent: int, prefix: str, depth: int) -> int:
        """Read the lines of one mapping or list; return the place after it."""
        if depth > DEEPEST:
            raise self.error(self.lines[start].number, f"is more than {DEEPEST} levels deep", "nest less")
        place = start
        items = 0
        while place < len(self.lines) and self.lines[place].indent >= indent:
            line = self.lines[place]
            if line.indent > indent:
                raise self.error(line.number, "is indented more than the one before it", "indent both alike")
            if line.text.startswith("- ") or line.text == "-":
                place = self.item(place, f"{prefix}{items}", depth)
                items += 1
                continue
            place = self.entry(place, prefix, depth)
        return place

    def item(self, place: int, path: str, depth: int) -> int:
        """Read an item of a list; return the place after it."""
        line = self.lines[place]
        rest = line.text[1:].strip()
        if _KEY.match(rest):
            inner = line.indent + len(line.text) - len(rest)
            self.lines[place] = _Line(line.number, inner, rest)
            return self.block(place, inner, path + ".", depth + 1)
        self.found[path] = Setting(path, scalar(rest), line.number)
        return place + 1

    def entry(self, place: int, prefix: str, depth: int) -> int:
        """Read a key and its value; return the place after them."""
        line = self.lines[place]
        match = _KEY.match(line.text)
        if match is None:
            right = "write a colon and a space after the key"
            raise self.error(line.number, f"{line.text[:40]!r} is no `key: value`", right)
        key = next(group for group in (match["d"], match["s"], match["p"]) if group is not None).strip()
        rest, path = (match["rest"] or "").strip(), prefix + key
        following = self.lines[place + 1] if place + 1 < len(self.lines) else None
        if path in self.found:
            # The last one counts, as in other readers of YAML; `Settings` notes both.
            self.twice.append(self.found[path])
        if rest.startswith("!"):
            raise self.error(line.number, "has a tag", "write the value without it")
        if rest.startswith("&"):
            name, _, rest = rest[1:].partition(" ")
            self.anchors[name] = path
            rest = rest.strip()
        if rest.startswith("*"):
            self.copy(rest[1:].strip(), prefix.rstrip(".") if key == "<<" else path, line.number)
            return place + 1
        if rest in ("|", ">", "|-", ">-"):
            return self.text(place, path)
        if not rest and following is not None and following.text.startswith("- ") and following.indent == line.indent:
            return self.list_at(place + 1, line.indent, path, depth)
        if not rest and following is not None and following.indent > line.indent and (
            _KEY.match(following.text) or following.text.startswith("- ")
        ):  # fmt: skip
            return self.block(place + 1, following.indent, path + ".", depth + 1)
        rest, end = self.joined(place, rest)
        if rest.startswith("{") and rest.endswith("}"):
            self.flow_mapping(rest, path, line.number)
        else:
            self.found[path] = Setting(path, scalar(rest), line.number)
        return end

    def joined(self, place: int, rest: str) -> tuple[str, int]:
        """Return a value with its further lines, and the place after them: lines that are indented more, or that
        precede the closing bracket."""
        line, end = self.lines[place], place + 1
        while end < len(self.lines) and (
            self.lines[end].indent > line.indent
            or (rest[:1] in ("[", "{") and sum(map(rest.count, "[{")) > sum(map(rest.count, "]}")))
        ):
            if rest[:1] not in ("[", "{", '"', "'") and _KEY.match(self.lines[end].text):
                raise self.error(self.lines[end].number, "is indented more than the one before it", "indent both alike")
            rest = f"{rest} {self.lines[end].text}".strip()
            end += 1
        return rest, end

    def flow_mapping(self, text: str, path: str, number: int) -> None:
        """Read `{a: 1, b: 2}`."""
        for part in filter(None, (part.strip() for part in text[1:-1].split(","))):
            name, _, value = part.partition(":")
            inner = f"{path}.{name.strip(' ' + chr(34) + chr(39))}"
            self.found[inner] = Setting(inner, scalar(value), number)

    def copy(self, anchor: str, path: str, number: int) -> None:
        """Give a path the value of an anchor, or all values below it."""
        source = self.anchors.get(anchor)
        if source is None:
            raise self.error(number, f"reads the anchor {anchor}, which no line before it makes", "write the value out")
        for name, setting in list(self.found.items()):
            if name == source or name.startswith(source + "."):
                target = (path + name[len(source) :]).lstrip(".")
                if target not in self.found:
                    self.found[target] = Setting(target, setting.value, number)

    def list_at(self, place: int, indent: int, path: str, depth: int) -> int:
        """Read a list that is indented as its key is; return the place after it."""
        items = 0
        while place < len(self.lines) and self.lines[place].indent == indent and self.lines[place].text[:1] == "-":
            place = self.item(place, f"{path}.{items}", depth + 1)
            items += 1
        return place

    def text(self, place: int, path: str) -> int:
        """Read a text of several lines; return the place after it."""
        line, end = self.lines[place], place + 1
        while end < len(self.lines) and self.lines[end].indent > line.indent:
            end += 1
        self.found[path] = Setting(path, "\n".join(each.text for each in self.lines[place + 1 : end]), line.number)
        return end


def _without_comment(line: str) -> str:
    """Return a line up to a `#` outside of quotes that a space or nothing precedes."""
    quote = ""
    for place, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'" and (place == 0 or line[place - 1] in " [{,:"):
            quote = letter
        elif letter == "#" and (place == 0 or line[place - 1].isspace()):
            return line[:place].rstrip()
    return line.rstrip()
