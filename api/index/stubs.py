"""Stubs of the public modules are made from the names that there are, for editors and type checkers.

They are made when mspc is installed, as two stub packages, of `mspc` and of `mindspore`, which import everything from
where it is defined; operators and rows of the index, which no file defines as Python, have a line each.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import keyword
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType

from mspc.api.index.module import places_of
from mspc.api.index.stub_types import ANY, of_operator, result_of, settings_signature, tensor_stub
from mspc.api.index.table import rows_of
from mspc.api.rooms import PUBLIC, home_of, other_names, public_modules, public_name

PACKAGES = ("mspc-stubs", "mindspore-stubs")

FIRST = ("amp", "context", "device", "dtype", "runtime")
FILES = (
    "common.dtype", "common.initializer", "common.parameter", "common.seed", "common.tensor",
    "communication.comm_func", "communication.management", "dataset.config", "dataset.transforms", "dataset.vision",
    "mint.distributed", "mint.nn.functional", "nn.loss", "ops.functional",
    "ops.operations", "train.amp", "train.callback", "train.metrics", "train.model", "train.serialization",
)  # fmt: skip
"""Modules that are no folders of api/ and have a stub."""
HEADER = "# Made where mspc is installed.\n"
PRIMITIVE = "mspc.api.ops.primitive"
TENSORS = "mspc.api.common.tensor"
FUNCTIONS = ("mspc.api.ops.function.", "mspc.api.mint.", "mspc.api.numpy.")
"""Where functions of tensors are defined, whose results have types that their sources do not state."""
SETTINGS = {"set_context": "CONTEXT", "set_auto_parallel_context": "PARALLEL"}
"""Functions of the module `context` that take settings by their names, and their tables."""
OWN = ("from mspc.commands.view.notebook import view as view\n",)
"""What mspc has beside the names of MindSpore."""


def modules() -> list[str]:
    """The public modules that have stubs."""
    folders = [name for name in public_modules() if name and name not in other_names()]
    folders = [name for name in folders if hasattr(importlib.import_module(home_of(name)), "__path__")]
    return sorted({*folders, *FIRST, *FILES})


def stubs() -> dict[str, str]:
    """The text of every stub, by its path below the folder of both packages."""
    known = modules()
    packages = {"", *(name.rpartition(".")[0] for name in known)}
    found = {f"{package}/py.typed": "partial\n" for package in PACKAGES}
    for name in ("", *known):
        path = name.replace(".", "/")
        file = f"{path}/__init__.pyi".lstrip("/") if name in packages else f"{path}.pyi"
        full = f"mspc.{name}".rstrip(".")
        below = [f"from {full} import {m} as {m}\n" for m in _below(name, known) if m not in _names(name)]
        found[f"mspc-stubs/{file}"] = HEADER + "".join([*_lines(name), *below, *(() if name else OWN)])
        same = [line.replace(f"from {full} ", f"from mindspore{full[4:]} ") for line in below]
        found[f"mindspore-stubs/{file}"] = HEADER + f"from {full} import *\n" + "".join(same)
    # The sources define the Tensor, which gets operators and methods when it runs: checkers read the stub instead.
    found["mspc-stubs/api/common/tensor.pyi"] = HEADER + tensor_stub(importlib.import_module(TENSORS))
    return found


def _below(name: str, known: list[str]) -> list[str]:
    return [m.rpartition(".")[2] for m in known if m.rpartition(".")[0] == name]


def _home(name: str) -> ModuleType:
    return importlib.import_module(home_of(name) or "")


def _names(name: str) -> dict[str, tuple[str, str]]:
    """Where each public name of a module is defined and what it is called there, ("", "") for an operator."""
    home, rows = _home(name), rows_of(name or "mspc")
    if name == "ops":
        places = {n: _place_in_ops(getattr(home, n)) for n in dir(home)}
        return {n: (place, n if place else "") for n, place in places.items() if n != "partial"}
    places = {n: place for n, place in places_of(name or "mspc").items() if place[0]}
    places |= {n: (row.home, row.target) for n, row in rows.items() if row.kind == "hidden" and n[0] != "_"}
    shown = places if not name else getattr(home, "__all__", None) or _defined(home)
    shown = [n for n in {**places, **dict.fromkeys(shown)} if not isinstance(getattr(home, n), ModuleType)]
    return {n: _chased(*places[n]) if n in places else _place(home, n) for n in shown}


def _chased(place: str, own: str) -> tuple[str, str]:
    """The file behind a module that has a name from elsewhere itself."""
    further = places_of(public_name(place)).get(own)
    if further == ("", ""):
        return f"mspc.{public_name(place)}", own
    return (place, own) if further is None or further == (place, own) else _chased(*further)


def _place_in_ops(found: object) -> str:
    place = getattr(found, "__module__", "") or ""
    return place if place.startswith(PUBLIC) and not _is_row(place) else ""


def _is_row(place: str) -> bool:
    """Whether what is defined in a module are rows of the index."""
    return ("", "") in places_of(public_name(place)).values()


def _place(home: ModuleType, name: str) -> tuple[str, str]:
    place = getattr(getattr(home, name), "__module__", None) or home.__name__
    if _is_row(place):
        return ("", "") if place == home.__name__ else (f"mspc.{public_name(place)}", name)
    return place if hasattr(importlib.import_module(place), name) else home.__name__, name


def _defined(home: ModuleType) -> Iterator[str]:
    for node in ast.parse(Path(str(home.__file__)).read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found = [node.name] if isinstance(node, ast.ClassDef | ast.FunctionDef) else []
        found += [target.id for target in targets if isinstance(target, ast.Name)]
        yield from (name for name in found if not name.startswith("_"))


def _lines(name: str) -> list[str]:
    first = next(m for m in ("", *modules()) if home_of(m) == home_of(name))
    if first != name:
        return [f"from mspc.{first} import *\n"]
    found = {n: _stated(name, n, *place) for n, place in _names(name).items()}
    lines = [f"from {place} import {own} as {n}\n" for n, (place, own) in sorted(found.items()) if place]
    operators = [n for n, (place, _) in sorted(found.items()) if not place]
    if operators:
        first = ("from collections.abc import Sequence", "from typing import Any, Self")
        first = (*first, f"from {TENSORS} import Tensor as Tensor")
        lines = [*(f"{line}\n" for line in first), f"from {PRIMITIVE} import Primitive as Primitive\n", *lines]
        lines = [line for i, line in enumerate(lines) if line not in lines[:i]]
    return lines + [_operator(getattr(_home(name), n), n) for n in operators]


def _stated(module: str, name: str, place: str, own: str) -> tuple[str, str]:
    """The place of a name, ("", "") if its stub states more of its types than its source does."""
    if place == "mspc.api.context" and own in SETTINGS:
        return ("", "") if module == "context" else ("mspc.context", own)
    if module == "ops" and place.startswith(FUNCTIONS):
        found = getattr(importlib.import_module(place), own, None)
        return ("", "") if isinstance(found, FunctionType) and result_of(found) != ANY else (place, own)
    return place, own


def _operator(found: object, name: str) -> str:
    about = (inspect.getdoc(found) or "").partition("\n")[0].replace("\\", "").replace('"', "'")
    doc = f'    """{about}"""\n' if about else "    ...\n"
    if inspect.isclass(found):
        return f"class {name}(Primitive):\n{doc}{_class_body(found)}"
    if name in SETTINGS:
        table = getattr(importlib.import_module("mspc.api.settings"), SETTINGS[name])
        return f"def {name}{settings_signature(table)}:\n{doc}"
    if not isinstance(found, FunctionType):
        return f"def {name}(*args: Any, **kwargs: Any) -> {result_of(found)}:\n{doc}"
    signature = _shown(found).rpartition(" -> ")[0]
    return f"def {name}{signature} -> {result_of(found)}:\n{doc}"


def _class_body(found: type) -> str:
    """The constructor of an operator, with its fields by the names that scripts give them, and its call."""
    operator = getattr(found, "op_class", None)
    arguments, result = "*args: Any, **kwargs: Any", ANY
    if isinstance(operator, type) and "__init__" not in vars(found):
        spelled = [text.partition("=")[0] for text in operator.arguments]
        own = [field.name for field in dataclasses.fields(operator)]
        names = [name for name in dict.fromkeys([*spelled, *own]) if not keyword.iskeyword(name)]
        arguments = ", ".join(f"{name}: Any = ..." for name in names)
        result = of_operator(operator)
    return (
        f"    def __init__(self, {arguments}) -> None: ...\n".replace("(self, )", "(self)")
        + f"    def __call__(self, *args: Any, **kwargs: Any) -> {result}: ...\n"
        + "    def shard(self, in_strategy: Any = ..., out_strategy: Any = ...) -> Self: ...\n"
    )


def _shown(function: FunctionType) -> str:
    """A signature as stubs have it, without values."""
    signature = inspect.signature(function)
    parameters = [p if p.default is p.empty else p.replace(default=_SOME) for p in signature.parameters.values()]
    text = str(signature.replace(parameters=parameters))
    return _OF_TENSORS.sub("Any", text).replace("'", "")


class _Some:
    """A default of which a stub says nothing."""

    def __repr__(self) -> str:
        return "..."


_SOME = _Some()
_OF_TENSORS = re.compile(r"\b(TensorLike|COOTensor|CSRTensor)\b")


def write(folder: Path) -> None:
    """Make both stub packages below a folder, in place of those of before."""
    for package in PACKAGES:
        shutil.rmtree(folder / package, ignore_errors=True)
    for name, text in stubs().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
