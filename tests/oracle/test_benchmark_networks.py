"""The networks of benchmarks/gpu/networks are the same in mspc and in PyTorch: losses, gradients, losses as trained."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu.networks.child import Child, Failed
from benchmarks.gpu.networks.llama.shard_in_mspc import shard
from benchmarks.gpu.networks.sizes import NETWORKS, first_values, same_name, sizes_of
from benchmarks.gpu.networks.table import apart
from mspc import Tensor, nn, ops
from mspc.ir.types import dtype_of
from tests.mindspore_api.nn.training import Training
from tests.serving import HANG, succeed

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

from tests.oracle.against import near  # noqa: E402  # it imports PyTorch

CLOSE, BY_NAME = 1e-5, {"bert": 1e-3, "recurrence": 5e-5}
"""How far numbers may lie apart, relative to the largest of their tensor; BERT's GELU is MindSpore's, by tanh, and the
gradient of PyTorch's `logcumsumexp` in Float32 is 3e-5 away from its own in Float64."""
TINY: dict[str, Any] = {
    "layers": 2, "width": 32, "heads": 4, "key_heads": 2, "hidden": 48, "vocabulary": 40, "batch": 4, "length": 12,
    "hidden_words": 3, "answer": 6, "buckets": 8, "furthest": 16, "experts": 4, "rows": 50, "dense": 5, "tables": 3,
    "classes": 10, "bottom": (16,), "top": (16,), "time": 16, "nodes": 40, "edges": 200,
}  # fmt: skip
SIDES: dict[str, dict[str, Any]] = {
    "vit": {"side": 16, "patch": 8}, "unet": {"side": 16, "channels": (16, 32), "groups": 4, "heads": 2},
    "convnext": {"side": 32, "widths": (8, 16, 24, 32)},
}  # fmt: skip
WAYS = [
    *((name, 1, "stand_alone") for name in NETWORKS),
    *((name, 4, "semi_auto_parallel") for name in ("bert", "experts", "llama")),
    *((name, 4, "auto_parallel") for name in ("gpt2", "llama")),
]


class Step(nn.Cell):
    """(loss, its gradient in every parameter)."""

    def __init__(self, network: nn.Cell) -> None:
        super().__init__()
        self.both = ops.value_and_grad(network, None, network.trainable_params())

    def construct(self, *inputs: Any) -> Any:
        return self.both(*inputs)


@pytest.mark.share(3)
@pytest.mark.parametrize(("name", "ranks", "mode"), WAYS)
def test_losses_and_gradients_are_those_of_the_twin(name: str, ranks: int, mode: str) -> None:
    """A gradient that is next to nothing beside the largest of all, as that of a key's bias, is held to that one's
    rounding. On ranks LLaMA's heads and classes are shared by two."""
    network, sizes = sizes_of(name, "cpu", random=False)
    for key, value in (TINY | SIDES.get(name, {})).items():
        if hasattr(sizes, key):
            setattr(sizes, key, value)
    mine, theirs = (
        importlib.import_module(f"benchmarks.gpu.networks.{name}.in_{framework}").Network(sizes)
        for framework in ("mspc", "torch")
    )
    if name == "llama" and ranks > 1:
        shard(mine, 2, 2)
    judged = dict(theirs.named_parameters())
    own = {same_name(parameter.name): parameter for parameter in mine.trainable_params()}
    values = first_values({key: tuple(parameter.shape) for key, parameter in judged.items()})
    assert {key: parameter.shape for key, parameter in own.items()} == {key: v.shape for key, v in values.items()}
    for key, value in values.items():
        judged[key].data = torch.tensor(value)
        own[key].set_data(Tensor(value))
    inputs = network.data(sizes)
    expected = theirs(*(torch.tensor(a if a.dtype.kind == "f" else a.astype(np.int64)) for a in inputs))
    expected.backward()
    types = [dtype_of(array.dtype) for array in inputs]
    loss, gradients = Training(Step(mine), [array.shape for array in inputs], ranks, mode, types).run([inputs])[0]
    close = BY_NAME.get(name, CLOSE)
    near(loss, expected.detach().numpy(), "loss", close)
    largest = max(float(parameter.grad.abs().max()) for parameter in judged.values())
    for key, gradient in zip(own, gradients, strict=True):
        wanted = judged[key].grad.numpy()
        scale = max(float(np.abs(wanted).max()), 1e-3 * largest)
        near(gradient / scale, wanted / scale, f"the gradient of {key}", close)


@pytest.mark.thorough
def test_losses_are_those_of_the_twin(root: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [
        sys.executable, "-m", "benchmarks.gpu.networks.compare", "--device", "cpu", "--only", "recommender",
        "--peers", "mspc", "torch", "--losses", "6", "--threads", "1", "--json", str(figures),
    ]  # fmt: skip
    succeed(*command, cwd=root)
    peers = json.loads(figures.read_text())[0]["peers"]
    assert len(peers["mspc"]["losses"]) == 6
    assert apart(peers["mspc"]["losses"], peers["torch"]["losses"]) < 1e-5
    assert peers["mspc"]["losses"][-1] < peers["mspc"]["losses"][0]


def test_a_program_that_fails_says_why() -> None:
    child = Child(["perceptron", "mspc"], {}, HANG, 1)
    with pytest.raises(Failed, match="invalid choice: 'perceptron'"):
        child.ask("1")
    child.close()
