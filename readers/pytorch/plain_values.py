"""Arguments of nodes that are data of their own: numbers, texts, element types, devices, and lists of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mspc.readers.pytorch.codes import LAYOUTS, MEMORY_FORMATS, element_type, named
from mspc.readers.pytorch.entries import entry, flag_in, list_in, object_in, text_in, whole_in
from mspc.readers.pytorch.program import Argument, Device, MemoryFormat, StorageLayout


def plain_number(tag: str, content: Any, where: str) -> int | float | bool:
    """A number that no symbol is in. Raises ValueError: it is none."""
    if tag == "as_int":
        return whole_in(content, where, -(1 << 63), (1 << 64) - 1)
    if tag == "as_bool":
        return flag_in(content, where)
    if tag == "as_float":
        return _float(content, where)
    raise ValueError(f"{where} is of kind {tag!r:.40}, not a number")


def _float(content: Any, where: str) -> float:
    """A float; infinities and NaN may be words."""
    if content in ("Infinity", "-Infinity", "NaN"):
        return float(content)
    if isinstance(content, bool) or not isinstance(content, int | float):
        raise ValueError(f"{where} is {content!r:.60}, not a number")
    return float(content)


def _device(content: Any, where: str) -> Device:
    owner = object_in(content, where)
    kind, index = text_in(entry(owner, "type", where), where), owner.get("index")
    return Device(kind if index is None else f"{kind}:{whole_in(index, where)}")


def _complex(content: Any, where: str) -> complex:
    owner = object_in(content, where)
    return complex(_float(entry(owner, "real", where), where), _float(entry(owner, "imag", where), where))


def _custom(content: Any, where: str) -> Argument:
    raise ValueError(f"{where} is an object of TorchScript ({content!r:.80}), which cannot be read as data")


def _list_of(one: Callable[[Any, str], Argument]) -> Callable[[Any, str], Argument]:
    return lambda content, where: tuple(one(value, where) for value in list_in(content, where))


def _int(content: Any, where: str) -> Argument:
    return whole_in(content, where, -(1 << 63), (1 << 64) - 1)


PLAIN: Mapping[str, Callable[[Any, str], Argument]] = {
    "as_none": lambda content, where: None,
    "as_int": _int,
    "as_ints": _list_of(_int),
    "as_int_lists": _list_of(_list_of(_int)),
    "as_float": _float,
    "as_floats": _list_of(_float),
    "as_float_lists": _list_of(_list_of(_float)),
    "as_bool": flag_in,
    "as_bools": _list_of(flag_in),
    "as_string": text_in,
    "as_strings": _list_of(text_in),
    "as_operator": text_in,
    "as_complex": _complex,
    "as_scalar_type": element_type,
    "as_memory_format": lambda content, where: MemoryFormat(named(content, MEMORY_FORMATS, where)),
    "as_layout": lambda content, where: StorageLayout(named(content, LAYOUTS, where)),
    "as_device": _device,
    "as_custom_obj": _custom,
}
"""Kinds of arguments that are data of their own."""
