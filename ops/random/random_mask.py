"""These operators are MindSpore's older dropout in two steps, and random numbers; they are the same on any number of
ranks, see dropout.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import BOOL, FLOAT32, INT32, DType, TensorType, TupleType
from mspc.ops.bases import require_float
from mspc.ops.cuda.elementwise import launch_elementwise
from mspc.ops.cuda.move import put_values
from mspc.ops.cuda.random import RANDOM
from mspc.ops.device import Array, Device, Launch
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, RankPlacement, sample
from mspc.ops.operator_arguments import shape_of, split_call
from mspc.ops.random.row_offsets import DrawnByPlace, place_of_rows
from mspc.ops.random.words import device_key, device_word, key_of, number_of_run, random_words
from mspc.ops.tensor.creation import shape_rule
from mspc.sharding.factors import Rule
from mspc.sharding.rules import same_rule

Gradients = Sequence[Value | None]
_RANDOM = NotDifferentiable("its result is drawn, not computed")


class Drawn(DrawnByPlace, abstract=True):
    """An operator that draws random numbers.

    shape: of the global result. begin, local: where this rank's slice begins and its sizes, () for all of it; where
    every rank has rows of its own, shape is a rank's own until it is known which.

    By position a user gives the seeds.
    """

    shape: tuple[int, ...] = field(default=(), kw_only=True)
    begin: tuple[int, ...] = field(default=(), kw_only=True)
    local: tuple[int, ...] = field(default=(), kw_only=True)
    follows_neighbours = True
    omitted = ("begin", "local", "rows")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of the result."""
        local = self.local or self.shape
        if not (self.rows and self.local):
            return local
        dimension = self.rows[0]  # two dimensions of the draws are one of the result
        return (*local[:dimension], local[dimension] * local[dimension + 1], *local[dimension + 2 :])

    def words(self, be: ArrayBackend, *keys: int) -> Any:
        """64 random bits per element of this rank's slice. keys: seeds, and what tells draws of one step apart."""
        begin = self.begin or (0,) * len(self.shape)
        return random_words(be.xp, key_of(*keys), self.shape, begin, self.local or self.shape).reshape(self.sizes)

    def localize(self, placement: RankPlacement) -> Op:
        if self.rows and not self.local:
            ranks = placement.out_layouts[0].ranks
            shape, begin, local = place_of_rows(self.shape, self.rows, placement.rank, ranks)
            rows = self.rows if len(local) > len(self.shape) else ()
            return replace(self, shape=shape, begin=begin, local=local, rows=rows)
        here = placement.out_layouts[0].slices_for(placement.rank, self.shape)
        begin, local = tuple(s.start for s in here), tuple(s.stop - s.start for s in here)
        return replace(self, begin=begin, local=local)

    def filling(self, device: Device, text: str, seeds: Sequence[int], out: Array, *operands: tuple[str, Array]) -> (
        Launch | None
    ):  # fmt: skip
        """Launch that fills `out`; `text` is the C++ of an element from `word`, its random bits."""
        word = device_word(self.shape, self.begin or (0,) * len(self.shape), self.local or self.shape)
        each = f"[&] {{ const u64 word = {word}; return {text}; }}()"
        arrays = [("step", device.step), *operands]
        return put_values(device, "random", out, each, arrays, device_key(*seeds), RANDOM)


class DropoutGenMask(Drawn):
    """A mask that is true with probability keep_prob. Called as `DropoutGenMask()(shape, keep_prob)`.

    A Bool per element; MindSpore packs the bits of 8 into one.
    """

    packs = 8
    Seed0: int = 0
    Seed1: int = 0
    seeds = ("Seed0", "Seed1")
    bprop = _RANDOM
    samples = (
        sample((), low=0.25, high=0.75, shape=(8, 16), gradient=False),
        sample((), low=0.25, high=0.75, shape=(4, 2, 8), Seed0=3, gradient=False),
    )

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        if len(args) != 2:
            raise MspcError(f"DropoutGenMask takes 2 arguments (shape, keep_prob), not {len(args)}")
        return replace(self, shape=shape_of(self.name, "shape", args[0])), (args[1],)

    def strategy_dims(self, rule: Rule) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """MindSpore's strategy shards the result."""
        return rule.outputs

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_float(self.name, *types)
        return inferred

    def result_dtype(self, *types: TensorType) -> DType:
        return BOOL

    def rule(self, keep_prob: TensorType) -> str:
        if keep_prob.shape:
            raise MspcError(f"DropoutGenMask: keep_prob has shape {keep_prob.shape}, not that of a scalar")
        return shape_rule(self.sizes)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        words = self.words(be, self.Seed0, self.Seed1, number_of_run(be))
        return words < (inputs[0].astype(be.xp.float64) * 2.0**64)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        text = "(double)word < (double)wide(*keep) * 18446744073709551616.0"
        return self.filling(device, text, (self.Seed0, self.Seed1), out, ("keep", inputs[0]))


class DropoutDoMask(Op):
    """x / keep_prob where the mask is true, 0 elsewhere. Called as `DropoutDoMask()(x, mask, keep_prob)`."""

    linear_in = (0,)
    cuda = "{0} * T({1}) / T({2})"
    samples = (
        sample((8, 16), (8, 16), (), dtypes=("Float64", "Bool", "Float64"), low=0.25, high=0.75, gradient=False),
    )

    def strategy_dims(self, rule: Rule) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """MindSpore's strategy speaks of x alone."""
        return (rule.inputs[0],)

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_float(self.name, types[0], types[2])
        if types[1].dtype != BOOL:
            raise MspcError(
                f"DropoutDoMask: input 1 is {types[1].dtype}, not the mask that DropoutGenMask makes", kind=TypeError
            )
        return inferred

    def rule(self, x: TensorType, mask: TensorType, keep_prob: TensorType) -> str:
        if mask.shape != x.shape or keep_prob.shape:
            raise MspcError(
                f"DropoutDoMask takes x, a mask of its shape and a scalar, not {x.shape}, {mask.shape} and "
                f"{keep_prob.shape}"
            )
        both, _, out = same_rule(x.shape, 2).partition("->")
        return f"{both.rstrip()},  ->{out}"

    def bprop(self, b: Builder, x: Value, mask: Value, keep_prob: Value, out: Value, dout: Value) -> Gradients:
        return b.emit(DropoutDoMask(), dout, mask, keep_prob), None, None

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        x, mask, keep_prob = inputs
        return (x * mask / keep_prob).astype(x.dtype)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        return launch_elementwise(device, self, inputs, out)


class UniformReal(Drawn):
    """Float32 numbers drawn evenly from [0, 1). Called as `UniformReal(seed, seed2)(shape)`."""

    seed: int = 0
    seed2: int = 0
    seeds = ("seed", "seed2")
    bprop = _RANDOM
    samples = (sample(shape=(8, 16), seed=1, gradient=False), sample(shape=(16,), gradient=False))

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 0, ("shape",))
        return replace(self, shape=shape_of(self.name, "shape", found["shape"])), tensors

    def strategy_dims(self, rule: Rule) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """MindSpore's strategy shards the result."""
        return rule.outputs

    def result_dtype(self, *types: TensorType) -> DType:
        return FLOAT32

    def rule(self) -> str:
        return shape_rule(self.sizes)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp = be.xp
        words = self.words(be, self.seed, self.seed2, number_of_run(be))
        return (words >> xp.uint64(40)).astype(xp.float32) * xp.float32(2.0**-24)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        text = "(float)(word >> 40) * 5.9604644775390625e-08f"
        return self.filling(device, text, (self.seed, self.seed2), out)


class RandomChoiceWithMask(Op):
    """(places [count, dimensions] of elements of x that are true, drawn evenly and each at most once, Int32; which of
    them are there: where fewer than `count` are true the rest are zeros). Every rank needs all of x."""

    count: int = 256
    seed: int = 0
    seed2: int = 0
    seeds = ("seed", "seed2")
    bprop = _RANDOM
    samples = (
        sample((4, 8), dtypes=("Bool",), count=6, seed=3, gradient=False),
        sample((4,), dtypes=("Bool",), count=9, gradient=False),
    )

    def rule(self, x: TensorType) -> str:
        if x.dtype != BOOL or not x.shape:
            raise MspcError(f"{self.name} takes a Bool tensor of at least one dimension, not {x}", kind=TypeError)
        if self.count < 1:
            raise MspcError(f"{self.name}: count is {self.count}, not a positive number")
        held = " ".join(f"x{i}!" for i in range(len(x.shape)))
        return f"{held} -> c={self.count}! r={len(x.shape)}!, c!"

    def infer(self, *types: Any) -> Any:
        places, there = self.parsed_rule(*types).output_shapes()
        return TupleType((TensorType(INT32, places), TensorType(BOOL, there)))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x,) = be.xp, inputs
        key = key_of(self.seed, self.seed2, number_of_run(be))
        (true,) = xp.nonzero(x.reshape(-1))
        words = random_words(xp, key, (x.size,), (0,), (x.size,))
        chosen = true[xp.argsort(words[true], kind="stable")][: self.count]
        places = xp.zeros((self.count, x.ndim), xp.int32)
        places[: chosen.size] = xp.stack(xp.unravel_index(chosen, x.shape), axis=-1)
        return places, xp.arange(self.count) < chosen.size
