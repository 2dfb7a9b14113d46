"""These operators decide which tokens go to which expert, as far as an expert takes them, and make the tables for those
who send them there and back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import FLOAT32, TensorType, TupleType, Type
from mspc.ops.cuda.token_routing import route_tokens
from mspc.ops.device import Array, Device, Launch
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, sample
from mspc.ops.operator_arguments import int_of, size_of, split_call
from mspc.ops.tensor.creation import number_of
from mspc.ops.tensor.embedding import require_integer
from mspc.sharding.factors import Rule


class TopKRouter(Op):
    """(the tokens of every expert [batch, expert_num, capacity], counted from 1, 0 where there is none; the place of
    every choice among all experts' [batch, tokens, k], of input's type). Called as `TopKRouter()(input, capacity,
    expert_num, drop_type)`, where input [batch, tokens, k], Int32 or Int64, names the experts that a token chose.

    A choice below 0 is none. Place n, counted from 1, of an expert is expert * (capacity + 1) + n, and n is 0 for a
    choice that found no room.
    With drop_type 0 all choices of a token come before those of the next one, with 1 the first choices of all tokens
    before the second ones.
    """

    capacity: int = 1
    expert_num: int = 1
    drop_type: int = 0
    bprop = NotDifferentiable("its results are places")
    samples = (
        sample((2, 6, 2), dtypes=("Int32",), low=0, high=4, capacity=2, expert_num=4, gradient=False),
        sample((2, 4, 3), dtypes=("Int64",), low=0, high=2, capacity=3, expert_num=2, drop_type=1, gradient=False),
    )

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("capacity", "expert_num", "drop_type"), optional=1)
        sizes = {name: size_of(self.name, name, found[name]) for name in ("capacity", "expert_num")}
        drop_type = int_of(self.name, "drop_type", found.get("drop_type", 0))
        return replace(self, **sizes, drop_type=drop_type), tensors

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {0: self.expert_num}

    def rule(self, *types: TensorType) -> str:
        if len(types) != 1:
            raise MspcError(f"{self.name} takes 1 tensor, not {len(types)}", kind=TypeError)
        return self._ruled(types[0], "b s! k!")

    def _ruled(self, input: TensorType, ins: str) -> str:
        """The rule of these inputs. Raises MspcError where attributes or operands do not fit."""
        require_integer(self.name, 0, input)
        if len(input.shape) != 3:
            raise MspcError(f"{self.name}: input has shape {input.shape}, not [batch, tokens, choices]")
        for name in ("capacity", "expert_num"):
            if getattr(self, name) < 1:
                raise MspcError(f"{self.name}: {name} is {getattr(self, name)}, not a positive number")
        if self.drop_type not in (0, 1):
            raise MspcError(f"{self.name}: drop_type must be 0 or 1, not {self.drop_type}")
        return f"{ins} -> b e={self.expert_num}! c={self.capacity}!, b s! k!"

    def infer(self, *types: Any) -> Type:
        shapes = self.parsed_rule(*types).output_shapes()
        return TupleType(tuple(TensorType(types[0].dtype, shape) for shape in shapes))

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        tables, places = out
        return route_tokens(device, inputs[0], tables, places, self.drop_type == 0)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self._routed(be, inputs[0], None)

    def _routed(self, be: ArrayBackend, experts: Any, allowed: Any) -> Any:
        """Both tables; allowed: which choices count, None for all."""
        xp = be.xp
        batch, tokens, k = experts.shape
        if xp.__name__ == "numpy" and experts.max(initial=-1) >= self.expert_num:
            raise IndexError(f"{self.name}: expert {experts.max()} is chosen, there are {self.expert_num}")
        wanted = xp.ones(experts.shape, bool) if allowed is None else allowed
        wanted = wanted & (experts >= 0) & (experts < self.expert_num)
        order = (0, 1, 2) if self.drop_type == 0 else (0, 2, 1)
        turns = experts.transpose(order).reshape(batch, tokens * k)
        mine = wanted.transpose(order).reshape(batch, tokens * k)
        token = xp.broadcast_to(xp.arange(tokens)[None, :, None], experts.shape).transpose(order).reshape(turns.shape)
        asks = (turns[:, :, None] == xp.arange(self.expert_num)) & mine[:, :, None]
        number = xp.where(asks, xp.cumsum(asks, axis=1), 0).sum(-1)  # among those that ask the same expert, from 1
        number = xp.where(number <= self.capacity, number, 0)
        places = turns * (self.capacity + 1) + number
        of_experts = xp.zeros((batch, self.expert_num, self.capacity), experts.dtype)
        row, at = xp.nonzero(number)
        of_experts[row, turns[row, at], number[row, at] - 1] = token[row, at] + 1
        shape = (batch, tokens, k) if self.drop_type == 0 else (batch, k, tokens)
        return of_experts, places.reshape(shape).transpose(order).astype(experts.dtype)


class TopPRouter(TopKRouter):
    """TopKRouter, of whose choices those are left out with which the weights of a token, router_prob in the shape of
    input, would add up to threshold or more. Called as `TopPRouter()(input, capacity, expert_num, drop_type, threshold,
    router_prob)`. A strategy has an entry for every argument, that of a number is (1,)."""

    waits = True
    capacity: int = 1
    expert_num: int = 1
    drop_type: int = 0
    threshold: float = 0.0
    samples = (
        sample((2, 6, 2), (2, 6, 2), dtypes=("Int32", "Float32"), low=0, high=4, capacity=2, expert_num=4,
               threshold=3.0, gradient=False),
    )  # fmt: skip

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        if len(args) != 6:
            names = "input, capacity, expert_num, drop_type, threshold, router_prob"
            raise MspcError(f"{self.name} takes 6 arguments ({names}), not {len(args)}", kind=TypeError)
        op, tensors = super().call(*args[:4])
        settings: dict[str, Any] = {"threshold": float(number_of(self.name, "threshold", args[4]))}
        return replace(op, **settings), (*tensors, args[5])

    def strategy_dims(self, rule: Rule) -> tuple[tuple[tuple[int, ...], ...], ...]:
        return (rule.inputs[0], *[((),)] * 4, rule.inputs[1])

    def layout_dims(self, rule: Rule) -> tuple[tuple[tuple[int, ...], ...], ...]:
        return rule.inputs

    def rule(self, *types: TensorType) -> str:
        if len(types) != 2:
            raise MspcError(f"{self.name} takes 2 tensors, not {len(types)}", kind=TypeError)
        input, router_prob = types
        if router_prob.shape != input.shape or router_prob.dtype != FLOAT32:
            what = f"{router_prob.dtype} {router_prob.shape}"
            raise MspcError(f"{self.name}: router_prob is {what}, not Float32 of input's shape {input.shape}")
        return self._ruled(input, "b s! k!, b s! k!")

    launch = Op.launch

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        experts, weights = inputs
        return self._routed(be, experts, be.xp.cumsum(weights, axis=-1) < be.xp.float32(self.threshold))
