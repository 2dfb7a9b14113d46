"""Settings of scripts: default, check, effect, and the conditions under which a setting changes nothing."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mspc.ir.diagnostics import Location
from mspc.ir.diagnostics import shown as shown_text
from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api import state
from mspc.mindspore_api.checks import Check, anything
from mspc.mindspore_api.errors import ApiValueError, caller_location

Reason = str | Callable[[Any], str]
"""Reason, or a function that returns the reason for a value, "" if the value is used."""

Places = tuple[tuple[str, Location], ...]
"""Names of settings, those of entries as in "gpu_config['matmul_allow_tf32']", and the lines that have set them."""


@dataclass(frozen=True)
class CallSite:
    """Conditions of a launch of a network. command: "compile" or "run". mode: a ParallelMode. device: "CPU" or "GPU".
    enabled: names of the settings that are on."""

    command: str
    mode: str
    device: str
    enabled: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Setting:
    """One keyword of a function that sets something. A value other than the default is used, refused, or changes
    nothing, as one warning says.

    changes: its effect; "" for none. ignored: why it changes nothing. refused: why other values are wrong. modes: the
    parallel modes in which it is used, () for all. needs: the setting without which it changes nothing. elsewhere:
    returns the reason why it changes nothing at a launch. field: its name in `FrozenContext`; "" for the same name.
    attribute: its name in `Config` and in the header of the graph, to be read by a pass. compiled: computes that
    attribute from the value. entries: settings for the entries of a dict.
    """

    name: str
    default: Any
    check: Check = anything
    changes: str = ""
    ignored: Reason = ""
    refused: Reason = ""
    modes: tuple[str, ...] = ()
    needs: str = ""
    elsewhere: Callable[[CallSite], str] | None = None
    field: str = ""
    attribute: str = ""
    compiled: Callable[[Any], Any] | None = None
    entries: tuple[Setting, ...] = ()

    @property
    def frozen_name(self) -> str:
        return self.field or self.name

    @property
    def is_conditional(self) -> bool:
        """Return whether its effect depends on the launch."""
        return bool(self.modes or self.needs or self.elsewhere)

    def attribute_of(self, value: Any) -> Any:
        """Return the value of a setting for the compiler."""
        return value if self.compiled is None else self.compiled(value)

    def without_effect(self, place: CallSite) -> str:
        """Return why any other value than the default changes nothing at `place`, or "" if it is used."""
        if self.modes and place.mode not in self.modes:
            return f"it counts in {' and '.join(self.modes)} mode, and the mode is {place.mode}"
        if self.needs and self.needs not in place.enabled:
            return f"it counts beside {self.needs}=True"
        return "" if self.elsewhere is None else self.elsewhere(place)


Table = Mapping[str, Setting]


def table(*settings: Setting) -> dict[str, Setting]:
    return {setting.name: setting for setting in settings}


def checked(function: str, settings: Table, values: Mapping[str, Any], shown: str = "") -> dict[str, Any]:
    """Return the values to store for a call `function(**values)`, and report values that change nothing. `shown`: the
    call as the script wrote it, if it differs. Raise ValueError or TypeError if a name is unknown, or a value is wrong
    or unsupported; then no value is used."""
    for key in values:
        if key not in settings:
            raise unknown(function, key, settings)
    found = {key: settings[key].check(key, value) for key, value in values.items()}
    silent = [text for key, value in found.items() for text in _silent(function, settings[key], key, value, shown)]
    for subject, why in silent:
        say_once(name_of(subject), f"{place_of_caller()}{subject} changes nothing here: {why}")
    return found


def note_asked(
    asked: dict[str, tuple[str, str]], function: str, settings: Table, found: Mapping[str, Any], shown: str = ""
) -> None:
    """Note in `asked`, by name, the text and the line of settings that may change nothing, depending on the launch."""
    for key, value in found.items():
        for name, setting in with_entries({key: settings[key]}):
            own = value if name == key else (value or {}).get(setting.name, setting.default)
            asked.pop(name, None)
            if setting.is_conditional and own != setting.default:
                asked[name] = (shown or given(function, name, own), place_of_caller())


def note_places(places: dict[str, Location], settings: Table, found: Mapping[str, Any]) -> None:
    """Note in `places`, by name, the current line of the user's file, which set these values."""
    here = caller_location()
    for key, value in found.items():
        for name, setting in with_entries({key: settings[key]}):
            if name != key and setting.name not in (value or {}):
                continue
            places.pop(name, None)
            if here is not None:
                places[name] = here


def first_place(places: Places, *names: str) -> Location | None:
    """Return the place of the first of these names that has one, or None."""
    known = dict(places)
    return next((known[name] for name in names if name in known), None)


def set_where(name: str) -> list[str]:
    """Return a note with the line that set a setting, for the error of a call that the setting forbids."""
    place = state.current().set_at.get(name)
    return [f"{name} is set at {place}"] if place else []


def with_entries(settings: Table) -> Iterator[tuple[str, Setting]]:
    """Yield the settings and the entries of dicts among them, with names such as "gpu_config['matmul_allow_tf32']"."""
    for key, setting in settings.items():
        yield key, setting
        yield from ((f"{key}[{entry.name!r}]", entry) for entry in setting.entries)


def unknown(function: str, key: str, settings: Iterable[str]) -> ApiValueError:
    """Return the error for a name that `function` does not know."""
    import difflib  # only on the way to an error

    near = difflib.get_close_matches(key, settings, 1)
    note = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(settings)}"
    return ApiValueError(f"{function} has no key {key!r}", [note], code="E1003")


def given(function: str, name: str, value: Any) -> str:
    """Return the setting as the script wrote it."""
    return f"{function}({name}={value!r})"


def name_of(shown: str) -> str:
    """Return a setting as the script wrote it, without its value."""
    found = re.match(r"[\w.]+(\(\w+(\['\w+'\])?(?==))?", shown)
    return found[0] if found else shown


def place_of_caller() -> str:
    """Return `net.py:7:1: `, the current line of the user's file, or "" if there is none."""
    found = caller_location()
    return f"{found}: " if found else ""


def say_once(name: str, text: str) -> None:
    """Warn the user on stderr, once for every name; only one rank of a job prints."""
    session = state.current()
    if name in session.said:
        return
    session.said.add(name)
    if session.speaks:
        print(shown_text(f"warning: {text}", lines=True), file=sys.stderr, flush=True)


def _silent(function: str, setting: Setting, key: str, value: Any, shown: str) -> list[tuple[str, str]]:
    """Return (the setting as given, why it changes nothing) for the setting and its entries. Raise ValueError if the
    value is not supported."""
    found: list[tuple[str, str]] = []
    for entry in setting.entries:
        if isinstance(value, Mapping) and entry.name in value:
            own = entry.check(f"{key}[{entry.name!r}]", value[entry.name])
            found += _silent(function, entry, f"{key}[{entry.name!r}]", own, shown)
    if value == setting.default:
        return found
    refused = _why(setting.refused, value)
    if refused:
        raise ApiValueError(f"{shown or given(function, key, value)}: {refused}")
    ignored = _why(setting.ignored, value)
    return [*found, (shown or given(function, key, value), ignored)] if ignored else found


def _why(reason: Reason, value: Any) -> str:
    return reason if isinstance(reason, str) else reason(value)
