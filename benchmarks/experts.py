"""Bytes that a rank sends for a layer of experts, forward and backward, beside Megatron-LM's scheme by its formulas.

    python -m benchmarks.experts [--quick]

Megatron-LM's dispatcher by all-to-all sends every row of a token to a rank of its expert and back, and as much for the
gradients: 4 x rows x width x bytes x (n - 1) / n, where n ranks share the experts, and rows are tokens x choices of a
rank, or experts x room where every expert has room for a number of tokens. Sums of parameters' gradients are left out
on both sides. `rows` are the same of the compiled program; `besides` is all else that the layer sends: which rows are
meant, what orders them, balancing losses. Exit status 1 where rows are more than by the formulas.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROWS = ("AlltoAll", "FetchRows", "SendRows")
"""Collectives that bring rows to experts and back."""
PLACE = 4
"""Bytes that name a row."""

SCRIPT = """
import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer

RANKS, PARTS, TOKENS, WIDTH, HIDDEN, EXPERTS, CHOSEN, FORM, ROOM = {settings}
HALF, ON, OFF = ms.bfloat16, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32)
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="data_parallel")


class Layer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.before = Parameter(initializer(Normal(0.02), (WIDTH, WIDTH), HALF), name="before")
        self.router = Parameter(initializer(Normal(0.02), (WIDTH, EXPERTS), ms.float32), name="router")
        self.up = Parameter(initializer(Normal(0.02), (EXPERTS, WIDTH, HIDDEN), HALF), name="up")
        self.down = Parameter(initializer(Normal(0.02), (EXPERTS, HIDDEN, WIDTH), HALF), name="down")
        if FORM == "sorted":
            self.first, self.second = (ops.auto_generate.GroupedMatmul(3, 0) for _ in range(2))
            cut = (RANKS // PARTS, 1), (PARTS, 1, 1), (1,)
        else:
            self.first, self.second = ops.BatchMatMul(), ops.BatchMatMul()
            outer = RANKS // PARTS
            cut = ((PARTS, outer, 1) if FORM == "slots" else (outer, PARTS, 1, 1)), (PARTS, 1, 1)
        self.first.shard(cut)
        self.second.shard(cut)
        self.routing = ops.TopKRouter()
        self.dispatch, self.combine = ops.Gather(batch_dims=1), ops.Gather(batch_dims=1)

    def construct(self, x):
        x = ops.matmul(x, self.before)
        rows = x.reshape(-1, WIDTH)
        scores = ops.softmax(ops.matmul(rows.astype(ms.float32), self.router), -1)
        weights, experts = ops.topk(scores, CHOSEN)
        weights, experts = (weights / weights.sum(-1, keepdims=True)).astype(HALF), experts.astype(ms.int32)
        even = (ops.one_hot(experts, EXPERTS, ON, OFF).sum(1).mean(0) * scores.mean(0)).sum()
        out = getattr(self, FORM)(x, rows, weights, experts)
        return (out.astype(ms.float32) ** 2).mean() + 0.01 * even

    def sorted(self, x, rows, weights, experts):
        given, back = ops.moe_token_permute(rows, experts)
        ends = ops.cumsum(ops.one_hot(experts.reshape(-1), EXPERTS, ON, OFF).sum(0), 0).astype(ms.int64)
        hidden = ops.silu(self.first([given], [self.up], None, None, None, None, None, ends)[0])
        found = self.second([hidden], [self.down], None, None, None, None, None, ends)[0]
        return ops.moe_token_unpermute(found, back, weights).reshape(x.shape)

    def tables(self, x, rows, weights, experts):
        tables, places = self.routing(experts.reshape(RANKS, TOKENS, CHOSEN), ROOM, EXPERTS, 0)
        padded = ops.concat((ops.zeros((RANKS, 1, WIDTH), HALF), x), 1)
        found = self.second(ops.silu(self.first(self.dispatch(padded, tables, 1), self.up)), self.down)
        found = ops.concat((ops.zeros((RANKS, EXPERTS, 1, WIDTH), HALF), found), 2).reshape(RANKS, -1, WIDTH)
        return (self.combine(found, places, 1) * weights.reshape(RANKS, TOKENS, CHOSEN, 1)).sum(2)

    def slots(self, x, rows, weights, experts):
        flat, room = experts.reshape(-1), ROOM * RANKS
        taken = ops.one_hot(flat, EXPERTS, ON, OFF)
        place = ((ops.cumsum(taken, 0) - 1.0) * taken).sum(-1).astype(ms.int32)
        slot = ops.where(place < room, flat * room + place, EXPERTS * room)
        given = ops.unsorted_segment_sum(ops.repeat_interleave(rows, CHOSEN, axis=0), slot, EXPERTS * room + 1)
        hidden = ops.silu(self.first(given[: EXPERTS * room].reshape(EXPERTS, room, WIDTH), self.up))
        found = ops.cat((self.second(hidden, self.down).reshape(-1, WIDTH), ops.zeros((1, WIDTH), HALF)), 0)
        out = ops.gather(found, slot, 0) * weights.reshape(-1, 1)
        return out.reshape(-1, CHOSEN, WIDTH).sum(1).reshape(x.shape)


network = Layer()
step = nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 0.1))
step(Tensor(np.zeros((1, TOKENS, WIDTH), np.float32)).astype(HALF))
"""


class Layer(NamedTuple):
    """A layer, and who shares it: `ranks` share the batch, `parts` of them the experts. tokens: of a rank."""

    name: str
    form: str
    ranks: int
    parts: int
    tokens: int
    width: int
    hidden: int
    experts: int
    chosen: int

    @property
    def room(self) -> int:
        """Tokens of a rank that an expert has room for: 1.25 times what even routing gives."""
        return -(-self.tokens * self.chosen * 5 // (4 * self.experts))

    @property
    def rows(self) -> int:
        """Rows that a rank sends, or keeps where it has the expert itself."""
        return self.experts * self.room if self.form == "tables" else self.tokens * self.chosen

    @property
    def formula(self) -> float:
        """Bytes by Megatron-LM's scheme. Slots are numbered over all ranks, which so exchange rows with each other."""
        count = self.ranks if self.form == "slots" else self.parts
        return 4 * self.rows * self.width * 2 * (count - 1) / count


class Sent(NamedTuple):
    """Bytes of a rank: rows that go to experts and back, and all else but sums of parameters' gradients."""

    rows: float
    besides: float


def layers(quick: bool) -> Iterator[Layer]:
    """The layers of the table."""
    sizes = {"Mixtral 8x7B": (4096, 14336, 8, 2), "DeepSeek-V3": (7168, 2048, 256, 8)}
    for form in ("tables", "slots", "sorted"):
        for name, size in sizes.items():
            for ranks, parts in ((8, 8), (64, 8), (64, 64)):
                is_even = size[2] % parts == 0 and (form != "slots" or parts in (ranks, size[2]))
                if is_even and not (quick and ranks > 8):
                    yield Layer(name, form, ranks, parts, 4096, *size)


def compiled(layer: Layer) -> Sent:
    """What a rank sends in the compiled program."""
    settings = (layer.ranks, layer.parts, *layer[4:], layer.form, layer.room)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "layer.py"
        script.write_text(SCRIPT.format(settings=settings), encoding="utf-8")
        command = [sys.executable, "-m", "mspc", "compile", str(script), "--ranks", str(layer.ranks), "--rank", "0",
                   "--out", f"{folder}/out", "--json", "-"]  # fmt: skip
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    return sent(layer, json.loads(found.stdout)["collectives"])


def sent(layer: Layer, collectives: list[dict[str, object]]) -> Sent:
    """The same of the collectives of a rank, as `--json` lists them."""
    rows = besides = 0.0
    for each in collectives:
        nbytes = float(str(each["bytes"]))
        if each["operator"] in ROWS:
            named = 0 if each["operator"] == "AlltoAll" else nbytes * PLACE / (2 * layer.width + PLACE)
            rows, besides = rows + nbytes - named, besides + named
        elif not each["parameter"]:
            besides += nbytes
    return Sent(rows, besides)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Bytes of layers of experts beside Megatron-LM's formulas.")
    parser.add_argument("--quick", action="store_true", help="eight ranks only")
    quick = parser.parse_args(arguments).quick
    print("MiB that a rank sends forward and backward, 4,096 tokens in bfloat16")
    print("| form | layer | ranks | share experts | by formulas | rows | besides |")
    print("|---|---|---|---|---|---|---|")
    worst = 0.0
    for layer in layers(quick):
        found, mib = compiled(layer), 2.0**20
        worst = max(worst, found.rows / layer.formula)
        figures = " | ".join(f"{n / mib:.1f}" for n in (layer.formula, *found))
        print(f"| {layer.form} | {layer.name} | {layer.ranks} | {layer.parts} | {figures} |", flush=True)
    print(f"rows are at most {worst:.3f} times those of the formulas")
    return int(worst > 1.0005)


if __name__ == "__main__":
    sys.exit(main())
