"""The counterparts with which `mspc verify --against torch` compares operators: each on the operator's own samples."""

import numpy as np
import pytest

from mspc.ops.op import REGISTRY
from mspc.verify.difference import compare
from mspc.verify.pytorch.against import TorchJudge
from mspc.verify.pytorch.counterparts import COUNTERPARTS_OF_DRAWS, counterparts
from tests.executors import LocalComm, NumPyBackend, World
from tests.ops.simulate import arrays_of, operator_of, types_of

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")
NAMES = sorted({*counterparts(torch), *COUNTERPARTS_OF_DRAWS})


def test_counterparts_are_of_operators() -> None:
    assert set(NAMES) <= set(REGISTRY)
    assert len(NAMES) > 150


@pytest.mark.parametrize("name", NAMES)
def test_an_operator_equals_its_counterpart(name: str) -> None:
    """Values in Float64, and the gradients of all operands; some sample of each is judged. (PyTorch's hardsigmoid
    divides by a 6 of Float32.)"""
    judge = TorchJudge(torch)

    def main(comm: LocalComm) -> int:
        backend, judged = NumPyBackend(comm, step=1), 0
        for index in range(len(REGISTRY[name].samples)):
            op, sample = operator_of(name, index)
            operands = arrays_of(name, sample, types_of(sample))
            for place in op.distributions:
                operands[place] = operands[place] / operands[place].sum(-1, keepdims=True)
            result = op.kernel(backend)(*[np.array(x) for x in operands])
            parts = result if isinstance(result, tuple) else (result,)
            found = judge.call(op, [judge.tensor(x) for x in operands], parts)
            if found is None:
                continue
            judged += 1
            for part, tensor in zip(parts, found, strict=True):
                if tensor is not None:
                    row = compare("operator", name, judge.array(tensor, part), np.asarray(part), 1e-9)
                    assert row.same, (sample, row)
            for expected, mine in judge.rule(op, operands, parts, backend):
                row = compare("rule", name, expected, np.asarray(mine), 1e-7)
                assert row.same or np.abs(expected - mine).max() < 1e-12, (sample, row)
        return judged

    assert World(1).run(main)[0]
