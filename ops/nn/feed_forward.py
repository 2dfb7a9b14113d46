"""These operators are two products with an activation between them, for all rows or for every expert's own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import FLOAT16, FLOAT32, INT8, INT32, TensorType, Type
from mspc.ops.composite_op import Cuts, Emit, WithOptionalOperands, dtype_in, together
from mspc.ops.math.arithmetic import Add, Mul
from mspc.ops.math.grouped_product import GroupedProduct, GroupedRows
from mspc.ops.math.matmul import MatMul
from mspc.ops.math.quantisation import Dequant, QuantV2, WeightAntiQuant
from mspc.ops.math.quantised_product import read_weight
from mspc.ops.math.running import CumSum
from mspc.ops.nn.activation import FastGeLU, GeLU, ReLU, SiLU
from mspc.ops.op import Op, sample
from mspc.ops.tensor.cast import Cast
from mspc.ops.tensor.creation import OnesLike, ZerosLike
from mspc.ops.tensor.reshape import Reshape

ACTIVATIONS: dict[str, type[Op]] = {"fastgelu": FastGeLU, "gelu": GeLU, "relu": ReLU, "silu": SiLU}


class FFN(WithOptionalOperands):
    """act(x @ weight1 + bias1) @ weight2 + bias2 for x [..., k].

    Called as `FFN(activation, inner_precise)(x, weight1, weight2, expert_tokens, bias1, bias2, scale, offset,
    deq_scale1, deq_scale2, antiquant_scale1, antiquant_scale2, antiquant_offset1, antiquant_offset2)`, of which all
    behind weight2 may be None. With expert_tokens, the number of rows of every expert in turn, the weights are
    [experts, k, n] and [experts, n, m], the biases [experts, n] and [experts, m]; rows behind the last expert's give
    zeros. Weights of Int8 are read with antiquant_scale and antiquant_offset, of a bias's shape. Where x is Int8 the
    weights are, too, and a bias is Int32: sums are in Int32, they count deq_scale times (in a bias's shape; of 64 bits:
    those of a Float32), what goes between the layers is rounded to Int8 as scale * y + offset (one number for every
    expert), and the result is Float16. inner_precise changes nothing.
    """

    activation: str = "fastgelu"
    inner_precise: int = 0
    given: tuple[str, ...] = ("x", "weight1", "weight2")
    order = (
        "x", "weight1", "weight2", "expert_tokens", "bias1", "bias2", "scale", "offset", "deq_scale1", "deq_scale2",
        "antiquant_scale1", "antiquant_scale2", "antiquant_offset1", "antiquant_offset2",
    )  # fmt: skip
    needed = 3
    samples = (
        sample((4, 8), (8, 6), (6, 4), gradient=False),
        sample((2, 4, 4), (2, 4, 6), (2, 6, 4), (2,), (2, 6), (2, 4), dtypes=(*("Float64",) * 3, "Int64", "Float64",
               "Float64"), low=1, high=5, gradient=False, activation="relu", given=order[:6]),
        sample((4, 8), (2, 8, 6), (2, 6, 4), (2,), (2, 6), (2,), (2, 6), (2, 4), dtypes=("Int8", "Int8", "Int8",
               "Int64", "Int32", "Float32", "Float32", "Float32"), low=0, high=5, gradient=False, activation="relu",
               given=(*order[:5], "scale", "deq_scale1", "deq_scale2")),
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
        integers = found["x"].dtype == INT8
        for name in ("scale", "offset", "deq_scale1", "deq_scale2"):
            if integers and found[name] is None and name != "offset":
                raise MspcError(f"{self.name}: x is Int8, which needs {name}, and that is None")
            if not integers and found[name] is not None:
                raise MspcError(f"{self.name}: {name} must be None where x is {found['x'].dtype}, not Int8")
        for name in self.order[10:]:
            if integers and found[name] is not None:
                raise MspcError(f"{self.name}: {name} must be None where x is Int8")
        rank = 2 if found["expert_tokens"] is None else 3
        for name in ("weight1", "weight2"):
            if len(found[name].shape) != rank:
                what = "with" if rank == 3 else "without"
                shape = found[name].shape
                raise MspcError(f"{self.name}: {name} {shape} must have {rank} dimensions {what} expert_tokens")
        return super().infer(*types)

    def compose(self, emit: Emit, cuts: Sequence[Cuts] | None, operands: Sequence[Any]) -> Any:
        found, shards = self.named(operands), self.named(cuts)
        x, at = found["x"], shards["x"]
        shape = tuple(x.shape)
        if len(shape) > 2:
            if at is not None and any(n != 1 for n in at[1:-1]):
                raise MspcError(f"{self.name}: the first and the last dimension of x {shape} can be sharded, not {at}")
            x = emit(Reshape((math.prod(shape[:-1]), shape[-1])), x)
            at = None if at is None else (at[0], at[-1])
        ends = found["expert_tokens"]
        if ends is not None:
            ends = emit(CumSum(axis=0), ends, cuts=together(shards["expert_tokens"]))
        for layer in ("1", "2"):
            x, at = self._layer(emit, layer, x, at, ends, found, shards)
            if layer == "1":
                x = emit(ACTIVATIONS[self.activation](), x, cuts=together(at))
                if found["scale"] is not None:
                    x = self._rounded(emit, x, at, ends, found, shards)
        if found["scale"] is not None:
            x = emit(Cast(dst_type=FLOAT16), x, cuts=together(at))
        return x if len(shape) == 2 else emit(Reshape((*shape[:-1], x.shape[-1])), x)

    def _layer(
        self, emit: Emit, layer: str, x: Any, at: Cuts | None, ends: Any, found: dict[str, Any], shards: dict[str, Any]
    ) -> tuple[Any, Cuts | None]:
        """(x @ weight + bias of one layer, how it is sharded)."""
        names = (f"weight{layer}", f"antiquant_scale{layer}", f"antiquant_offset{layer}")
        weight, of_weight, of_ends = found[names[0]], shards[names[0]], shards["expert_tokens"]
        if found[names[1]] is not None:
            weight = read_weight(emit, WeightAntiQuant(dtype=dtype_in(x)), found, shards, *names)
        if found["scale"] is not None:
            x = emit(Cast(dst_type=INT32), x, cuts=together(at))
            weight = emit(Cast(dst_type=INT32), weight, cuts=together(of_weight))
        if ends is None:
            made = emit(MatMul(), x, weight, cuts=together(at, of_weight))
        else:
            made = emit(GroupedProduct(), x, weight, ends, cuts=together(at, of_weight, of_ends))
        at = None if at is None or of_weight is None else (at[0], of_weight[-1])
        bias, of_bias = found[f"bias{layer}"], shards[f"bias{layer}"]
        if bias is not None and ends is not None:
            bias = emit(GroupedRows(), made, bias, ends, cuts=together(at, of_bias, of_ends))
            of_bias = at
        if bias is not None:
            made = emit(Add(), made, bias, cuts=together(at, of_bias))
        if found["scale"] is None:
            return made, at
        of_scale = shards[f"deq_scale{layer}"]
        ones = emit(OnesLike(), emit(Cast(dst_type=INT32), found[f"deq_scale{layer}"], cuts=together(of_scale)))
        scales = emit(Dequant(dtype=FLOAT32), ones, found[f"deq_scale{layer}"], cuts=together(of_scale, of_scale))
        made = emit(Cast(dst_type=FLOAT32), made, cuts=together(at))
        if ends is None:
            return emit(Mul(), made, scales, cuts=together(at, of_scale)), at
        rows = emit(GroupedRows(), made, scales, ends, cuts=together(at, of_scale, of_ends))
        return emit(Mul(), made, rows, cuts=together(at, at)), at

    def _rounded(
        self, emit: Emit, y: Any, at: Cuts | None, ends: Any, found: dict[str, Any], shards: dict[str, Any]
    ) -> Any:
        """What goes between the layers as Int8."""
        given = {name: found[name] for name in ("scale", "offset")}
        if given["offset"] is None:
            given["offset"] = emit(ZerosLike(), given["scale"], cuts=together(shards["scale"]))
        if ends is None:
            return emit(QuantV2(), y, given["scale"], given["offset"])
        columns = None if at is None else (1, at[1])
        wide = emit(Cast(dst_type=FLOAT32), emit(OnesLike(), found["deq_scale1"]))
        rows: list[Any] = []
        for of_experts in given.values():
            column = emit(Reshape((-1, 1)), emit(Cast(dst_type=FLOAT32), of_experts))
            every = emit(Mul(), wide, column, cuts=together(columns, columns and (1, 1)))
            rows.append(emit(GroupedRows(), y, every, ends, cuts=together(at, columns, shards["expert_tokens"])))
        return emit(QuantV2(), y, *rows, cuts=together(at, at, at))


class FFNExt(FFN):
    """The same operator as FFN, under its other name."""

    samples = FFN.samples[:1]
