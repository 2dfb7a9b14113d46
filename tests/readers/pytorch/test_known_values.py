"""Masks whose numbers follow from the program alone: what an attention is told of them, and how they are computed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc import Tensor
from mspc.compiler.frontend.trace import trace
from mspc.ir.types import dtype_of
from mspc.readers.pytorch.exported_program import ExportedType
from mspc.readers.pytorch.graph_reader import read_program
from mspc.readers.pytorch.kinds.aten_table import kinds
from mspc.readers.pytorch.known_values import FOLDS, LIKE, KnownTensor, known_result
from mspc.readers.pytorch.network import ImportedNetwork
from tests.drawn import Drawn
from tests.exported_programs import Exported
from tests.kind_samples import Call, calls

F, LONG, BOOL = "float32", "int64", "bool"
SIZE = 6


def program(compared: str, behind: int = 0, window: int = 0) -> Exported:
    """An attention with a mask as models build it: places of keys compared with those of queries."""
    made = Exported()
    x = made.user("x", F, (2, 1, SIZE, 4))
    made.node("aten.arange.default", {"end": SIZE}, {"places": (LONG, (SIZE,))})
    made.node("aten.unsqueeze.default", {"self": "places", "dim": 0}, {"keys": (LONG, (1, SIZE))})
    made.node("aten.unsqueeze.default", {"self": "places", "dim": 1}, {"rows": (LONG, (SIZE, 1))})
    made.node("aten.add.Tensor", {"self": "rows", "other": behind}, {"queries": (LONG, (SIZE, 1))})
    made.node(f"aten.{compared}.Tensor", {"self": "keys", "other": "queries"}, {"seen": (BOOL, (SIZE, SIZE))})
    made.node("aten.ones.default", {"size": []}, {"one": (BOOL, ())})
    made.node("aten.__and__.Tensor", {"self": "one", "other": "seen"}, {"mask": (BOOL, (SIZE, SIZE))})
    name = "mask"
    if window:
        made.node("aten.sub.Tensor", {"self": "queries", "other": window}, {"least": (LONG, (SIZE, 1))})
        made.node("aten.gt.Tensor", {"self": "keys", "other": "least"}, {"near": (BOOL, (SIZE, SIZE))})
        name = made.node("aten.__and__.Tensor", {"self": "near", "other": name}, {"both": (BOOL, (SIZE, SIZE))})
    made.node("aten.expand.default", {"self": name, "size": [2, 1, -1, -1]}, {"spread": (BOOL, (2, 1, SIZE, SIZE))})
    arguments = {"query": x, "key": x, "value": x, "attn_mask": "spread"}
    made.node("aten.scaled_dot_product_attention.default", arguments, {"result": (F, (2, 1, SIZE, 4))})
    made.output("result")
    return made


def traced(made: Exported, folder: Path) -> tuple[ImportedNetwork, Any]:
    network = ImportedNetwork(read_program(made.save(folder / "model.pt2")))
    return network, trace(network, list(network.input_types)).graph


def expected(x: np.ndarray, seen: np.ndarray) -> np.ndarray:
    scores = np.where(seen, x @ x.swapaxes(-1, -2) / 2, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ x


def place() -> tuple[np.ndarray, np.ndarray]:
    return np.arange(SIZE)[:, None], np.arange(SIZE)[None]


@pytest.mark.parametrize(("compared", "behind", "window", "mode", "operands"), [
    ("le", 0, 0, 2, 3),     # causal
    ("lt", 1, 0, 2, 3),     # the same
    ("le", SIZE, 0, 0, 3),  # hides nothing
    ("le", 1, 0, 4, 3),     # one place of the future is seen, too
    ("le", 0, 3, 4, 3),     # a window
    ("ne", 0, 0, 0, 4),     # all but one
])  # fmt: skip
def test_an_attention_is_told_what_its_mask_says(
    compared: str, behind: int, window: int, mode: int, operands: int, tmp_path: Path
) -> None:
    network, graph = traced(program(compared, behind, window), tmp_path)
    [attention] = [node for node in graph.nodes if node.op.name == "FlashAttentionScore"]
    assert (attention.op.sparse_mode, len(attention.inputs)) == (mode, operands)
    names = {"Range", "LessEqual", "Less", "NotEqual", "BroadcastTo", "LogicalAnd"}
    assert not names & {node.op.name for node in graph.nodes}
    constants = {p.shape for p in graph.parameters if p.kind == "constant"}
    assert constants == ({(1, 1, SIZE, SIZE)} if operands == 4 else set())
    rows, columns = place()
    seen = {"le": np.less_equal, "lt": np.less, "ne": np.not_equal}[compared](columns, rows + behind)
    seen &= columns > rows - window if window else True
    x = np.random.default_rng(1).normal(size=(2, 1, SIZE, 4)).astype(np.float32)
    np.testing.assert_allclose(network(Tensor(x)).asnumpy(), expected(x, seen), rtol=1e-5, atol=1e-6)


def with_added(compared: str, hidden: float, value: str) -> Exported:
    """A second attention, to whose scores `hidden` is added where the mask is not set."""
    made = program(compared)
    made.node("aten.where.Scalar", {"condition": "spread", "self": 0.0, "other": hidden},
              {"added": (F, (2, 1, SIZE, SIZE))})  # fmt: skip
    arguments = {"query": "x", "key": "x", "value": value, "attn_mask": "added"}
    made.node("aten.scaled_dot_product_attention.default", arguments, {"second": (F, (2, 1, SIZE, 4))})
    made.output("second", "second")
    return made


def test_a_mask_that_is_added_is_told_too(tmp_path: Path) -> None:
    _, graph = traced(with_added("le", -3.4e38, "result"), tmp_path)
    attentions = [node for node in graph.nodes if node.op.name == "FlashAttentionScore"]
    assert [(node.op.sparse_mode, len(node.inputs)) for node in attentions] == [(2, 3)] * 2


def test_a_query_that_all_is_hidden_from_by_finite_numbers_looks_at_all_alike(tmp_path: Path) -> None:
    network, _ = traced(with_added("lt", -1e9, "x"), tmp_path)
    x = np.random.default_rng(1).normal(size=(2, 1, SIZE, 4)).astype(np.float32)
    rows, columns = place()
    found = network(Tensor(x))[1].asnumpy()
    np.testing.assert_allclose(found, expected(x, (columns < rows) | (rows == 0)) * (rows > 0)[..., :1]
                               + x.mean(-2, keepdims=True) * (rows == 0)[..., :1], rtol=1e-5, atol=1e-6)  # fmt: skip


def test_what_is_overwritten_later_is_not_known(tmp_path: Path) -> None:
    made = program("le")
    made.node("aten.fill_.Scalar", {"self": "queries", "value": SIZE}, {"others": (LONG, (SIZE, 1))})
    made.node("aten.le.Tensor", {"self": "keys", "other": "queries"}, {"all_seen": (BOOL, (SIZE, SIZE))})
    made.output("all_seen", "seen")
    network, _ = traced(made, tmp_path)
    x = np.random.default_rng(1).normal(size=(2, 1, SIZE, 4)).astype(np.float32)
    result, seen = network(Tensor(x))
    rows, columns = place()
    np.testing.assert_allclose(result.asnumpy(), expected(x, columns <= rows), rtol=1e-5, atol=1e-6)
    assert seen.asnumpy().all()


@pytest.mark.parametrize("call", [c for c in calls() if c.kind.removeprefix("aten.") in FOLDS], ids=lambda c: c.kind)
def test_known_numbers_are_those_of_the_kind(call: Call) -> None:
    rng = np.random.default_rng(2)
    kind = kinds()[call.kind]
    names = [argument.name for argument in kind.arguments]
    given = dict(zip(names, call.args, strict=False)) | call.named
    arrays: dict[str, Any] = {}

    def known(value: Any, whole: bool) -> Any:
        if isinstance(value, tuple) and any(isinstance(each, Drawn) for each in value):
            return tuple(known(each, whole) for each in value)
        if not isinstance(value, Drawn):
            return value
        array = arrays.setdefault(str(id(value)), value.array(rng))
        return Tensor(array) if whole else KnownTensor(array, array.shape, dtype_of(array.dtype))

    result = kind.target(*kind.bound({name: known(value, True) for name, value in given.items()})).asnumpy()
    operands = {name: known(value, False) for name, value in given.items()}
    if call.kind.removeprefix("aten.") in LIKE:
        operands = dict(list(operands.items())[1:])
    found = known_result(call.kind, operands, ExportedType(dtype_of(result.dtype), result.shape))
    if found is not None or call.kind != "aten.index.Tensor":  # with all of a dimension it is not known
        np.testing.assert_allclose(np.broadcast_to(found.base, result.shape), result, rtol=1e-5, atol=1e-6)


def test_repeated_numbers_are_held_once() -> None:
    sizes = (1 << 20, 1 << 20)
    found = known_result("aten.zeros.default", {"size": sizes}, ExportedType(dtype_of("int64"), sizes))
    assert found is not None
    assert found.base.shape == (1, 1)


def test_what_is_too_large_is_left_to_the_run() -> None:
    count = 1 << 15
    line = KnownTensor(np.arange(count), (count,), dtype_of("int64"))
    column = KnownTensor(np.arange(count)[:, None], (count, 1), dtype_of("int64"))
    type = ExportedType(dtype_of("bool"), (count, count))
    assert known_result("aten.le.Tensor", {"self": line, "other": column}, type) is None


def test_rows_that_are_counted_alike_are_one_constant(tmp_path: Path) -> None:
    """As every layer of experts counts them: hundreds of megabytes else."""
    made = Exported()
    x = made.user("x", "float32", (6,))
    places = made.user("places", "int64", (6,))
    for layer in range(3):
        row = made.node("aten.arange.default", {"end": 6}, {f"row_{layer}": ("int64", (6,))})
        source = {"self": places, "dim": 0, "index": row, "src": places}
        places = made.node("aten.scatter.src", source, {f"put_{layer}": ("int64", (6,))})
    other = made.node("aten.arange.start", {"start": 1, "end": 7}, {"other": ("int64", (6,))})
    last = made.node("aten.add.Tensor", {"self": places, "other": other}, {"last": ("int64", (6,))})
    made.output(made.node("aten.add.Tensor", {"self": x, "other": last}, {"sum": ("float32", (6,))}))
    network = ImportedNetwork(read_program(made.save(tmp_path / "model.pt2")))
    places_given = np.array([4, 1, 0, 2, 5, 3])
    found = network(Tensor(np.zeros(6, np.float32)), Tensor(places_given))
    np.testing.assert_array_equal(found.asnumpy(), places_given + np.arange(1, 7))
    assert [*network.constants] == ["row_0", "other"]


def test_integers_are_counted_between_ends_without_fractions() -> None:
    found = FOLDS["arange.start_step"]((2,), start=0.1, end=-7.9, step=-4.0, dtype=dtype_of("int64"))
    np.testing.assert_array_equal(found, [0, -4])
