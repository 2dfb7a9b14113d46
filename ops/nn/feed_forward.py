"""Two products with an activation between them, for all rows or for every expert's own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import TensorType, Type
from mspc.ops.composed import Cuts, Emit, WithOptionalOperands, dtype_in, together
from mspc.ops.math.arithmetic import Add
from mspc.ops.math.grouped_product import GroupedProduct, GroupedRows
from mspc.ops.math.matmul import MatMul
from mspc.ops.math.quantisation import WeightAntiQuant
from mspc.ops.math.quantised_product import read_weight
from mspc.ops.math.running import CumSum
from mspc.ops.nn.activation import FastGeLU, GeLU, ReLU, SiLU
from mspc.ops.op import Op, sample
from mspc.ops.tensor.reshape import Reshape

ACTIVATIONS: dict[str, type[Op]] = {"fastgelu": FastGeLU, "gelu": GeLU, "relu": ReLU, "silu": SiLU}


class FFN(WithOptionalOperands):
    """act(x @ weight1 + bias1) @ weight2 + bias2 for x [..., k].

    Called as `FFN(activation, inner_precise)(x, weight1, weight2, expert_tokens, bias1, bias2, scale, offset,
    deq_scale1, deq_scale2, antiquant_scale1, antiquant_scale2, antiquant_offset1, antiquant_offset2)`, of which all
    behind weight2 may be None. With expert_tokens, the number of rows of every expert in turn, the weights are
    [experts, k, n] and [experts, n, m], the biases [experts, n] and [experts, m]; rows behind the last expert's give
    zeros. Weights of Int8 are read with antiquant_scale and antiquant_offset, of a bias's shape; scale, offset and
    deq_scale, of networks whose rows are integers, must be None. inner_precise changes nothing.
    """

    activation: str = "fastgelu"
    inner_precise: int = 0
    given: tuple[str, ...] = ("x", "weight1", "weight2")
    order: ClassVar[tuple[str, ...]] = (
        "x", "weight1", "weight2", "expert_tokens", "bias1", "bias2", "scale", "offset", "deq_scale1", "deq_scale2",
        "antiquant_scale1", "antiquant_scale2", "antiquant_offset1", "antiquant_offset2",
    )  # fmt: skip
    needed: ClassVar[int] = 3
    samples: ClassVar[Any] = (
        sample((4, 8), (8, 6), (6, 4), gradient=False),
        sample((2, 4, 4), (2, 4, 6), (2, 6, 4), (2,), (2, 6), (2, 4), dtypes=(*("Float64",) * 3, "Int64", "Float64",
               "Float64"), low=1, high=5, gradient=False, activation="relu", given=order[:6]),
    )  # fmt: skip

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        """All experts together have no more rows than there are."""
        if "expert_tokens" not in self.given:
            return {}
        rows, experts = math.prod(types[0].shape[:-1]), types[1].shape[0]
        return {self.given.index("expert_tokens"): rows // max(1, experts) + 1}

    def infer(self, *types: Any) -> Type:
        found = self.named(types)
        if self.activation not in ACTIVATIONS:
            raise MspcError(f"{self.name}: activation is {self.activation!r}, not one of {', '.join(ACTIVATIONS)}")
        for name in self.order[6:10]:
            if found[name] is not None:
                raise MspcError(f"{self.name}: {name} must be None; rows of integers are not built")
        rank = 2 if found["expert_tokens"] is None else 3
        for name in ("weight1", "weight2"):
            if len(found[name].shape) != rank:
                what = "with" if rank == 3 else "without"
                shape = found[name].shape
                raise MspcError(f"{self.name}: {name} {shape} must have {rank} dimensions {what} expert_tokens")
        return super().infer(*types)

    def compose(self, emit: Emit, cuts: Sequence[Cuts] | None, operands: Sequence[Any]) -> Any:
        found, cut = self.named(operands), self.named(cuts)
        x, at = found["x"], cut["x"]
        shape = tuple(x.shape)
        if len(shape) > 2:
            if at is not None and any(n != 1 for n in at[1:-1]):
                raise MspcError(f"{self.name}: the first and the last dimension of x {shape} can be cut, not {at}")
            x = emit(Reshape((math.prod(shape[:-1]), shape[-1])), x)
            at = None if at is None else (at[0], at[-1])
        ends = found["expert_tokens"]
        if ends is not None:
            ends = emit(CumSum(axis=0), ends, cuts=together(cut["expert_tokens"]))
        for layer in ("1", "2"):
            x, at = self._layer(emit, layer, x, at, ends, found, cut)
            if layer == "1":
                x = emit(ACTIVATIONS[self.activation](), x, cuts=together(at))
        return x if len(shape) == 2 else emit(Reshape((*shape[:-1], x.shape[-1])), x)

    def _layer(
        self, emit: Emit, layer: str, x: Any, at: Cuts | None, ends: Any, found: dict[str, Any], cut: dict[str, Any]
    ) -> tuple[Any, Cuts | None]:
        """(x @ weight + bias of one layer, how it is cut)."""
        names = (f"weight{layer}", f"antiquant_scale{layer}", f"antiquant_offset{layer}")
        weight, weight_cut, bias, of_ends = found[names[0]], cut[names[0]], found[f"bias{layer}"], cut["expert_tokens"]
        if found[names[1]] is not None:
            weight = read_weight(emit, WeightAntiQuant(dtype=dtype_in(x)), found, cut, *names)
        if ends is None:
            made = emit(MatMul(), x, weight, cuts=together(at, weight_cut))
        else:
            made = emit(GroupedProduct(), x, weight, ends, cuts=together(at, weight_cut, of_ends))
        at = None if at is None or weight_cut is None else (at[0], weight_cut[-1])
        bias_cut = cut[f"bias{layer}"]
        if bias is not None and ends is not None:
            bias = emit(GroupedRows(), made, bias, ends, cuts=together(at, bias_cut, of_ends))
            bias_cut = at
        return (made if bias is None else emit(Add(), made, bias, cuts=together(at, bias_cut))), at


class FFNExt(FFN):
    """As FFN."""

    samples: ClassVar[Any] = FFN.samples[:1]
