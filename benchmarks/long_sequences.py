"""Bytes that a layer of LLaMA sends with sharded sequences, beside the formulas of the schemes that it is sharded by.

    python -m benchmarks.long_sequences

Each figure is a rank's in the mean, of a training step: what two layers send more than one. Formulas, of a layer's
words R of a rank's slice of the text, in elements, forward and backward:

    sequence parallel   8 (t - 1) / t R width                        Korthikanti et al., arXiv 2205.05198
    ring                6 (c - 1) R keys                             Liu et al., arXiv 2310.01889
    slices for heads    2 (u - 1) / u R (2 queries + 2 keys)         Jacobs et al., arXiv 2309.14509
    both                the latter, and 6 (c / u - 1) R keys         Fang and Zhao, arXiv 2405.07719
    gradients           2 (c - 1) / c weights / t, norms' over c t

t: tensor parallel ranks, c: context parallel ones, u: of these so many exchange slices for heads; queries and keys: the
width of a rank's heads, of at least one head of keys for each of u ranks. Korthikanti et al. gather two operands once
more for the gradients of weights, which are kept here. The exit status is 1 where more is sent.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from mspc.analysis.cost.nodes import sent_bytes
from mspc.api.state import Session
from mspc.compiler.driver import compile_call
from mspc.engine.capture import capture
from mspc.output.programs import config_of

SCRIPT = Path(__file__).resolve().parent / "networks" / "long_llama.py"
WIDTH, HEADS, HIDDEN, VOCABULARY, SEQUENCE = 4096, 32, 14336, 32000, 131072
SIZE = WIDTH // HEADS
KINDS = {
    "AllGather": "sequence", "ReduceScatter": "sequence", "NeighborExchange": "context", "AlltoAll": "context",
    "AllReduce": "gradients",
}  # fmt: skip
KINDS_SHOWN = tuple(dict.fromkeys(KINDS.values()))
MEGA = 1e6
ROUNDING = 1.0001
"""The sums of some rows' squares are no part of formulas."""


@dataclass(frozen=True)
class Case:
    """A way to shard the layer. degree: 0 where bytes decide."""

    key_heads: int
    context: int
    tensor: int
    degree: int

    @property
    def ranks(self) -> int:
        return self.context * self.tensor

    def formulas(self, degree: int) -> dict[str, float]:
        """Bytes of a rank in the mean."""
        t, c, rows = self.tensor, self.context, SEQUENCE // self.context
        queries, keys = WIDTH // t, max(self.key_heads // t, degree) * SIZE
        heads = WIDTH * (2 * WIDTH + 2 * self.key_heads * SIZE)
        weights, norms = (heads + 3 * WIDTH * HIDDEN) / t, 2 * WIDTH
        exchanged = 2 * (degree - 1) / degree * rows * (2 * queries + 2 * keys)
        over_both = c * t
        return {
            "sequence": 2 * 8 * (t - 1) / t * rows * WIDTH,
            "context": 2 * (exchanged + 6 * (c // degree - 1) * rows * keys),
            "gradients": 2 * (2 * (c - 1) / c * weights + 2 * (over_both - 1) / over_both * norms),
        }


CASES = [
    Case(32, 1, 8, 0), Case(32, 8, 1, 1), Case(32, 8, 1, 8), Case(32, 8, 1, 2), Case(32, 8, 1, 0), Case(8, 8, 1, 1),
    Case(8, 8, 1, 8), Case(8, 8, 1, 4), Case(8, 8, 1, 0), Case(32, 4, 2, 1), Case(8, 4, 2, 2), Case(8, 8, 8, 1),
    Case(8, 8, 8, 4), Case(8, 8, 8, 0),
]  # fmt: skip


def sent(case: Case, layers: int) -> tuple[Counter[str], int]:
    """(bytes of all ranks by what they are for, among how many ranks slices are exchanged for heads)."""
    sizes = (layers, WIDTH, HEADS, case.key_heads, HIDDEN, VOCABULARY, 1, case.context, case.tensor, SEQUENCE)
    captured = capture(SCRIPT, [*map(str, sizes), str(case.degree)], Session.of_rank(0, case.ranks))
    compiled = compile_call(captured.target, captured.args, config_of(captured, case.ranks))
    found: Counter[str] = Counter()
    degree = 1
    for rank in range(case.ranks):
        for node in compiled.rank_graph(rank).nodes:
            kind = KINDS.get(node.op.name)
            if kind is not None:
                found[kind] += int(sent_bytes(node))
            if node.op.name == "AlltoAll":
                degree = max(degree, node.op.group_size)
    return found, degree


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Bytes of a layer with sharded sequences beside formulas.")
    parser.parse_args(arguments)
    print("MB of a layer, a rank in the mean; LLaMA 3 8B's layer, 131,072 words, bfloat16")
    columns = "".join(f"{name:>10}{'formula':>10}" for name in KINDS_SHOWN)
    print(f"heads  key heads  context  tensor  ring x heads  {columns}  together")
    more = False
    for case in CASES:
        (two, degree), (one, _) = sent(case, 2), sent(case, 1)
        formulas = case.formulas(degree)
        own = {kind: (two[kind] - one[kind]) / case.ranks for kind in formulas}
        share = sum(own.values()) / sum(formulas.values())
        more |= share > ROUNDING or own["context"] > formulas["context"] * ROUNDING
        way = f"{case.context // degree} x {degree}" + " *" * (not case.degree)
        figures = "".join(f"{own[kind] / MEGA:10.1f}{formulas[kind] / MEGA:10.1f}" for kind in KINDS_SHOWN)
        print(f"{HEADS:5}{case.key_heads:11}{case.context:9}{case.tensor:8}{way:>14}  {figures}{share:10.3f}")
    print("*: what the compiler takes by itself")
    return int(more)


if __name__ == "__main__":
    sys.exit(main())
