"""This module makes an operator and the user's strategies from a node's name and its primitive_attrs.
`mspc.ir.text.parser` uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import OpLike
from mspc.ir.named_layout import NamedLayout
from mspc.ir.opaque import OpaqueOp
from mspc.ir.text.attribute_types import fields_of
from mspc.ir.text.fragments import read_attributes
from mspc.ir.text.source_text import SourceText

Registry = Mapping[str, Callable[..., OpLike]]
"""Operator classes (frozen dataclasses) by the name that the text uses."""


class OperatorReader:
    """Makes operators for one file; nodes with the same text share one, since operators never change."""

    def __init__(self, source: SourceText, registry: Registry) -> None:
        self.source = source
        self.registry = registry
        self.known: dict[tuple[str, str], tuple[OpLike, Any, Any]] = {}

    def read(self, name: str, text: str, at: int) -> tuple[OpLike, Any, Any]:
        """(operator, in strategy, out strategy); `text` is in braces at a character of the file."""
        found = self.known.get((name, text))
        if found is None:
            attributes = dict(self.source.piece(read_attributes, text, at))
            inner, outer = (_take_strategy(attributes, side) for side in ("in", "out"))
            found = self.known[name, text] = (self.operator(name, attributes, at), inner, outer)
        return found

    def operator(self, name: str, attributes: dict[str, Any], at: int) -> OpLike:
        """The registered operator with these attributes: all its fields, but for `omitted` ones."""
        cls = self.registry.get(name)
        if cls is None:
            return OpaqueOp(name, attributes)
        fields = fields_of(cls)  # type: ignore[arg-type]  # a registry holds classes
        notes = (f"its attributes are: {', '.join(fields)}",) if fields else ("it has no attributes",)
        for key, value in attributes.items():
            field = fields.get(key)
            if field is None:
                self.source.fail(f"{name} has no attribute '{key}'", at, notes)
            if not field.fits(value):
                self.source.fail(f"{name}: attribute '{key}' is {value!r}, not {field.annotation}", at)
        omitted = getattr(cls, "omitted", ())
        for key in fields:
            if key not in attributes and key not in omitted:
                self.source.fail(f"{name} lacks the attribute '{key}'", at, notes)
        try:
            return cls(**attributes)
        except MspcError as error:
            self.source.fail(error.message, at, error.notes)
        except (TypeError, ValueError, ArithmeticError, LookupError, AssertionError) as error:
            self.source.fail(f"{name} cannot have these attributes: {error}", at)


def _take_strategy(attributes: dict[str, Any], side: str) -> Any:
    """The user's strategy of one side, removed from the attributes; None where there is none."""
    for kind in ("strategy", "layout"):
        value: Any = attributes.get(f"{side}_{kind}")
        if _is_strategy(value):
            return attributes.pop(f"{side}_{kind}")
    return None


def _is_strategy(value: Any) -> bool:
    if not isinstance(value, tuple):
        return False
    return all(entry is None or isinstance(entry, (tuple, NamedLayout)) for entry in cast("tuple[Any, ...]", value))
