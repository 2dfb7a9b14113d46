"""What a program overwrites where no gradients are recorded: numbers change, and gradients go on as before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import mspc
from mspc import Tensor
from mspc.readers.pytorch.network import ImportedNetwork
from mspc.readers.pytorch.reading import read_program
from tests.exported_programs import Exported

F = "float32"
X = np.array([5, 7], np.float32)


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
    made = Exported()
    w = made.stored("w", np.array([2.0, 0.5], np.float32))
    x = made.user("x", F, (2,))
    without_gradients(made, [w], [("aten.clamp_.default", {"self": w, "max": 1}, "clipped")], {"within": "clipped"})
    total(made, "within", x)
    assert gradient(made, tmp_path) == (8.5, [5, 7], {"w": [1, 0.5]})


def test_what_is_infinite_is_clipped(tmp_path: Path) -> None:
    made = Exported()
    w = made.stored("w", np.array([0.0, 2.0], np.float32))
    x = made.user("x", F, (2,))
    made.node("aten.div.Tensor", {"self": x, "other": w}, {"own": (F, (2,))})
    without_gradients(made, ["own"], [("aten.clamp_.default", {"self": "own", "max": 1}, "cut")], {"within": "cut"})
    total(made, "within", x)
    loss, [_, of_finite], _ = gradient(made, tmp_path)
    assert (loss, of_finite) == (12, -7 * 7 / 4)


def test_what_is_computed_and_clipped_is_differentiated_as_before(tmp_path: Path) -> None:
    made = Exported()
    w = made.stored("w", np.array([2.0, 3.0], np.float32))
    x = made.user("x", F, (2,))
    made.node("aten.mul.Tensor", {"self": w, "other": x}, {"own": (F, (2,))})
    made.node("aten.detach.default", {"self": "own"}, {"apart": (F, (2,))})
    made.node("aten.clamp_.default", {"self": "apart", "max": 1}, {"clipped": (F, (2,))})
    total(made, "own", "own")
    assert gradient(made, tmp_path)[:2] == (2, [10, 14])


def test_a_view_of_a_buffer_that_follows_a_weight_has_no_gradient(tmp_path: Path) -> None:
    made = Exported()
    w = made.stored("w", np.array([2.0, 3.0], np.float32))
    m = made.stored("m", np.array([1.0, 1.0], np.float32), "buffer", trains=False)
    x = made.user("x", F, (2,))
    made.node("aten.slice.Tensor", {"self": m, "dim": 0, "start": 0, "end": 2}, {"view": (F, (2,))})
    without_gradients(made, [m, w], [("aten.add_.Tensor", {"self": m, "other": w}, "more")], {"followed": "more"})
    total(made, "view", w, x)
    assert gradient(made, tmp_path) == (2 * 3 * 5 + 3 * 4 * 7, [15, 28], {"w": [2, 3], "m": [3, 4]})


def test_a_buffer_is_overwritten_once_more_by_the_name_of_a_result(tmp_path: Path) -> None:
    made = Exported()
    w = made.stored("w", np.array([2.0, 3.0], np.float32))
    m = made.stored("m", np.array([1.0, 1.0], np.float32), "buffer", trains=False)
    x = made.user("x", F, (2,))
    doubled = ("aten.add.out", {"self": m, "other": m, "out": m}, "twice")
    without_gradients(made, [m], [doubled], {"first": "twice"})
    without_gradients(made, ["first"], [("aten.mul_.Tensor", {"self": "first", "other": 5}, "more")], {"then": "more"})
    total(made, m, w, x)
    assert gradient(made, tmp_path) == (310, [50, 70], {"w": [2, 3], "m": [10, 10]})


def test_a_known_tensor_that_is_overwritten_inside_is_not_known(tmp_path: Path) -> None:
    made = Exported()
    w = made.stored("w", np.array([2.0, 3.0], np.float32))
    x = made.user("x", F, (2,))
    made.node("aten.arange.default", {"end": 2}, {"row": (F, (2,))})
    without_gradients(made, ["row"], [("aten.add_.Tensor", {"self": "row", "other": 4}, "more")], {"later": "more"})
    made.node("aten.mul.Tensor", {"self": "row", "other": 2}, {"double": (F, (2,))})
    total(made, "double", w, x)
    assert gradient(made, tmp_path)[:2] == (80 + 210, [40, 70])


def test_what_is_new_inside_is_differentiated_once_it_is_overwritten_outside(tmp_path: Path) -> None:
    made = Exported()
    w = made.stored("w", np.array([2.0, 3.0], np.float32))
    x = made.user("x", F, (2,))
    nodes = [("aten.mul.Tensor", {"self": w, "other": 2}, "new"),
             ("aten.slice.Tensor", {"self": "new", "dim": 0, "start": 0, "end": 2}, "part")]
    without_gradients(made, [w], nodes, {"whole": "new", "view": "part"})
    made.node("aten.add_.Tensor", {"self": "whole", "other": w}, {"more": (F, (2,))})
    total(made, "view", x)
    assert gradient(made, tmp_path)[:2] == (6 * 5 + 9 * 7, [5, 7])


def test_a_state_that_is_detached_in_place_has_no_gradient(tmp_path: Path) -> None:
    made = Exported()
    w = made.stored("w", np.array([2.0, 3.0], np.float32))
    x = made.user("x", F, (2,))
    made.node("aten.mul.Tensor", {"self": w, "other": x}, {"state": (F, (2,))})
    made.node("aten.detach_.default", {"self": "state"}, {"apart": (F, (2,))})
    total(made, "state", w)
    assert gradient(made, tmp_path)[:2] == (20 + 63, [10, 21])
