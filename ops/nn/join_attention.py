"""What slices of the keys give the same queries becomes what all of them give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import TensorType, TupleType, Type
from mspc.ops.cuda.join_attention import launch_join
from mspc.ops.device import Array, Device, Launch
from mspc.ops.nn.attention_kernel import by_head
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, sample


class JoinAttention(Op):
    """(attention_out, softmax_max) of a query that looks at the keys of both operands' (attention_out, softmax_max):
    of (out, statistics, other out, other statistics). Attentions are in `input_layout`, the statistics [batch, heads,
    queries, 1] the logarithms of the sums of exp(score). The result has the statistics' element type. Milakov and
    Gimelshein, Online normalizer calculation for softmax, arXiv 1805.02867.
    """

    input_layout: str = "BSH"
    bprop = NotDifferentiable("it is of a rank's own graph, whose gradients are there")
    samples = (
        sample((2, 4, 8), (2, 2, 4, 1), (2, 4, 8), (2, 2, 4, 1), gradient=False),
        sample((2, 2, 4, 3), (2, 2, 4, 1), (2, 2, 4, 3), (2, 2, 4, 1), gradient=False, input_layout="BNSD"),
        sample((2, 4, 2, 3), (2, 2, 4, 1), (2, 4, 2, 3), (2, 2, 4, 1), gradient=False, input_layout="BSND"),
        sample((4, 2, 8), (2, 2, 4, 1), (4, 2, 8), (2, 2, 4, 1), gradient=False, input_layout="SBH"),
    )

    def rule(self, *types: TensorType) -> str:
        if len(types) != 4 or len(types[1].shape) != 4:
            raise MspcError(f"{self.name} takes two attentions, each with its statistics [batch, heads, queries, 1]")
        count = types[1].shape[1]
        heads = f"h={count}"
        hidden = f"({heads} d!)" if count else "d!"
        out = {"BSH": f"b s {hidden}", "SBH": f"s b {hidden}", "BNSD": f"b {heads} s d!"}
        text = f"{out.get(self.input_layout, f'b s {heads} d!')}, b {heads} s 1"
        return f"{text}, {text} -> {text}"

    def infer(self, *types: Any) -> Type:
        inferred = super().infer(*types)
        assert isinstance(inferred, TupleType)
        return TupleType(tuple(TensorType(types[1].dtype, t.shape) for t in inferred.elements))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (one, of_one, other, of_other) = be.xp, inputs
        top = xp.maximum(of_one, of_other)
        top = xp.where(top == -xp.inf, 0, top)  # neither has a key
        left, right = xp.exp(of_one - top), xp.exp(of_other - top)
        total = left + right
        some = total != 0
        safe = xp.where(some, total, 1)
        joined = xp.empty(one.shape, of_one.dtype)
        if joined.size:
            a, b, c = (by_head(x, self.input_layout, of_one.shape[1]) for x in (one, other, joined))
            c[...] = a * (left / safe) + b * (right / safe)
        return joined, xp.where(some, top + xp.log(safe), -xp.inf).astype(of_one.dtype)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        return launch_join(device, self.input_layout, inputs, out)

    def kernel_into(self, be: ArrayBackend) -> Callable[..., Any] | None:
        def into(*inputs: Any, out: Sequence[Any]) -> Any:
            for target, made in zip(out, self.run(be, *inputs), strict=True):
                target[...] = made
            return out

        return into
