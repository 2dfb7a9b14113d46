"""Which parameters an optimizer changes: those by which the loss has a gradient, as PyTorch's have none else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mspc import Tensor
from mspc.readers.pytorch.reading import read_program
from mspc.readers.pytorch.training import Training, compiled_as
from tests.exported_programs import Exported
from tests.readers.pytorch.test_written_without_gradients import without_gradients

F = "float32"


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
