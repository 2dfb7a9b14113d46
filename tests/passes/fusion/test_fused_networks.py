"""Networks as people write them, compiled for GPUs, train as they do without any fusion."""

from __future__ import annotations

import pytest

from tests import fused_networks
from tests.ops.cuda.cuda_emulator import NEEDED
from tests.shares import share_of

pytestmark = pytest.mark.skipif(NEEDED is None, reason="g++ is not there")
SEED, COUNT = 20261125, share_of(80, 16)


def test_networks_compute_what_they_say() -> None:
    """Attention, norms, losses, moves, images and optimizers among them."""
    seeds = [seed for seeds in fused_networks.batches(SEED, COUNT) for seed in seeds]
    found = fused_networks.check_all(seeds)
    assert found.lines == []
    assert found.count == COUNT
    assert {"FusedElementwise", "FusedMatMul", "FusedUpdate", "GroupedUpdate"} <= found.fused.keys()


def test_what_can_be_drawn_is_what_fusion_is_for() -> None:
    """All that passes for GPUs look for is written by some of the networks."""
    drawn = [seed for seeds in fused_networks.batches(SEED, 600) for seed in seeds]
    texts = "\n".join(fused_networks.Network(seed).text for seed in drawn)
    wanted = (
        "ops.cast", "ops.split", "ops.cat", "ops.stack", "transpose(", "ops.pad", "repeat_interleave", "ops.tile",
        "ops.flip", "ops.roll", "ops.gather", "ops.one_hot", "ops.arange", "ops.tril", "ops.softmax", "log_softmax",
        "nn.LayerNorm", "ops.rms_norm", "nn.GroupNorm", "nn.BatchNorm2d", "ops.var", "masked_fill", "ops.where",
        "nn.Dropout", "broadcast_to", "cross_entropy", "ignore_index", "label_smoothing", "nn.Conv2d",
        "ops.interpolate", "nn.MaxPool2d", "nn.AvgPool2d", "nn.Dense", "ops.gelu", "clip_by_global_norm",
        "nn.TrainOneStepWithLossScaleCell", "nn.Embedding",
        "recompute()", "float16", "bfloat16", "float64", "nn.Adam", "nn.Lamb", "nn.SGD", "nn.RMSProp",
    )  # fmt: skip
    assert [word for word in wanted if word not in texts] == []
