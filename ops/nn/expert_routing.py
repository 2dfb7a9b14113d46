"""These operators of networks that serve bring rows to the experts that compute them, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import BOOL, INT32, DType, TensorType, TupleType, Type
from mspc.ops.bases import require_float
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, sample
from mspc.ops.operator_arguments import size_of, split_call
from mspc.ops.tensor.embedding import require_integer

_SERVES = NotDifferentiable("it serves trained networks")


def _require_ranks(name: str, types: Sequence[TensorType], ranks: Sequence[int], what: str) -> None:
    """Raises MspcError where operands have other numbers of dimensions."""
    if [len(t.shape) for t in types] != list(ranks):
        shapes = ", ".join(str(t.shape) for t in types)
        raise MspcError(f"{name} takes {what}, not tensors of shapes {shapes}")


class MoeGatingTopKSoftmax(Op):
    """(the k largest softmax weights of every row of x [rows, experts], their experts, Int32, and where each of them
    stands among all, Int32: place j of row i is j * rows + i). Called as `MoeGatingTopKSoftmax()(x, finished, k)`;
    the choices of a row that is finished name expert number `experts`, which there is not. finished may be None."""

    k: int = 1
    asked: bool = True
    omitted = ("asked",)
    bprop = _SERVES
    samples = (
        sample((4, 6), (4,), dtypes=("Float64", "Bool"), k=3, gradient=False),
        sample((4, 6), k=2, asked=False, gradient=False),
    )

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("finished", "k"), optional=2)
        finished = found.get("finished")
        op = replace(self, k=size_of(self.name, "k", found.get("k", 1)), asked=finished is not None)
        return op, tensors if finished is None else (*tensors, finished)

    def rule(self, *types: TensorType) -> str:
        require_float(self.name, types[0])
        _require_ranks(self.name, types, (2, 1) if self.asked else (2,), "x [rows, experts] and finished [rows]")
        if self.asked and (types[1].dtype != BOOL or types[1].shape != types[0].shape[:1]):
            raise MspcError(f"{self.name}: finished must be one Bool for each of {types[0].shape[0]} rows")
        if not 1 <= self.k <= types[0].shape[1]:
            raise MspcError(f"{self.name}: k is {self.k}, not 1 to {types[0].shape[1]}")
        ins = "n! e!, n!" if self.asked else "n! e!"
        return f"{ins} -> n! k={self.k}!, n! k!, n! k!"

    def infer(self, *types: Any) -> Type:
        shape = self.parsed_rule(*types).output_shapes()[0]
        places = TensorType(INT32, shape)
        return TupleType((TensorType(types[0].dtype, shape), places, places))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x, *finished) = be.xp, inputs
        weights = xp.exp(x - x.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        experts = xp.argsort(-weights, axis=-1, kind="stable")[:, : self.k]
        rows = xp.arange(self.k)[None, :] * x.shape[0] + xp.arange(x.shape[0])[:, None]
        best = xp.take_along_axis(weights, experts, axis=-1)
        if finished:
            experts = xp.where(finished[0][:, None], x.shape[1], experts)
        return best, experts.astype(xp.int32), rows.astype(xp.int32)


class MoeInitRouting(Op):
    """(x [rows, n] once for every choice, those of one expert together: [min(rows, active_num) * k, n]; where each
    choice went, [rows * k]; the experts in their order, [rows * k]). Called as `MoeInitRouting()(x, row_idx,
    expert_idx, active_num)`, where row_idx and expert_idx [rows, k] are what MoeGatingTopKSoftmax gives."""

    active_num: int = 0
    bprop = _SERVES
    samples = (
        sample((4, 6), (4, 2), (4, 2), dtypes=("Float64", "Int32", "Int32"), low=0, high=8, active_num=3,
               gradient=False),
    )  # fmt: skip

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 3, ("active_num",))
        return replace(self, active_num=size_of(self.name, "active_num", found["active_num"])), tensors

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {1: types[1].shape[0] * types[1].shape[1]}

    def rule(self, x: TensorType, row_idx: TensorType, expert_idx: TensorType) -> str:
        _require_ranks(self.name, (x, row_idx, expert_idx), (2, 2, 2), "x [rows, n] and two tensors [rows, k]")
        for index, operand in ((1, row_idx), (2, expert_idx)):
            require_integer(self.name, index, operand)
        if row_idx.shape != expert_idx.shape or row_idx.shape[0] != x.shape[0]:
            shapes = f"row_idx {row_idx.shape} and expert_idx {expert_idx.shape}"
            raise MspcError(f"{self.name}: {shapes} do not fit x {x.shape}")
        rows, k = row_idx.shape
        return f"r! n, r! k!, r! k! -> t={min(rows, self.active_num) * k}! n, a={rows * k}!, a!"

    def infer(self, *types: Any) -> Type:
        rows, places, experts = self.parsed_rule(*types).output_shapes()
        return TupleType((TensorType(types[0].dtype, rows), TensorType(INT32, places), TensorType(INT32, experts)))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x, rows, experts) = be.xp, inputs
        order = xp.argsort(experts.reshape(-1), kind="stable")
        choices = rows.reshape(-1)[order]
        places = xp.zeros(choices.shape, xp.int32)
        places[choices] = xp.arange(choices.size, dtype=xp.int32)
        count = min(x.shape[0], self.active_num) * rows.shape[1]
        return x[choices[:count] % x.shape[0]], places, experts.reshape(-1)[order].astype(xp.int32)


class MoeComputeExpertTokens(Op):
    """How many rows the experts 0 to i have together, for every one of num_expert, Int32. Called as
    `MoeComputeExpertTokens()(sorted_experts, num_expert)`."""

    num_expert: int = 1
    bprop = _SERVES
    samples = (sample((8,), dtypes=("Int32",), low=0, high=4, num_expert=4, gradient=False),)

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("num_expert",))
        return replace(self, num_expert=size_of(self.name, "num_expert", found["num_expert"])), tensors

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {0: self.num_expert}

    def rule(self, sorted_experts: TensorType) -> str:
        require_integer(self.name, 0, sorted_experts)
        _require_ranks(self.name, (sorted_experts,), (1,), "the experts of all rows [rows]")
        return f"r -> e={self.num_expert}!"

    def result_dtype(self, *types: TensorType) -> DType:
        return INT32

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (experts,) = be.xp, inputs
        return (experts[None, :] <= xp.arange(self.num_expert)[:, None]).sum(1).astype(xp.int32)


class MoeFinalizeRouting(Op):
    """Row by row x1 [rows, n], and x2 where it is not None, and for every choice of the row its weight in scales [rows,
    k] times the sum of its row of expanded_x [rows * k, n] and its expert's of bias [experts, n]. Choice j of row i is
    row expanded_row_idx[j * rows + i] of expanded_x, its expert is expanded_expert_idx[i, j]. Called with all operands
    in this order: expanded_x, x1, x2, bias, scales, expanded_row_idx, expanded_expert_idx.
    """

    second: bool = True
    omitted = ("second",)
    bprop = _SERVES
    samples = (
        sample((8, 6), (4, 6), (4, 6), (8, 6), (4, 2), (8,), (4, 2), dtypes=(*("Float64",) * 5, "Int32", "Int32"),
               low=0, high=8, gradient=False),
        sample((8, 6), (4, 6), (8, 6), (4, 2), (8,), (4, 2), dtypes=(*("Float64",) * 4, "Int32", "Int32"), low=0,
               high=8, second=False, gradient=False),
    )  # fmt: skip

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        if len(args) != 7 or any(x is None for i, x in enumerate(args) if i != 2):
            raise MspcError(f"{self.name} takes 7 tensors, of which x2, the third, may be None", kind=TypeError)
        return replace(self, second=args[2] is not None), tuple(x for x in args if x is not None)

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {len(types) - 2: types[0].shape[0], len(types) - 1: types[-4].shape[0]}

    def rule(self, *types: TensorType) -> str:
        ranks = (2, 2, 2, 2, 2, 1, 2) if self.second else (2, 2, 2, 2, 1, 2)
        _require_ranks(self.name, types, ranks, f"{len(ranks)} tensors of {ranks} dimensions")
        for index in (len(types) - 2, len(types) - 1):
            require_integer(self.name, index, types[index])
        rows, k = types[-3].shape
        if types[0].shape[0] != rows * k or types[-2].shape != (rows * k,):
            raise MspcError(
                f"{self.name}: {k} choices of {rows} rows are {rows * k}, not {types[0].shape[0]} of expanded_x and "
                f"{types[-2].shape[0]} of expanded_row_idx"
            )
        second = "t! n, " if self.second else ""
        return f"a! n, t! n, {second}e! n, t! k!, a!, t! k! -> t! n"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        expanded, *added, bias, scales, rows, experts = inputs
        total: Any = added[0] + added[1] if self.second else added[0]
        for choice in range(scales.shape[1]):
            mine = rows[choice * total.shape[0] : (choice + 1) * total.shape[0]]
            total = total + scales[:, choice : choice + 1] * (expanded[mine] + bias[experts[:, choice]])
        return total.astype(expanded.dtype)
