"""Settings of a configuration file with their lines, read by name and type, and the mistakes found in them."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mspc.ir.diagnostics import Location, MspcError
from mspc.ir.late_dataclass import dataclass

MAX_SIZE = 10**9
"""Largest size that a setting may have. Larger ones are slips of the finger."""
MAX_LAYERS = 10_000
"""Most layers of a model."""


def tables_of(name: str) -> Mapping[str, Any]:
    """Return the tables of a data file in this folder, `NAME.toml`."""
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))


CHOICES = {name: words.split() for name, words in tables_of("mistakes")["choices"].items()}
"""Words that a setting or each word of it may be, by Megatron's name."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a file. name: by Megatron's name, which all readers use. line: its number in the file, or 0.
    shown: its name in the file, if that differs."""

    name: str
    value: Any
    line: int = 0
    shown: str = ""


def error_at(file: str, line: int, text: str, notes: Iterable[str] = ()) -> MspcError:
    """Return the error of a line of a file; of the file if the line is 0."""
    if not line:
        return MspcError(f"{file}: {text}", notes=notes)
    return MspcError(text, location=Location(file, line), notes=notes)


def is_stated(word: str) -> bool:
    """Return if a word is a value: variables of the shell are not known, and programs choose for "auto"."""
    return "$" not in word and word != "auto"


class Values:
    """The values of a file by dotted path, with their lines."""

    def __init__(self, file: str, by_path: Mapping[str, Setting], twice: Iterable[Setting] = ()) -> None:
        self.file, self.by_path, self.twice = file, by_path, list(twice)

    def __contains__(self, path: str) -> bool:
        return path in self.by_path

    def value(self, path: str) -> Any:
        """Return the value at a path, or None."""
        return self.by_path[path].value if path in self.by_path else None

    def under(self, name: str, path: str, value: Any = None) -> Setting:
        """Return a setting with Megatron's name and the place of a path; its value, unless another is given."""
        line = getattr(self.by_path.get(path), "line", 0)
        return Setting(name, self.value(path) if value is None else value, line, path)

    def count(self, path: str, default: int = 0) -> int:
        """Return an integer of at least 1; the default for none, -1, 0 and "auto". Raise MspcError for another one."""
        value = self.value(path)
        if value in (None, "auto", -1, 0) and value is not False:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SIZE:
            raise self.wrong(path, f"is {value!r}; it is an integer between 1 and {MAX_SIZE:,}")
        return value

    def wrong(self, path: str, problem: str) -> MspcError:
        """Return the error of a mistake at a path."""
        return error_at(self.file, self.under(path, path).line, f"{path} {problem}")


class ConfigurationSettings:
    """Settings by name. Mistakes are collected, so that all are reported together. core: Megatron Core reads them."""

    def __init__(self, file: str, found: Iterable[Setting], prefix: str = "", core: bool = True) -> None:
        self.file, self.prefix, self.core = file, prefix, core
        self.by_name: dict[str, Setting] = {}
        self.mistakes: list[tuple[int, str]] = []
        self.notes: list[str] = []
        for setting in found:
            before = self.by_name.get(setting.name)
            if before is not None and before.value != setting.value and before.line and setting.line:
                first = f"{self.shown(setting.name)} is {before.value!r} on line {before.line}"
                self.notes.append(f"{first} and {setting.value!r} on line {setting.line}, which counts")
            self.by_name[setting.name] = setting

    def __contains__(self, name: str) -> bool:
        return name in self.by_name

    def mistake(self, name: str, problem: str, right: str) -> None:
        """Record a mistake in a setting. right: the value that works."""
        line, text = self.by_name[name].line if name in self else 0, f"{self.shown(name)} {problem}; "
        if not any(each.startswith(text) for _, each in self.mistakes):
            self.mistakes.append((line, text + right))

    def shown(self, name: str) -> str:
        """Return the name of a setting as the file has it."""
        found = self.by_name.get(name)
        return found.shown if found is not None and found.shown else self.prefix + name

    def check(self) -> None:
        """Raise MspcError with all mistakes, if there are any."""
        if self.mistakes:
            (line, first), *rest = sorted(set(self.mistakes))
            notes = [f"{self.file}:{line}: {text}" if line else text for line, text in rest]
            raise error_at(self.file, line, first, notes)

    def raw(self, name: str) -> Any:
        """Return the value as read, or None."""
        return self.by_name[name].value if name in self else None

    def known(self, name: str) -> Any:
        """Return the value, or None if it is a variable, whose value is not known."""
        value = self.raw(name)
        if not isinstance(value, str) or is_stated(value):
            return value
        note = f"{self.shown(name)} is {value}, which is not known: the default is taken"
        self.notes += [note] * (note not in self.notes)
        return None

    def text(self, name: str, default: str = "") -> str:
        """Return a text; the default if it is none of the setting's choices."""
        value = self.known(name)
        return default if value is None or str(value) not in CHOICES.get(name, (str(value),)) else str(value)

    def check_choices(self, choices: Mapping[str, list[str]]) -> None:
        """Record words that are none of their setting's choices."""
        for name, known in choices.items():
            for word in sorted(filter(is_stated, {*self.names(name)} - {*known})):
                near = difflib.get_close_matches(word, known, 1)
                self.mistake(name, f"is {word!r}", f"it is one of {', '.join(near or known)}")

    def flag(self, name: str) -> bool:
        """Return a switch, which is off if it is not set."""
        value = self.known(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        text = str(value).lower()
        if text not in ("true", "false", "1", "0", "yes", "no"):
            self.mistake(name, f"is {value!r}", "it is true or false")
        return text in ("true", "1", "yes")

    def count(self, name: str, default: int = 0, least: int = 1) -> int:
        """Return an integer from `least` to `MAX_SIZE`, or to `MAX_LAYERS` if it is a number of layers."""
        value = self.known(name)
        if value is None:
            return default
        try:
            number = int(str(value).replace("_", ""))
        except ValueError:
            self.mistake(name, f"is {value!r}", f"it is an integer of at least {least}")
            return default
        most = MAX_LAYERS if name.endswith("num-layers") else MAX_SIZE
        if not least <= number <= most:
            self.mistake(name, f"is {number:,}", f"it is between {least} and {most:,}")
            return default
        return number

    def number(self, name: str, default: float = 0.0) -> float:
        """Return a number."""
        value = self.known(name)
        if value is None:
            return default
        try:
            return float(value)
        except (TypeError, ValueError):
            self.mistake(name, f"is {value!r}", "it is a number")
            return default

    def names(self, name: str) -> list[str]:
        """Return a list of words, `[a b]`, `a,b` or a list."""
        value = self.raw(name)
        if value is None or isinstance(value, bool):
            return []
        if isinstance(value, (list, tuple)):
            return [str(item) for item in value]
        return str(value).strip("[]").replace(",", " ").split()
