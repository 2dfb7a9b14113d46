"""Public names of operators that PyTorch's own database has, beside PyTorch on the database's samples."""

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice, product, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc
from docs.site.operator_database import operators_of_pytorch
from docs.site.operator_samples import OperatorSample
from mspc import Tensor
from mspc.ir.types import dtype_of
from tests.oracle.inputs import SPECIAL, as_type
from tests.oracle.judging import Case, Judge, public, to_array, to_torch, torch, unlike
from tests.oracle.names import everywhere
from tests.shares import is_taken

LISTED = Path(__file__).with_name("database_names.txt")
"""Names that equal PyTorch on the samples of the element types behind them, and refuse those of all others."""
TYPES = ("float32", "float64", "float16", "bfloat16", "int32", "uint8", "bool")
SAMPLES = 20
"""How many samples of an element type are taken."""
SPELLED = {"dim": ("axis",), "keepdim": ("keep_dims", "keepdims"), "input": ("x",)}
"""Arguments that ops and Tensor call otherwise than PyTorch."""
GROUPS, PARTS = 24, 16


@cache
def operators() -> dict[str, Any]:
    """The operators of PyTorch by the public names that are theirs."""
    found = dict[str, Any]()
    for each in operators_of_pytorch():
        for word in (each.name, *(alias.name for alias in each.aliases)):
            for name in everywhere(word.rpartition(".")[2]):
                found.setdefault(name, each)
    return found


def listed() -> dict[str, list[str]]:
    """The element types of every name that is listed."""
    lines = (line.split() for line in LISTED.read_text(encoding="utf-8").splitlines())
    return {name: types for name, *types in lines}


def samples(each: Any, dtype: str) -> Iterator[Any]:
    """Samples of an element type, and for elementwise operators others with numbers that are not finite, with ties and
    with operands of two types."""
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo, SampleInput, UnaryUfuncInfo

    kind = getattr(torch, dtype)
    if kind not in each.dtypes:
        return
    torch.manual_seed(0)
    np.random.seed(0)
    with warnings.catch_warnings(), contextlib.suppress(RuntimeError, NotImplementedError):
        warnings.simplefilter("ignore")
        yield from islice(each.sample_inputs("cpu", kind, requires_grad=False), SAMPLES)
    is_float = dtype in ("float32", "float64")
    if is_float and isinstance(each, UnaryUfuncInfo):
        yield SampleInput(torch.tensor(SPECIAL, dtype=kind))
    if isinstance(each, BinaryUfuncInfo):
        if is_float:
            x, y = np.array(list(product(SPECIAL, SPECIAL))).T
            yield SampleInput(torch.tensor(x, dtype=kind), torch.tensor(y, dtype=kind))
        for other in TYPES:
            x, y = (
                as_type(np.linspace(*ends, 12).reshape(3, 4), each) for ends, each in (((1, 5), dtype), ((4, 2), other))
            )
            yield SampleInput(to_torch(x), to_torch(y))


def spelled(name: str, function: Callable[..., Any], named: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by the names that the public function gives them."""
    place, _, short = name.rpartition(".")
    known = inspect.signature(getattr(Tensor, short) if place == "Tensor" else function).parameters
    other = {key: next((each for each in SPELLED.get(key, ()) if each in known), key) for key in named}
    return {key if key in known else other[key]: value for key, value in named.items()}


def case_of(name: str, each: Any, given: Any) -> Case:
    """Return the case of one sample. Gradients are compared if its tensors are the first arguments."""
    sample = OperatorSample(each, given)
    arrays = [to_array(tensor.resolve_conj().resolve_neg()) for tensor in sample.tensors]
    values = [given.input, *given.args]
    leading = next((place for place, value in enumerate(values) if not isinstance(value, torch.Tensor)), len(values))
    is_plain = leading == len(arrays)

    def theirs(*operands: Any, **_: Any) -> list[Any]:
        return [each.resolve_conj() for each in sample(*operands[: len(arrays)])]

    def call(function: Callable[..., Any], *tensors: Any) -> Any:
        leaves = list(map(of_mspc, sample.leaves))
        for place, tensor in zip(sample.places, tensors, strict=True):
            leaves[place] = tensor
        first, args, named = sample.tree.tree_unflatten(leaves, sample.spec)
        return function(first, *args, **spelled(name, function, named))

    if not is_plain:
        return Case(Judge((name,), theirs, (), gradient=False, loose=8, ours=call), arrays, (), {})
    named = {key: of_mspc(value) for key, value in given.kwargs.items()}
    rest = tuple(map(of_mspc, values[leading:]))
    return Case(Judge((name,), theirs, (), loose=8), arrays, rest, spelled(name, public(name), named))


def of_mspc(value: Any) -> Any:
    return dtype_of(str(value)[6:]) if isinstance(value, torch.dtype) else value


def has_gradients(case: Case) -> bool:
    """Return whether PyTorch differentiates the case."""
    try:
        return case.judge.gradient and case.smooth and bool(case.their_gradients)
    except (RuntimeError, NotImplementedError):
        return False


def difference(name: str, case: Case, dtype: str, is_first: bool) -> str:
    """How a public function differs on a sample; of the first one, gradients and a compiled call are compared, too."""
    function = public(name)
    if isinstance(case.theirs, Exception):
        return ""
    try:
        text = case.difference(function, repeat(is_first and dtype == "float64" and has_gradients(case)))
        if text or not is_first or dtype != "float32" or not case.judge.gradient:
            return text
        tensors, rest, named = list(map(Tensor, case.arrays)), case.arguments, case.named
        compiled = mspc.jit(lambda *given: function(*given, *rest, **named))(*tensors)
        text = unlike(compiled, function(*tensors, *rest, **named), 8)
        return f"compiled: {text}" if text else ""
    except (TypeError, AttributeError, ValueError) as error:
        return f"refused: {error}"


def verdicts(name: str) -> dict[str, set[str]]:
    """How samples of a name differ, by element type."""
    each = operators()[name]
    found = dict[str, set[str]]()
    for dtype in TYPES:
        cases = (case_of(name, each, given) for given in samples(each, dtype))
        with np.errstate(all="ignore"):
            texts = {difference(name, case, dtype, not place) for place, case in enumerate(cases)}
        if texts:
            found[dtype] = texts
    return found


def right_types(found: dict[str, set[str]]) -> list[str]:
    """Element types whose samples are all right, unless others are not all refused."""
    wrong = [dtype for dtype, texts in found.items() if texts != {""}]
    is_refused = all(text.startswith("refused") for dtype in wrong for text in found[dtype])
    return [dtype for dtype in found if dtype not in wrong] if is_refused else []


@pytest.mark.parametrize("group", range(GROUPS))
def test_names_equal_pytorch_on_the_samples_of_its_database(group: int) -> None:
    wanted = {name: types for place, (name, types) in enumerate(listed().items()) if place % GROUPS == group}
    taken = [name for place, name in enumerate(wanted) if is_taken(place + group, PARTS)]
    found = {name: verdicts(name) for name in taken}
    assert {name: verdict for name, verdict in found.items() if right_types(verdict) != wanted[name]} == {}


def test_the_list_is_that_of_the_names_that_are_right(update_goldens: bool) -> None:
    if update_goldens:
        right = {name: right_types(verdicts(name)) for name in operators()}
        LISTED.write_text("".join(f"{name} {' '.join(types)}\n" for name, types in right.items() if types))
    assert len(listed()) > 500
    assert listed().keys() <= operators().keys()
