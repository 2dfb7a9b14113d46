"""Stubs of the public modules, for editors and type checkers.

They are made when mspc is installed, as two stub packages, of `mspc` and of `mindspore`, which import every name from
its module. Operators and rows of the index, which no Python file defines, have one line each. A function of the index
states no type for its result; it follows from the operators that the function calls: one tensor or several.
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
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from mspc.ir.types import TensorType, TupleType, dtype_of
from mspc.mindspore_api.index.functions import tree_at
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
    TENSOR: "addcdiv addcmul argmax argmin argwhere avg_pool2d avg_pool3d cartesian_prod conv2d conv3d "
            "conv_transpose2d csr_mv csr_to_dense diagonal diff flash_attention_score fmax fmin grid_sample identity "
            "logcumsumexp lp_pool2d make_range max_unpool2d max_unpool3d mvlgamma pad padding positive stop_gradient "
            "strided_slice tuple_to_array",
    SEVERAL: "triangular_solve unique unique_with_pad",
    "COOTensor": "csr_to_coo dense_to_sparse_coo",
    "CSRTensor": "dense_to_sparse_csr",
    "bool": "is_complex is_floating_point",
    "int": "numel rank size",
    "tuple[int, ...]": "shape",
    "DType": "dtype",
}  # fmt: skip
"""Functions of tensors with results that do not follow from the operators they call."""
STATED = {name: kind for kind, names in _STATED.items() for name in names.split()}
_SPARSE = {"coo_": "COOTensor", "csr_": "CSRTensor"}


def result_of(found: Any) -> str:
    """Return the type that a function of tensors, or an operator, returns."""
    name = getattr(found, "__name__", "")
    if str(getattr(found, "__module__", "")).startswith(("mspc.mindspore_api.ops", "mspc.mindspore_api.mint")):
        known = STATED.get(name) or _SPARSE.get(name[:4])
        if known is not None:
            return known
    if isinstance(found, Primitive):
        return of_operator(type(found.op))
    if not isinstance(found, FunctionType):
        return ANY
    stated = str(found.__annotations__.get("return", ANY)).strip("'")
    if stated not in (ANY, "TensorLike"):
        return stated if stated in (TENSOR, SEVERAL) else ANY
    return _of_function(found)


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


_in_progress: set[FunctionType] = set()
UNDECIDED = ""


def _one(kinds: set[str]) -> str:
    """Return the one type of all cases, Any if there are several."""
    kinds.discard(UNDECIDED)
    return kinds.pop() if len(kinds) == 1 else ANY


@functools.cache
def _of_function(function: FunctionType) -> str:
    if function in _in_progress:  # it calls itself: its other results decide
        return UNDECIDED
    _in_progress.add(function)
    try:
        tree = _tree(function)
        if tree is None or isinstance(tree.returns, ast.Constant):
            return ANY
        results = _Results(function, tree)
        given = [node.value for node in _nodes(tree, ast.Return) if node.value is not None]
        return results.of_cases(given)
    finally:
        _in_progress.discard(function)


def _tree(function: FunctionType) -> ast.FunctionDef | None:
    code = inspect.unwrap(function).__code__  # type: ignore[attr-defined]  # a function
    try:
        if code.co_filename.endswith(".txt"):
            return tree_at(code.co_filename, code.co_firstlineno, function.__name__)
        found = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (LookupError, OSError, SyntaxError, TypeError):
        return None
    return found if isinstance(found, ast.FunctionDef) else None


def _nodes(tree: ast.FunctionDef, *kinds: type[ast.stmt]) -> Iterator[Any]:
    """Yield statements of a function, without those of functions inside."""
    left: list[ast.AST] = list(tree.body)
    while left:
        node = left.pop()
        if isinstance(node, kinds):
            yield node
        elif not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            left += ast.iter_child_nodes(node)


class _Results:
    """Infers the type of an expression in a function, with the names of the function's module."""

    def __init__(self, function: FunctionType, tree: ast.FunctionDef) -> None:
        self._globals = inspect.unwrap(function).__globals__  # type: ignore[attr-defined]  # a function
        self._parameters = set(inspect.signature(function).parameters)
        self._assigned: dict[str, list[ast.expr]] = {}
        """All values of a name, possibly of different types."""
        self._others: set[str] = set()
        """Names that get their values in another way."""
        self._in_progress: set[str] = set()
        for node in _nodes(tree, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.With):
            self._note(node)

    def _note(self, node: ast.stmt) -> None:
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if isinstance(node, ast.Assign) and isinstance(target, ast.Name):
            self._assigned.setdefault(target.id, []).append(node.value)
            return
        if isinstance(node, ast.Assign) and isinstance(target, ast.Tuple):
            names = [each.id for each in target.elts if isinstance(each, ast.Name)]
            if len(names) == len(target.elts):
                for name in names:
                    self._assigned.setdefault(name, []).append(ast.Subscript(node.value, ast.Constant(0)))
                return
        self._others |= {
            each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        }
        if isinstance(node, ast.For | ast.With):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Assign):
                    self._note(inner)

    def of_cases(self, nodes: Sequence[ast.expr]) -> str:
        """Return the common type of alternative values."""
        return _one({self.of(each) for each in nodes if not self._is_argument(each)})

    def of(self, node: ast.expr) -> str:
        """Return the type of an expression."""
        if isinstance(node, ast.Name):
            return self._of_name(node.id)
        if isinstance(node, ast.Tuple):
            return SEVERAL if node.elts and all(self.of(each) == TENSOR for each in node.elts) else ANY
        if isinstance(node, ast.IfExp):
            return self.of_cases((node.body, node.orelse))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            return TENSOR
        if isinstance(node, ast.BinOp):
            return TENSOR if TENSOR in (self.of(node.left), self.of(node.right)) else ANY
        if isinstance(node, ast.UnaryOp):
            return self.of(node.operand)
        if isinstance(node, ast.Subscript):
            one = isinstance(node.slice, ast.Constant) and self.of(node.value) in (TENSOR, SEVERAL)
            return TENSOR if one or self.of(node.value) == TENSOR else ANY
        return self._of_call(node) if isinstance(node, ast.Call) else ANY

    def _of_name(self, name: str) -> str:
        if name in self._in_progress:
            return UNDECIDED
        if name in self._others or name not in self._assigned:
            return ANY
        self._in_progress.add(name)
        found = self.of_cases(self._assigned[name])
        self._in_progress.discard(name)
        return found

    def _is_argument(self, node: ast.expr) -> bool:
        """Return whether it is an unchanged argument, which is a tensor if the other case is one."""
        return isinstance(node, ast.Name) and node.id in self._parameters

    def _of_call(self, node: ast.Call) -> str:
        called = node.func
        if isinstance(called, ast.Call):  # ops.Abs()(x)
            made = self._object(called.func)
            operator = getattr(made, "op_class", None)
            return of_operator(operator) if isinstance(operator, type) else ANY
        if isinstance(called, ast.Name) and called.id == "tuple" and len(node.args) == 1:
            made = node.args[0]
            parts = isinstance(made, ast.ListComp | ast.GeneratorExp) and self.of(made.elt) == TENSOR
            return SEVERAL if parts else ANY
        found = self._object(called)
        if found is not None:
            return result_of(found) if not inspect.isclass(found) else ANY
        if isinstance(called, ast.Attribute) and called.attr in method_names():
            return result_of(find_method(called.attr))
        return ANY

    def _object(self, node: ast.expr) -> Any:
        """Return the object with a name in the module, or None."""
        if isinstance(node, ast.Name) and node.id not in self._parameters:
            return self._globals.get(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            home = self._object(node.value)
            return getattr(home, node.attr, None) if inspect.ismodule(home) else None
        return None


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
SPARSE = "mspc.mindspore_api.ops.sparse_tensor"
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
        first = (*first, f"from {TENSORS} import Tensor as Tensor", f"from {SPARSE} import COOTensor, CSRTensor")
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
    return _OF_TENSORS.sub("Any", text).replace("'", "")


class _Some:
    """Default value that a stub does not state."""

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
