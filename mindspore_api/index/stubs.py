"""Stubs of the public modules, for editors and type checkers.

They are made when mspc is installed, as two stub packages, of `mspc` and of `mindspore`, which import every name from
its module. Operators and rows of the index, which no Python file defines, have one line each. Functions of
tensors state no type for their result: it is one tensor, unless a table here says otherwise.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import keyword
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from mspc.ir.types import TensorType, TupleType, dtype_of
from mspc.mindspore_api.index.module import places_of
from mspc.mindspore_api.index.table import rows_of
from mspc.mindspore_api.ops.method_table import find_method, method_names
from mspc.mindspore_api.ops.primitive import Primitive
from mspc.mindspore_api.rooms import PUBLIC, home_of, other_names, public_modules, public_name
from mspc.ops.op import Op

TENSOR, SEVERAL, ANY = "Tensor", "tuple[Tensor, ...]", "Any"
OPERAND = "Tensor | np.ndarray | np.generic | complex"
"""Python's numbers are complex, for a type checker."""
_BINARY = "add sub mul truediv floordiv mod pow and or xor matmul".split()
_COMPARED = "lt le gt ge eq ne".split()
_KNOWN = re.compile(r"(?:Any|None|bool|int|float|str|bytes|list|tuple|dict|Self|Tensor|DType|TensorType|np\.\w+|\W+)*")
"""Annotations that mean something in the stub of the Tensor."""
_HEAD = """from collections.abc import Iterator
from typing import Any, Self

import numpy as np

from mspc.ir.types import DType, TensorType
"""


_STATED = {
    SEVERAL: "add_layer_norm add_rms_norm aminmax argmax_with_value argmin_with_value chunk clip_by_global_norm "
             "cummax cummin dsplit hsplit kthvalue median meshgrid moe_token_permute ops.max ops.min qr sort split "
             "std_mean tensor_split top_k topk triangular_solve unbind unique unstack var_mean vsplit",
    ANY: "DType Rank Shape Size TupleToArray adaptive_max_pool2d adaptive_max_pool3d atleast_1d atleast_2d "
         "atleast_3d clip_by_norm clip_by_value largest max max_pool2d max_pool3d min "
         "mixed_precision_cast nonzero smallest svd switch unique_consecutive "
         "mint.adaptive_max_pool1d mint.median numpy.linspace",
    TENSOR: "numpy.max numpy.min numpy.sort",
    "list[Tensor]": "numpy.hsplit numpy.split numpy.vsplit",
    "bool": "is_complex is_contiguous is_floating_point is_signed is_tensor",
    "int": "dim ndimension nelement numel rank size tuple_len numpy.ndim",
    "tuple[int, ...]": "shape",
    "DType": "dtype",
}  # fmt: skip
"""Functions of tensors that do not return one tensor, in all modules or in one."""
STATED = {name: kind for kind, names in _STATED.items() for name in names.split()}
_OF_TENSORS = re.compile(r"mspc\.mindspore_api\.(ops|mint|numpy)(?!\.distributed|\.own_operators|\.composites)\b.*")
"""Modules of functions that return one tensor, unless `_STATED` or their annotations say otherwise."""


def result_of(found: Any) -> str:
    """Return the type that a function of tensors, or an operator, returns."""
    if isinstance(found, Primitive):
        return of_operator(type(found.op))
    module = _OF_TENSORS.fullmatch(str(getattr(found, "__module__", "")))
    if module is None or not isinstance(found, FunctionType):
        return ANY
    name = found.__name__
    known = STATED.get(f"{module[1]}.{name}") or STATED.get(name)
    stated = str(found.__annotations__.get("return", ANY)).strip("'")
    return known or (TENSOR if stated in (ANY, "TensorLike") else stated if stated in (TENSOR, SEVERAL) else ANY)


@functools.cache
def of_operator(operator: type[Op]) -> str:
    """Return the type of an operator's results, by its samples."""
    kinds: set[str] = set()
    for sample in operator.samples:
        dtypes = sample.dtypes or ("Float32",) * len(sample.shapes)
        types = [TensorType(dtype_of(name), shape) for name, shape in zip(dtypes, sample.shapes, strict=True)]
        try:
            result = operator(**sample.fields).infer(*types)
        except Exception:  # a sample may have no type without a graph
            return ANY
        kinds.add(TENSOR if isinstance(result, TensorType) else SEVERAL if isinstance(result, TupleType) else ANY)
    return kinds.pop() if len(kinds) == 1 else ANY


# The Tensor ----------------------------------------------------------------------------------------


def tensor_stub(module: Any) -> str:
    """Return the stub of the module that defines the Tensor, which gets its operators and methods at run time."""
    lines = [_HEAD, "class Tensor:"]
    for name in _BINARY:
        lines += [f"    def __{name}__(self, other: {OPERAND}) -> Tensor: ...",
                  f"    def __r{name}__(self, other: {OPERAND}) -> Tensor: ...",
                  f"    def __i{name}__(self, other: {OPERAND}) -> Tensor: ..."]  # fmt: skip
    for name in _COMPARED:
        other = "object" if name in ("eq", "ne") else OPERAND
        lines.append(f"    def __{name}__(self, other: {other}) -> Tensor: ...")
    lines += [f"    def __{name}__(self) -> Tensor: ..." for name in ("neg", "pos", "abs", "invert")]
    lines += ["    def __hash__(self) -> int: ...", "    def __iter__(self) -> Iterator[Tensor]: ..."]
    own: dict[str, Any] = {}
    for cls in reversed(module.Tensor.__mro__[:-1]):
        own |= vars(cls)
    written = {f"__{mark}{name}__" for name in (*_BINARY, *_COMPARED, "neg", "pos", "abs", "invert", "hash", "iter")
               for mark in ("", "r", "i")}  # fmt: skip
    for name, value in sorted(own.items()):
        if name not in written and (not name.startswith("_") or name in _PYTHONS):
            lines += _member(name, value)
    for name in method_names():
        if name not in own:
            lines += _method(name, find_method(name))
    others = [n for n in vars(module) if not n.startswith("__") and n != "Tensor" and n not in _IN_HEAD]
    lines += ["", *(f"{name}: Any" for name in sorted(others))]
    return "\n".join(lines) + "\n"


_PYTHONS = frozenset(
    "__init__ __getitem__ __setitem__ __len__ __bool__ __int__ __float__ __complex__ __index__ __contains__".split()
)
_IN_HEAD = frozenset("Any Self Iterator np DType TensorType annotations".split())


def _member(name: str, value: Any) -> list[str]:
    """Return the lines of an attribute of the class."""
    if isinstance(value, property):
        getter: Any = value.fget
        kind = _safe(str(getter.__annotations__.get("return", ANY)))
        setter = [f"    @{name}.setter", f"    def {name}(self, value: Any) -> None: ..."] if value.fset else []
        return ["    @property", f"    def {name}(self) -> {TENSOR if kind == 'Self' else kind}: ...", *setter]
    if isinstance(value, staticmethod):
        return ["    @staticmethod", f"    def {name}{_signature(value.__func__)}: ..."]
    if isinstance(value, FunctionType):
        kind = {"__getitem__": TENSOR, "__bool__": "bool", "__int__": "int", "__float__": "float"}.get(name, "")
        return [f"    def {name}{_signature(value, kind)}: ..."]
    return [f"    {name}: Any"]


def _method(name: str, function: Any) -> list[str]:
    kind = result_of(function)
    if not isinstance(function, FunctionType):
        return [f"    def {name}(self, *args: Any, **kwargs: Any) -> {kind}: ..."]
    first, *rest = inspect.signature(function).parameters.values()
    if first.kind is first.VAR_POSITIONAL:
        return [f"    def {name}(self, *args: Any, **kwargs: Any) -> {kind}: ..."]
    # Other spellings of a name are accepted as well, see `method_table.respelled`.
    shown = [p for p in rest if p.kind is not p.VAR_KEYWORD]
    needed = [p.replace(annotation=ANY, default=... if p.default is not p.empty else p.empty) for p in shown]
    marks = [p.replace(kind=p.KEYWORD_ONLY) if p.kind is p.KEYWORD_ONLY else p for p in needed]
    text = str(inspect.Signature([first.replace(name="self", annotation=first.empty), *marks]))
    text = text.replace("'", "").replace("Ellipsis", "...")
    return [f"    def {name}{text.removesuffix(')')}, **kwargs: Any) -> {kind}: ..."]


def _signature(function: Callable[..., Any], kind: str = "") -> str:
    signature = inspect.signature(function)
    parameters = [
        p.replace(
            annotation=p.empty if p.annotation is p.empty else _safe(str(p.annotation)),
            default=p.empty if p.default is p.empty else ...,
        )
        for p in signature.parameters.values()
    ]
    returned = kind or _safe(str(signature.return_annotation))
    text = str(signature.replace(parameters=parameters, return_annotation=returned))
    return text.replace("'", "").replace("Ellipsis", "...")


def _safe(annotation: str) -> str:
    """Return an annotation, Any if it has names that the stub does not know."""
    text = annotation.strip("'\"")
    return text if _KNOWN.fullmatch(text) else ANY


# Settings ------------------------------------------------------------------------------------------


def settings_signature(table: Any) -> str:
    """Return the signature of a function that takes the settings of a table by their names."""
    return f"(*, {', '.join(f'{name}: {_setting_type(row)} = ...' for name, row in table.items())}) -> None"


def _setting_type(row: Any) -> str:
    name = row.check.__qualname__.partition(".")[0]
    return {"boolean": "bool", "text": "str", "integer": "int", "mapping": "dict[str, Any]"}.get(name, ANY)


PACKAGES = ("mspc-stubs", "mindspore-stubs")

FIRST = ("amp", "context", "device", "dtype", "runtime")
FILES = (
    "common.dtype", "common.initializer", "common.parameter", "common.seed", "common.tensor",
    "communication.comm_func", "communication.management", "dataset.config", "dataset.transforms", "dataset.vision",
    "mint.distributed", "mint.nn.functional", "nn.loss", "ops.functional",
    "ops.operations", "train.amp", "train.callback", "train.metrics", "train.model", "train.serialization",
)  # fmt: skip
"""Modules that are no folders of mindspore_api/ and have a stub."""
HEADER = "# Made where mspc is installed.\n"
PRIMITIVE = "mspc.mindspore_api.ops.primitive"
TENSORS = "mspc.mindspore_api.common.tensor"
FUNCTIONS = ("mspc.mindspore_api.ops.function.", "mspc.mindspore_api.mint.", "mspc.mindspore_api.numpy.")
"""Prefixes of the modules of tensor functions, which do not state the types of their results."""
SETTINGS = {"set_context": "CONTEXT", "set_auto_parallel_context": "PARALLEL"}
"""Functions of the module `context` that take settings by their names, and their tables."""
OWN = ("from mspc.commands.view.notebook import view as view\n",)
"""Names of mspc in addition to those of MindSpore."""


def modules() -> list[str]:
    """Return the public modules that have stubs."""
    folders = [name for name in public_modules() if name and name not in other_names()]
    folders = [name for name in folders if hasattr(importlib.import_module(home_of(name)), "__path__")]
    return sorted({*folders, *FIRST, *FILES})


def stubs() -> dict[str, str]:
    """Return the text of every stub, by path in the folder of both packages."""
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
    # The Tensor of the sources gets operators and methods at run time: checkers read the stub instead.
    found["mspc-stubs/mindspore_api/common/tensor.pyi"] = HEADER + tensor_stub(importlib.import_module(TENSORS))
    return found


def _below(name: str, known: list[str]) -> list[str]:
    return [m.rpartition(".")[2] for m in known if m.rpartition(".")[0] == name]


def _home(name: str) -> ModuleType:
    return importlib.import_module(home_of(name) or "")


def _names(name: str) -> dict[str, tuple[str, str]]:
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
    further = places_of(public_name(place)).get(own)
    if further == ("", ""):
        return f"mspc.{public_name(place)}", own
    return (place, own) if further is None or further == (place, own) else _chased(*further)


def _place_in_ops(found: object) -> str:
    place = getattr(found, "__module__", "") or ""
    return place if place.startswith(PUBLIC) and not _is_row(place) else ""


def _is_row(place: str) -> bool:
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
        found += [name.id for target in targets if target for name in ast.walk(target) if isinstance(name, ast.Name)]
        yield from (name for name in found if not name.startswith("_"))


def _lines(name: str) -> list[str]:
    first = next(m for m in ("", *modules()) if home_of(m) == home_of(name))
    if first != name:
        return [f"from mspc.{first} import *\n"]
    found = {n: _stated(name, n, *place) for n, place in _names(name).items()}
    lines = [f"from {place} import {own} as {n}\n" for n, (place, own) in sorted(found.items()) if place]
    operators = [n for n, (place, _) in sorted(found.items()) if not place]
    if operators:
        first = ("from collections.abc import Sequence", "from typing import Any, Literal, Self, overload")
        first = (*first, f"from {TENSORS} import Tensor as Tensor")
        first = (*first, "from mspc.ir.types import DType")
        lines = [*(f"{line}\n" for line in first), f"from {PRIMITIVE} import Primitive as Primitive\n", *lines]
        lines = [line for i, line in enumerate(lines) if line not in lines[:i]]
    return lines + [_operator(getattr(_home(name), n), n) for n in operators]


def _stated(module: str, name: str, place: str, own: str) -> tuple[str, str]:
    """Return the place of a name, or ("", "") if its stub states more types than its source does."""
    if place == "mspc.mindspore_api.context" and own in SETTINGS:
        return ("", "") if module == "context" else ("mspc.context", own)
    found = getattr(importlib.import_module(place), own, None) if place.startswith(FUNCTIONS) else None
    if isinstance(found, FunctionType) and (_cases(found) or (module == "ops" and result_of(found) != ANY)):
        return "", ""
    return place, own


def _operator(found: object, name: str) -> str:
    about = (inspect.getdoc(found) or "").partition("\n")[0].replace("\\", "").replace('"', "'")
    doc = f'    """{about}"""\n' if about else "    ...\n"
    if inspect.isclass(found):
        return f"class {name}(Primitive):\n{doc}{_class_body(found)}"
    if name in SETTINGS:
        table = getattr(importlib.import_module("mspc.mindspore_api.settings"), SETTINGS[name])
        return f"def {name}{settings_signature(table)}:\n{doc}"
    if not isinstance(found, FunctionType):
        return f"def {name}(*args: Any, **kwargs: Any) -> {result_of(found)}:\n{doc}"
    cases = _cases(found)
    if cases:
        return "".join(f"@overload\ndef {name}{_shown(case)}:\n{doc}" for case in cases)
    signature = _shown(inspect.signature(found)).rpartition(" -> ")[0]
    return f"def {name}{signature} -> {result_of(found)}:\n{doc}"


def _class_body(found: type) -> str:
    """Return the constructor of an operator, with its fields by the names of scripts, and its call."""
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


_SWITCHES = {"return_indices": False, "as_tuple": False, "compute_uv": True, "dim": None}
"""Parameters that decide whether a function returns a tensor or several, and their defaults."""
_SWITCHED = (
    "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "max", "max_pool2d", "max_pool3d", "median",
    "min", "nonzero", "svd",
)  # fmt: skip


def _cases(function: FunctionType) -> list[inspect.Signature]:
    """Return a signature for every type of result, if that depends on a parameter: its default, another value given by
    name (an axis by position, too), and any value."""
    signature = inspect.signature(function)
    name = next((each for each in _SWITCHES if each in signature.parameters), None)
    if name is None or function.__name__ not in _SWITCHED:
        return []
    default, given = _SWITCHES[name], signature.parameters[name]
    usual, other = ("None", "int") if default is None else (f"Literal[{default}]", f"Literal[{not default}]")
    wanted = given.replace(annotation=other, default=given.empty)
    parameters = list(signature.parameters.values())
    place = parameters.index(given)
    changed = [*parameters[:place], wanted, *parameters[place + 1 :]]
    if default is not None:
        changed[place:] = [p.replace(kind=p.KEYWORD_ONLY) for p in changed[place:]]
    parameters[place] = given.replace(annotation=usual)
    results = (SEVERAL, TENSOR) if default else (TENSOR, SEVERAL)
    found = [signature.replace(parameters=p, return_annotation=r)
             for p, r in zip((parameters, changed), results, strict=True)]  # fmt: skip
    return [*found, signature.replace(return_annotation=ANY)]


def _shown(signature: inspect.Signature) -> str:
    """Return a signature for stubs, without default values."""
    parameters = [p if p.default is p.empty else p.replace(default=_SOME) for p in signature.parameters.values()]
    text = str(signature.replace(parameters=parameters))
    return _TENSOR_KINDS.sub("Any", text).replace("'", "")


class _Some:
    """Default value that a stub does not state."""

    def __repr__(self) -> str:
        return "..."


_SOME = _Some()
_TENSOR_KINDS = re.compile(r"\bTensorLike\b")


def write(folder: Path) -> None:
    """Make both stub packages below a folder, in place of those of before."""
    for package in PACKAGES:
        shutil.rmtree(folder / package, ignore_errors=True)
    for name, text in stubs().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
