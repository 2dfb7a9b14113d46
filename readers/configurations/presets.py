"""Published models by name, as Megatron's arguments: `models.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mspc.ir.diagnostics import MspcError, did_you_mean
from mspc.readers.configurations.settings import Setting, tables_of

_TABLES = tables_of("models")
PRESETS: Mapping[str, str] = MappingProxyType(_TABLES["models"])
"""Arguments of each model, `name=value`, and names of groups of them, `@name`."""


def preset_settings(name: str, option: str = "--preset") -> list[Setting]:
    """Return the arguments of a published model. Raise MspcError if there is none of that name."""
    if name not in PRESETS:
        notes = [*did_you_mean(name, list(PRESETS)), f"published models: {', '.join(PRESETS)}"]
        raise MspcError(f"{option} {name}: there is no published model of this name", notes=notes)
    return _settings(PRESETS[name])


def _settings(text: str) -> list[Setting]:
    found = list[Setting]()
    for part in text.split():
        if part.startswith("@"):
            found += _settings(_TABLES["groups"][part[1:]])
        else:
            key, _, value = part.partition("=")
            found.append(Setting(key, {"true": True, "false": False}.get(value, value)))
    return found
