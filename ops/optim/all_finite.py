"""AllFinite tells whether anything has overflowed: it gives one truth about many tensors, for the scaling of a loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import BOOL, DType, TensorType, Type, dtype_of
from mspc.ops.bases import require_float
from mspc.ops.cpu.blocks import BLOCK
from mspc.ops.device import Array, Device, Launch, c_type
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, sample
from mspc.ops.operator_arguments import sequence_of
from mspc.sharding.rules import factor_names

AT_ONCE = 64
"""Tensors that one CUDA kernel looks at."""


class AllFinite(Op):
    """True where no element of any operand is an infinity or not a number, a scalar. Called as `AllFinite()((a, b))`.

    Every rank looks at the slices that it holds, however each operand is sharded; one truth per rank is then combined.
    """

    reduction = "all"
    operandwise = True
    joins = "all"
    bprop = NotDifferentiable("its result is Bool")
    samples = (
        sample((8, 16), gradient=False),
        sample((8, 16), (), (4,), gradient=False),
    )

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        return self, sequence_of(self.name, args)

    def rule(self, *types: TensorType) -> str:
        names = iter(factor_names(sum(t.rank for t in types)))
        return f"{', '.join(' '.join(next(names) for _ in t.shape) for t in types)} ->"

    def infer(self, *types: Any) -> Type:
        if not types:
            raise MspcError(f"{self.name} needs at least one tensor")
        inferred = super().infer(*types)
        require_float(self.name, *types)
        return inferred

    def result_dtype(self, *types: TensorType) -> DType:
        return BOOL

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp = be.xp
        if xp is np:
            return np.asarray(all(map(_finite, inputs)))
        found = xp.isfinite(inputs[0]).all()
        for x in inputs[1:]:
            found = xp.logical_and(found, xp.isfinite(x).all())
        return found

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        parts = [inputs[start : start + AT_ONCE] for start in range(0, len(inputs), AT_ONCE)]
        clear = device.kernel('extern "C" __global__ void set_true(bool* out) { *out = true; }', "set_true")
        calls: list[tuple[Any, int, list[Any]]] = []
        for part in parts:
            kernel = device.kernel(_source([c_type(dtype_of(x.dtype)) for x in part]), "all_finite")
            blocks = min(-(-max(int(x.size) for x in part) // 256), device.multiprocessors * 8) or 1
            sizes = [np.int64(x.size) for x in part]
            calls.append((kernel, blocks, [*part, *sizes, out]))

        def launch() -> None:
            clear(1, 1, [out])
            for kernel, blocks, arguments in calls:
                kernel(blocks, 256, arguments)

        return launch


def _finite(x: Any) -> bool:
    """Block by block, so that the truths of one block stay in the cache and the first wrong one ends the search."""
    flat = np.asarray(x).reshape(-1)
    return all(bool(np.isfinite(flat[start : start + BLOCK]).all()) for start in range(0, flat.size, BLOCK))


def _source(kinds: Sequence[str]) -> str:
    """A kernel over tensors of these C++ types; x - x is 0 for finite numbers alone."""
    places = range(len(kinds))
    tensors = ", ".join(f"const {kind}* __restrict__ x{i}" for i, kind in enumerate(kinds))
    sizes = ", ".join(f"long long n{i}" for i in places)
    loops = "\n".join(
        f"    for (long long i = first; i < n{i}; i += step) {{ auto v = wide(x{i}[i]); bad |= !(v - v == 0); }}"
        for i in places
    )
    return f"""
extern "C" __global__ void all_finite({tensors}, {sizes}, bool* out) {{
    long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x, step = (long long)gridDim.x * blockDim.x;
    bool bad = false;
{loops}
    if (bad) *out = false;
}}
"""
