"""Dimensions that ranks do not divide: padded networks equal one device, and padding is nowhere seen."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.options import ImportOptions
from mspc.commands.verify import verify_target
from mspc.ir.diagnostics import MspcError
from tests.compiler.sharded_networks import HEAD
from tests.shares import share_of

PADS = HEAD.replace("device_num=8, full_batch=True", "device_num={ranks}, full_batch=True, pad_uneven=True")
NETWORK = """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table = Parameter(tensor({classes}, {hidden}), "table")
        self.up_weight, self.up_bias = Parameter(tensor({hidden}, {inner}), "up"), Parameter(tensor({inner}), "bias")
        self.down_weight = Parameter(tensor({inner}, {hidden}), "down")
        self.gather = P.Gather(){table}
        self.up, self.down = P.MatMul(){up}, P.MatMul(){down}
        self.head = P.MatMul(transpose_b=True){head}
        self.norm = nn.LayerNorm(({inner},))
        self.sparse, self.dense = nn.SoftmaxCrossEntropyWithLogits(True, "mean"), nn.SoftmaxCrossEntropyWithLogits()
    def construct(self, ids, labels):
        x = self.gather(self.table, {ids}, 0)
        h = self.up(x, self.up_weight) + self.up_bias
        h = {first}
        h = {second}
        x = x + self.down(h, self.down_weight)
        logits = self.head(x, self.table)
        return {loss}
ids, labels = (Tensor(random.integers(0, {classes}, {rows}), ms.int32) for _ in range(2))
net = Net()
nn.TrainOneStepCell(net, {optimizer})(ids, labels)
"""
STEPS = (
    "ops.relu(h)", "ops.gelu(h)", "ops.exp(-h)", "h", "h * 0.5 + 1.0", "ops.sqrt(ops.abs(h) + 0.5)",
    "h / (1.0 + h * h)", "ops.softmax(h)", "ops.log_softmax(h)", "h - h.mean(-1, keep_dims=True)",
    "h / (h * h).sum(-1, keepdims=True)", "h - ops.ReduceMax(True)(h, -1)", "self.norm(h)", "h / h.sum()",
    "ops.log(ops.abs(h))", "ops.transpose(ops.transpose(h, (1, 0)), (1, 0))", "h + ops.ReduceMin(True)(h, 0)",
    "ops.reshape(ops.reshape(h, (-1, 1, {inner})), (-1, {inner}))", "ops.cumsum(h, 1)", "ops.pow(ops.abs(h), 1.5)",
    "ops.concat((h, ops.tanh(h)), 0)[:{rows}]", "ops.select(h > 1.0, h, h * 0.1)", "h / h", "ops.sort(h)[0]",
)  # fmt: skip
LOSSES = (
    "self.sparse(logits, labels)", "ops.cross_entropy(logits, labels, label_smoothing=0.1)",
    "self.dense(logits, ops.one_hot(labels, {classes}, 1.0, 0.0)).mean()", "(logits * logits).mean() * 0.01",
    "(ops.softmax(logits) * ops.exp(self.table.sum(1))).sum()", "ops.log(ops.softmax(logits) + 0.1).mean()",
    "ops.cross_entropy(logits, ops.select(labels > 3, labels, -100))", "ops.logsumexp(logits, 1).sum()",
)  # fmt: skip
OPTIMIZERS = (
    "nn.Momentum(net.trainable_params(), 0.01, 0.9)", "nn.Adam(net.trainable_params(), 0.01)",
    "nn.AdamWeightDecay(net.trainable_params(), 0.01)", "nn.SGD(net.trainable_params(), 0.01, momentum=0.5)",
    "nn.Adagrad(net.trainable_params(), learning_rate=0.01)", "nn.RMSProp(net.trainable_params(), 0.01)",
    "nn.Lamb(net.trainable_params(), 0.01)", "nn.FTRL(net.trainable_params())",
)  # fmt: skip
COUNT = share_of(240, 80)


def drawn(seed: int) -> tuple[str, int]:
    """Return a network of primes with strategies on some of its operators, and the number of ranks."""
    draw = random.Random(seed)
    ranks = draw.choice((2, 3, 4))
    sizes = {name: draw.choice((3, 5, 7, 11, 13)) for name in ("classes", "hidden", "inner", "rows")}

    def shard(*strategies: str) -> str:
        strategy = draw.choice(("", *strategies))
        return f".shard({strategy})" if strategy else ""

    n = ranks
    given = {
        "table": shard(f"(({n}, 1), (1,))", f"((1, {n}), (1,))", f"((1, 1), ({n},))"),
        "up": shard(f"((1, 1), (1, {n}))", f"((1, {n}), ({n}, 1))", f"(({n}, 1), (1, 1))"),
        "down": shard(f"((1, {n}), ({n}, 1))", f"((1, 1), (1, {n}))"),
    }
    rows = given["table"].startswith(".shard(((1")
    given["head"] = shard(f"((1, {n}), (1, {n}))") if rows and n != 1 else shard(f"((1, 1), ({n}, 1))")
    if given["table"].endswith(f"({n},)))"):
        given["head"] = ""
    given["first"], given["second"] = draw.choice(STEPS).format(**sizes), draw.choice(STEPS).format(**sizes)
    given["loss"], given["optimizer"] = draw.choice(LOSSES).format(**sizes), draw.choice(OPTIMIZERS)
    given["ids"] = draw.choice(("ids", f"ids - {sizes['classes']}"))
    return PADS.format(ranks=ranks) + NETWORK.format(**sizes, **given), ranks


@pytest.mark.parametrize("seed", range(COUNT))
def test_networks_of_primes_equal_one_device(seed: int, tmp_path: Path) -> None:
    text, ranks = drawn(seed)
    script = tmp_path / "net.py"
    script.write_text(text)
    verify_target(str(script), CompileOptions(ranks=ranks), seed=seed)


@pytest.mark.parametrize(
    ("asks", "second", "note"),
    [
        (True, "P.CumSum().shard(((1, 4),))(h, 1)", "CumSum would read the padding"),
        (False, "h", "shard it into 1 or 11"),
    ],
)
def test_what_cannot_be_padded_is_refused(asks: bool, second: str, note: str, tmp_path: Path) -> None:
    given = {"table": "", "up": ".shard(((1, 1), (1, 4)))", "down": "", "head": "", "loss": LOSSES[0], "ids": "ids"}
    given |= {"first": "h", "second": second, "optimizer": OPTIMIZERS[0]}
    script = tmp_path / "net.py"
    head = PADS.format(ranks=4) if asks else HEAD.replace("=8", "=4")
    script.write_text(head + NETWORK.format(classes=5, hidden=8, inner=11, rows=4, **given))
    with pytest.raises(MspcError) as raised:
        verify_target(str(script), CompileOptions(), seed=1)
    assert "is 11, which 4 does not divide" in raised.value.render()
    assert note in raised.value.render()


@pytest.mark.thorough
def test_a_plan_of_layers_shards_a_vocabulary_that_ranks_do_not_divide(tmp_path: Path) -> None:
    """64 words over 3 ranks: the table, the head and its loss on slices of classes."""
    plan = tmp_path / "plan.toml"
    plan.write_text('loss_parallel = true\n[layers]\n"words" = "embedding_rowwise"\n"head" = "colwise"\n')
    options = ImportOptions(optimizer="adamw:lr=1e-2,max_norm=1", plan=str(plan))
    compile_options = CompileOptions(ranks=3, out=tmp_path / "out", imported=options)
    verify_target("samples/pytorch/language_model.pt2", compile_options, seed=1)
    compile_target("samples/pytorch/language_model.pt2", compile_options)
    verify_target(str(tmp_path / "out"), CompileOptions(), seed=1)
