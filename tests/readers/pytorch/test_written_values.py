"""Programs that write into tensors: views share their elements with what they are views of, buffers keep what is
written.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc
from mspc import Tensor
from mspc.compiler.frontend.trace import trace
from mspc.passes.cleanup.simplify import remove_dead
from mspc.readers.pytorch.graph_reader import read_program
from mspc.readers.pytorch.network import ImportedNetwork
from mspc.readers.pytorch.training import Training, compiled_as
from tests.exported_programs import Exported

F, LONG = "float32", "int64"


def network(made: Exported, tmp_path: Path) -> ImportedNetwork:
    return ImportedNetwork(read_program(made.save(tmp_path / "model.pt2")))


def copied(*shape: int) -> Exported:
    """A program that begins with `own`, a copy of its input."""
    made = Exported()
    made.node("aten.clone.default", {"self": made.user("x", F, shape)}, {"own": (F, shape)})
    return made


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def computed(made: Exported, tmp_path: Path, *given: np.ndarray) -> Any:
    found = network(made, tmp_path)(*map(Tensor, given))
    return [each.asnumpy() for each in found] if isinstance(found, tuple) else found.asnumpy()


def test_what_is_written_into_a_view_is_in_the_whole(tmp_path: Path) -> None:
    made = Exported()
    x = made.user("x", F, (2, 3))
    made.node("aten.zeros.default", {"size": [4, 3]}, {"whole": (F, (4, 3))})
    made.node("aten.slice.Tensor", {"self": "whole", "dim": 0, "start": 1, "end": 3}, {"part": (F, (2, 3))})
    made.node("aten.copy_.default", {"self": "part", "src": x}, {"written": (F, (2, 3))})
    made.node("aten.select.int", {"self": "part", "dim": 1, "index": -1}, {"column": (F, (2,))})
    made.node("aten.add_.Tensor", {"self": "column", "other": 10}, {"more": (F, (2,))})
    made.node("aten.mul.Tensor", {"self": "written", "other": 2}, {"double": (F, (2, 3))})
    made.output("whole", "whole")
    made.output("double", "double")
    given = numbers(2, 3)
    expected = np.zeros((4, 3), np.float32)
    part = expected[1:3]
    part[...] = given
    part[:, -1] += 10
    whole, double = computed(made, tmp_path, given)
    np.testing.assert_array_equal(whole, expected)
    np.testing.assert_array_equal(double, 2 * part)


def filled_by_slices(places: Sequence[tuple[int, int]], dim: int) -> tuple[Exported, np.ndarray, np.ndarray]:
    """A program that writes n + 1 into the n-th slice of an input's copy, the input, and the result."""
    made, given = copied(6, 6), numbers(6, 6)
    wanted = given.copy()
    for number, (begin, end) in enumerate(places):
        shape = (6, end - begin) if dim else (end - begin, 6)
        place = {"dim": dim, "start": begin, "end": end}
        made.node("aten.slice.Tensor", {"self": "own", **place}, {f"part{number}": (F, shape)})
        made.node("aten.full.default", {"size": list(shape), "fill_value": number + 1}, {f"new{number}": (F, shape)})
    for number, (begin, end) in enumerate(places):
        made.node("aten.copy_.default", {"self": f"part{number}", "src": f"new{number}"},
                  {f"copy{number}": (F, (6, end - begin) if dim else (end - begin, 6))})  # fmt: skip
        wanted[(slice(None),) * dim + (slice(begin, end),)] = number + 1
    return made, given, wanted


@pytest.mark.parametrize(("places", "dim"), [
    (((0, 2), (2, 3), (3, 6)), 0), (((4, 6), (0, 1)), 1), (((1, 4), (3, 5), (1, 4)), 0), (((0, 6), (2, 4)), 1),
])  # fmt: skip
def test_slices_that_are_written_are_in_the_whole(places: Sequence[tuple[int, int]], dim: int, tmp_path: Path) -> None:
    made, given, wanted = filled_by_slices(places, dim)
    made.output("own", "own")
    for number, (begin, end) in enumerate(places):
        made.node("aten.neg.default", {"self": f"part{number}"},
                  {f"minus{number}": (F, (6, end - begin) if dim else (end - begin, 6))})  # fmt: skip
        made.output(f"minus{number}", f"minus{number}")
    whole, *parts = computed(made, tmp_path, given)
    np.testing.assert_array_equal(whole, wanted)
    for part, (begin, end) in zip(parts, places, strict=True):
        np.testing.assert_array_equal(-part, wanted[(slice(None),) * dim + (slice(begin, end),)])


def test_a_buffer_filled_by_slices_is_joined_once(tmp_path: Path) -> None:
    made, given, _ = filled_by_slices(((0, 2), (2, 3), (3, 6)), 0)
    made.node("aten.neg.default", {"self": "part1"}, {"minus": (F, (1, 6))})  # a slice that was written is as it was
    for name in ("own", "minus"):
        made.output(name, name)
    graph = trace(network(made, tmp_path), [Tensor(given)]).graph
    remove_dead(graph)
    kinds = [node.op.name for node in graph.nodes]
    assert kinds.count("Concat") == 1
    assert "StridedSlice" not in kinds


def test_a_view_sees_what_is_written_into_the_whole_later(tmp_path: Path) -> None:
    made = copied(2, 3)
    made.node("aten.t.default", {"self": "own"}, {"turned": (F, (3, 2))})
    made.node("aten.view.default", {"self": "turned", "size": [6]}, {"flat": (F, (6,))})
    made.node("aten.fill_.Scalar", {"self": "own", "value": 7}, {"filled": (F, (2, 3))})
    made.node("aten.relu.default", {"self": "flat"}, {"result": (F, (6,))})
    made.node("aten.add.Tensor", {"self": "x", "other": 0}, {"untouched": (F, (2, 3))})
    made.output("result", "result")
    made.output("untouched", "untouched")
    given = numbers(2, 3)
    result, untouched = computed(made, tmp_path, given)
    np.testing.assert_array_equal(result, np.full(6, 7, np.float32))
    np.testing.assert_array_equal(untouched, given)


@pytest.mark.parametrize(("kind", "arguments", "shape", "part"), [
    ("aten.permute.default", {"dims": [1, 0]}, (4, 4), lambda x: x),
    ("aten.transpose.int", {"dim0": 0, "dim1": -1}, (4, 4), lambda x: x),
    ("aten.unsqueeze.default", {"dim": 1}, (4, 1, 4), lambda x: x),
    ("aten.flatten.using_ints", {"start_dim": 0}, (16,), lambda x: x),
    ("aten.slice.Tensor", {"dim": 1, "start": 0, "end": 4, "step": 2}, (4, 2), lambda x: x[:, ::2]),
    ("aten.slice.Tensor", {"dim": 1, "start": 4, "end": 9, "step": 3}, (4, 0), lambda x: x[:, 4:]),
    ("aten.diagonal.default", {"offset": 1}, (3,), lambda x: np.lib.stride_tricks.as_strided(x[0, 1:], (3,), (20,))),
    ("aten.unfold.default", {"dimension": 1, "size": 2, "step": 2}, (4, 2, 2), lambda x: x),
    *(("aten.as_strided.default", {"size": [*size], "stride": [*stride], "storage_offset": 1}, size, lambda x,
       form=(size, tuple(4 * n for n in stride)): np.lib.stride_tricks.as_strided(x.reshape(-1)[1:], *form))
      for size, stride in (((2, 3), (1, 4)), ((3, 2), (4, 2)), ((3,), (5,)), ((2, 2), (8, 1)))),
    ("aten.expand.default", {"size": [4, 4]}, (4, 4), lambda x: x),
    ("aten.expand.default", {"size": [1, 4, 4]}, (1, 4, 4), lambda x: x),
    ("aten.dropout.default", {"input": "own", "p": 0.5, "train": False}, (4, 4), lambda x: x),
    ("aten.dropout.default", {"input": "own", "p": 0.0, "train": True}, (4, 4), lambda x: x),
])  # fmt: skip
@pytest.mark.parametrize("through", [True, False])
def test_what_shares_elements_is_written_through_and_sees_what_is_written(
    kind: str, arguments: dict[str, Any], shape: tuple[int, ...], part: Any, through: bool, tmp_path: Path
) -> None:
    made = copied(4, 4)
    made.node(kind, arguments if "input" in arguments else {"self": "own", **arguments}, {"seen": (F, shape)})
    target, like = ("seen", shape) if through else ("own", (4, 4))
    made.node("aten.mul_.Tensor", {"self": target, "other": 3}, {"written": (F, like)})
    made.node("aten.sum.default", {"self": "seen"}, {"total": (F, ())})
    made.output("own", "own")
    made.output("total", "total")
    given = numbers(4, 4)
    expected = given.copy()
    (part(expected) if through else expected).__imul__(3)
    own, total = computed(made, tmp_path, given)
    np.testing.assert_array_equal(own, expected)
    np.testing.assert_allclose(total, part(expected).sum(), rtol=1e-6)


def test_a_copy_of_a_buffer_stays(tmp_path: Path) -> None:
    made = Exported()
    buffer = made.stored("count", np.zeros(3, np.float32), "buffer", False)
    x = made.user("x", F, (3,))
    made.node("aten.clone.default", {"self": buffer}, {"old": (F, (3,))})
    made.node("aten.add_.Tensor", {"self": buffer, "other": x}, {"new": (F, (3,))})
    made.output("old")
    net = network(made, tmp_path)
    assert [net(Tensor(np.ones(3, np.float32))).asnumpy()[0] for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize(("kind", "arguments", "shapes"), [
    ("aten.split.Tensor", {"split_size": 2, "dim": 1}, [(3, 2), (3, 2), (3, 1)]),
    ("aten.split_with_sizes.default", {"split_sizes": [4, 1], "dim": 1}, [(3, 4), (3, 1)]),
    ("aten.chunk.default", {"chunks": 2, "dim": 1}, [(3, 3), (3, 2)]),
    ("aten.tensor_split.indices", {"indices": [1, 4], "dim": 1}, [(3, 1), (3, 3), (3, 1)]),
    ("aten.hsplit.int", {"sections": 5}, [(3, 1)] * 5),
    ("aten.unbind.int", {"dim": 1}, [(3,)] * 5),
])  # fmt: skip
def test_parts_are_written_through(
    kind: str, arguments: dict[str, Any], shapes: list[tuple[int, ...]], tmp_path: Path
) -> None:
    made = copied(3, 5)
    made.node(kind, {"self": "own", **arguments}, {f"p{i}": (F, shape) for i, shape in enumerate(shapes)})
    made.node("aten.mul_.Tensor", {"self": "p1", "other": 3}, {"written": (F, shapes[1])})
    made.output("own")
    given = numbers(3, 5)
    expected = given.copy()
    widths = [shape[1] if len(shape) > 1 else 1 for shape in shapes]
    expected[:, widths[0] : widths[0] + widths[1]] *= 3
    np.testing.assert_array_equal(computed(made, tmp_path, given), expected)


@pytest.mark.parametrize(("turned", "kind", "arguments", "shape"), [
    (False, "aten.contiguous.default", {}, (2, 3)), (True, "aten.contiguous.default", {}, (3, 2)),
    (False, "aten.reshape.default", {"shape": [6]}, (6,)), (True, "aten.reshape.default", {"shape": [6]}, (6,)),
    (True, "aten.flatten.using_ints", {}, (6,)),
])  # fmt: skip
def test_what_lies_in_another_order_is_copied(
    turned: bool, kind: str, arguments: dict[str, Any], shape: tuple[int, ...], tmp_path: Path
) -> None:
    """As PyTorch does: `reshape` and `contiguous` are views of what follows each other in memory alone."""
    made = copied(2, 3)
    seen = made.node("aten.t.default", {"self": "own"}, {"other": (F, (3, 2))}) if turned else "own"
    made.node(kind, {"self": seen, **arguments}, {"result": (F, shape)})
    made.node("aten.mul_.Tensor", {"self": "result", "other": 3}, {"written": (F, shape)})
    made.output("own", "own")
    made.output("written", "written")
    given = numbers(2, 3)
    own, written = computed(made, tmp_path, given)
    np.testing.assert_array_equal(own, given if turned else 3 * given)
    np.testing.assert_array_equal(written.ravel(), 3 * (given.T if turned else given).ravel())


def test_a_buffer_keeps_what_is_written_from_call_to_call(tmp_path: Path) -> None:
    made = Exported()
    count = made.stored("norm.num_batches_tracked", np.array(3, np.int64), "buffer", False)
    x = made.user("x", F, (2,))
    made.node("aten.add_.Tensor", {"self": count, "other": 1}, {"more": (LONG, ())})
    made.node("aten.mul.Tensor", {"self": x, "other": count}, {"result": (F, (2,))})
    made.output("result")
    found = network(made, tmp_path)
    ones = Tensor(np.ones(2, np.float32))
    assert found(ones).asnumpy().tolist() == [4, 4]
    assert found(ones).asnumpy().tolist() == [5, 5]
    [buffer] = found.get_parameters()
    assert (buffer.name, buffer.requires_grad) == ("norm.num_batches_tracked", False)
    assert int(buffer.asnumpy()) == 5


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("kind", ["aten.batch_norm.default", "aten._native_batch_norm_legit.default"])
def test_running_statistics_follow_the_batch_in_training(kind: str, trains: bool, tmp_path: Path) -> None:
    made = Exported()
    weight, bias = made.stored("weight", numbers(3)), made.stored("bias", numbers(3))
    mean = made.stored("running_mean", np.zeros(3, np.float32), "buffer", False)
    variance = made.stored("running_var", np.ones(3, np.float32), "buffer", False)
    x = made.user("x", F, (4, 3, 2))
    arguments: dict[str, Any] = {
        "input": x, "weight": weight, "bias": bias, "running_mean": mean, "running_var": variance, "training": trains,
        "momentum": 0.25, "eps": 1e-3,
    }  # fmt: skip
    results = {"result": (F, (4, 3, 2))}
    if kind == "aten.batch_norm.default":
        arguments["cudnn_enabled"] = False
    else:
        used = (3,) if trains or "legit" not in kind else (0,)  # as PyTorch for CPUs
        results |= {"used_mean": (F, used), "used_scale": (F, used)}
    made.node(kind, arguments, results)
    made.output("result")
    found = network(made, tmp_path)
    given = 2 + 3 * numbers(4, 3, 2)
    result = found(Tensor(given)).asnumpy()
    own = given.astype(np.float64)
    used = (own.mean((0, 2)), own.var((0, 2))) if trains else (np.zeros(3), np.ones(3))
    scaled = (own - used[0][:, None]) / np.sqrt(used[1] + 1e-3)[:, None]
    values = {p.name: p.asnumpy() for p in found.get_parameters()}
    np.testing.assert_allclose(
        result, scaled * values["weight"][:, None] + values["bias"][:, None], rtol=1e-5, atol=1e-5
    )
    expected = (0.25 * used[0], 0.75 + 0.25 * used[1] * 8 / 7) if trains else used
    np.testing.assert_allclose(values["running_mean"], expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(values["running_var"], expected[1], rtol=1e-5)


def test_what_is_written_without_gradients_is_not_differentiated(tmp_path: Path) -> None:
    made, w, x = weighted()
    made.node("aten.mul.Tensor", {"self": x, "other": w}, {"product": (F, (2,))})
    made.node("aten.detach.default", {"self": "product"}, {"apart": (F, (2,))})
    made.node("aten.add.Tensor", {"self": "product", "other": "apart"}, {"both": (F, (2,))})
    made.node("aten.sum.default", {"self": "both"}, {"total": (F, ())})
    made.output("total", "loss")
    found = network(made, tmp_path)
    _, [gradient] = mspc.value_and_grad(found, None, found.trainable_params())(Tensor(np.array([5, 7], np.float32)))
    assert gradient.asnumpy().tolist() == [5, 7]


@pytest.mark.parametrize(("kind", "names"), [
    ("aten.searchsorted.Tensor", ("sorted_sequence", "self")), ("aten.bucketize.Tensor", ("boundaries", "self")),
])  # fmt: skip
def test_places_in_a_sorted_sequence(kind: str, names: tuple[str, str], tmp_path: Path) -> None:
    made = Exported()
    bounds, x = made.user("bounds", F, (3,)), made.user("x", F, (4,))
    made.node(kind, dict(zip(names, (bounds, x), strict=True)), {"places": (LONG, (4,))})
    made.output("places")
    given = np.array([1, 2, 3], np.float32), np.array([0, 2, 2.5, 9], np.float32)
    assert computed(made, tmp_path, *given).tolist() == np.searchsorted(*given).tolist()


def test_another_shape_in_place_leaves_the_elements_where_they_are(tmp_path: Path) -> None:
    made = copied(2, 2)
    made.node("aten.slice.Tensor", {"self": "own", "dim": 0, "start": 0, "end": 2}, {"view": (F, (2, 2))})
    made.node("aten.t_.default", {"self": "view"}, {"turned": (F, (2, 2))})
    made.node("aten.unsqueeze_.default", {"self": "turned", "dim": 0}, {"more": (F, (1, 2, 2))})
    made.node("aten.select.int", {"self": "more", "dim": 1, "index": 0}, {"row": (F, (1, 2))})
    made.node("aten.mul_.Tensor", {"self": "row", "other": 2}, {"double": (F, (1, 2))})
    made.output("own", "own")
    made.output("more", "more")
    given = numbers(2, 2)
    own, more = computed(made, tmp_path, given)
    expected = given * np.array([[2, 1], [2, 1]], np.float32)
    np.testing.assert_array_equal(own, expected)
    np.testing.assert_array_equal(more, expected.T[None])


# A value that a program overwrites where no gradients are recorded: numbers change, and gradients go on as before.


X = np.array([5, 7], np.float32)


def weighted(*values: float) -> tuple[Exported, str, str]:
    """A program of a weight and an input, both vectors of two."""
    made = Exported()
    return made, made.stored("w", np.array(values or (2, 3), np.float32)), made.user("x", F, (2,))


def without_gradients(
    made: Exported, given: Sequence[str], nodes: Sequence[tuple[str, Mapping[str, Any], str]],
    results: Mapping[str, str],
) -> None:  # fmt: skip
    """A graph inside of `torch.no_grad()`, of vectors of two; results: names outside and inside."""
    inner = Exported()
    for name in given:
        inner.graph["inputs"].append({"as_tensor": {"name": inner.tensor(name, F, (2,))}})
    for kind, arguments, result in nodes:
        inner.node(kind, arguments, {result: (F, (2,))})
    inner.graph["outputs"] += [{"as_tensor": {"name": name}} for name in results.values()]
    operands = {f"operand_{name}": name for name in given}
    body = {"": {"as_bool": False}, "graph": {"as_graph": {"name": "body", "graph": inner.graph}}}
    made.node("higher_order.wrap_with_set_grad_enabled", body | operands, {name: (F, (2,)) for name in results})


def total(made: Exported, *factors: str) -> None:
    """The loss: the sum of a product."""
    first = factors[0]
    for number, other in enumerate(factors[1:]):
        first = made.node("aten.mul.Tensor", {"self": first, "other": other}, {f"product_{number}": (F, (2,))})
    made.node("aten.sum.default", {"self": first}, {"total": (F, ())})
    made.output("total", "loss")


def gradient(made: Exported, tmp_path: Path) -> tuple[float, list[float], dict[str, list[float]]]:
    """The loss for `X`, its gradient by the one weight, and what buffers and weights are then."""
    network = ImportedNetwork(read_program(made.save(tmp_path / "model.pt2")))
    loss, [found] = mspc.value_and_grad(network, None, network.trainable_params())(Tensor(X))
    after = {each.name: each.asnumpy().tolist() for each in network.get_parameters()}
    return float(loss.asnumpy()), found.asnumpy().tolist(), after


def test_a_weight_that_is_clipped_is_trained(tmp_path: Path) -> None:
    made, w, x = weighted(2, 0.5)
    without_gradients(made, [w], [("aten.clamp_.default", {"self": w, "max": 1}, "clipped")], {"within": "clipped"})
    total(made, "within", x)
    assert gradient(made, tmp_path) == (8.5, [5, 7], {"w": [1, 0.5]})


def test_what_is_infinite_is_clipped(tmp_path: Path) -> None:
    made, w, x = weighted(0, 2)
    made.node("aten.div.Tensor", {"self": x, "other": w}, {"own": (F, (2,))})
    without_gradients(made, ["own"], [("aten.clamp_.default", {"self": "own", "max": 1}, "cut")], {"within": "cut"})
    total(made, "within", x)
    loss, [_, of_finite], _ = gradient(made, tmp_path)
    assert (loss, of_finite) == (12, -7 * 7 / 4)


def test_what_is_computed_and_clipped_is_differentiated_as_before(tmp_path: Path) -> None:
    made, w, x = weighted()
    made.node("aten.mul.Tensor", {"self": w, "other": x}, {"own": (F, (2,))})
    made.node("aten.detach.default", {"self": "own"}, {"apart": (F, (2,))})
    made.node("aten.clamp_.default", {"self": "apart", "max": 1}, {"clipped": (F, (2,))})
    total(made, "own", "own")
    assert gradient(made, tmp_path)[:2] == (2, [10, 14])


def test_a_view_of_a_buffer_that_follows_a_weight_has_no_gradient(tmp_path: Path) -> None:
    made, w, x = weighted()
    m = made.stored("m", np.array([1.0, 1.0], np.float32), "buffer", trains=False)
    made.node("aten.slice.Tensor", {"self": m, "dim": 0, "start": 0, "end": 2}, {"view": (F, (2,))})
    without_gradients(made, [m, w], [("aten.add_.Tensor", {"self": m, "other": w}, "more")], {"followed": "more"})
    total(made, "view", w, x)
    assert gradient(made, tmp_path) == (2 * 3 * 5 + 3 * 4 * 7, [15, 28], {"w": [2, 3], "m": [3, 4]})


def test_a_buffer_is_overwritten_once_more_by_the_name_of_a_result(tmp_path: Path) -> None:
    made, w, x = weighted()
    m = made.stored("m", np.array([1.0, 1.0], np.float32), "buffer", trains=False)
    doubled = ("aten.add.out", {"self": m, "other": m, "out": m}, "twice")
    without_gradients(made, [m], [doubled], {"first": "twice"})
    without_gradients(made, ["first"], [("aten.mul_.Tensor", {"self": "first", "other": 5}, "more")], {"then": "more"})
    total(made, m, w, x)
    assert gradient(made, tmp_path) == (310, [50, 70], {"w": [2, 3], "m": [10, 10]})


def test_a_known_tensor_that_is_overwritten_inside_is_not_known(tmp_path: Path) -> None:
    made, w, x = weighted()
    made.node("aten.arange.default", {"end": 2}, {"row": (F, (2,))})
    without_gradients(made, ["row"], [("aten.add_.Tensor", {"self": "row", "other": 4}, "more")], {"later": "more"})
    made.node("aten.mul.Tensor", {"self": "row", "other": 2}, {"double": (F, (2,))})
    total(made, "double", w, x)
    assert gradient(made, tmp_path)[:2] == (80 + 210, [40, 70])


def test_what_is_new_inside_is_differentiated_once_it_is_overwritten_outside(tmp_path: Path) -> None:
    made, w, x = weighted()
    nodes = [
        ("aten.mul.Tensor", {"self": w, "other": 2}, "new"),
        ("aten.slice.Tensor", {"self": "new", "dim": 0, "start": 0, "end": 2}, "part"),
    ]
    without_gradients(made, [w], nodes, {"whole": "new", "view": "part"})
    made.node("aten.add_.Tensor", {"self": "whole", "other": w}, {"more": (F, (2,))})
    total(made, "view", x)
    assert gradient(made, tmp_path)[:2] == (6 * 5 + 9 * 7, [5, 7])


def test_a_state_that_is_detached_in_place_has_no_gradient(tmp_path: Path) -> None:
    made, w, x = weighted()
    made.node("aten.mul.Tensor", {"self": w, "other": x}, {"state": (F, (2,))})
    made.node("aten.detach_.default", {"self": "state"}, {"apart": (F, (2,))})
    total(made, "state", w)
    assert gradient(made, tmp_path)[:2] == (20 + 63, [10, 21])


# Which parameters an optimizer changes: those by which the loss has a gradient, as PyTorch's have none else.


def program() -> Exported:
    """The sum of `trained * x` and of what there is no gradient through, a result more, and one that nobody reads."""
    made = Exported()
    names = ("trained", "teacher", "chosen", "apart", "beside", "alone", "written", "greatest")
    held = {name: made.stored(name, np.array([2.0, 3.0], np.float32)) for name in names}
    x = made.user("x", F, (2,))
    product = made.node("aten.mul.Tensor", {"self": held["trained"], "other": x}, {"product": (F, (2,))})
    nodes = [("aten.mul.Tensor", {"self": held["teacher"], "other": 2}, "twice")]
    without_gradients(made, [held["teacher"]], nodes, {"taught": "twice"})
    made.node("aten.argmax.default", {"self": held["chosen"]}, {"place": ("int64", ())})
    made.node("aten.detach.default", {"self": held["apart"]}, {"detached": (F, (2,))})
    made.node("aten.mul.Tensor", {"self": held["beside"], "other": product}, {"result": (F, (2,))})
    made.node("aten.zeros.default", {"size": [2]}, {"whole": (F, (2,))})
    made.node("aten.slice.Tensor", {"self": "whole", "dim": 0, "start": 0, "end": 1}, {"part": (F, (1,))})
    made.node("aten.sum.dim_IntList", {"self": held["written"], "dim": [0], "keepdim": True}, {"all": (F, (1,))})
    made.node("aten.copy_.default", {"self": "part", "src": "all"}, {"copied": (F, (1,))})
    made.node("aten.max.dim", {"self": held["greatest"], "dim": 0}, {"most": (F, ()), "where": ("int64", ())})
    total = product
    for number, other in enumerate(("taught", "place", "detached", "whole", "most")):
        total = made.node("aten.add.Tensor", {"self": total, "other": other}, {f"total_{number}": (F, (2,))})
    made.node("aten.sum.default", {"self": total}, {"sum": (F, ())})
    made.output("sum", "loss")
    made.output("result", "result")
    return made


@pytest.mark.parametrize("optimizer", [
    "sgd:lr=0.5,weight_decay=0.5,momentum=0.5", "adamw:lr=0.5", "adam:weight_decay=1",
])  # fmt: skip
def test_what_the_loss_does_not_follow_is_not_decayed(optimizer: str, tmp_path: Path) -> None:
    found = compiled_as(read_program(program().save(tmp_path / "model.pt2")), Training(optimizer=optimizer))
    for _ in range(2):
        found.network(Tensor(np.array([5, 7], np.float32)))
    values = {each.name: each.asnumpy().tolist() for each in found.network.get_parameters()}
    kept = {name for name in program().configs["weights"] if values[name] == [2, 3]}
    assert kept == {"teacher", "chosen", "apart", "beside", "alone"}
