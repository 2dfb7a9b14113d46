"""This operator writes a tensor to a file while the network runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.ir.files.atomic_writing import make_folder, write_atomically
from mspc.ir.files.inside import inside
from mspc.ir.graph import Value
from mspc.ir.types import TensorType
from mspc.ops.op import ArrayBackend, Op, sample
from mspc.sharding.rules import factor_names

MODES = ("out", "in")


class TensorDump(Op):
    """Writes this rank's slice of x to `file` at every step, and returns x. Called as `TensorDump()(file, x)`.

    The name of the file gets element type, step and rank: "dumps/x.npy" becomes `dumps/x_float32_1_rank0.npy`; inside
    of loops behind the step the numbers of their turns, as in `x_float32_1-0-3_rank0.npy`.

    file: "" writes nothing; relative to the working folder, in a compiled program to the program's folder.
    mode: "out" or "in", as in MindSpore, which dumps before or after a change of layout; here a dump follows the layout
    of the operator that made the tensor.
    """

    mode: str = "out"
    file: str = ""
    may_alias = True
    has_side_effect = True
    follows_neighbours = True
    runs_on_host = True
    samples = (sample((8, 16)),)

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        if len(args) != 2 or not isinstance(args[0], str) or not args[0]:
            raise MspcError("TensorDump takes the name of a file and a tensor", notes=['TensorDump()("x.npy", x)'])
        if self.mode not in MODES:
            raise MspcError(f"TensorDump: mode {self.mode!r} is not one of 'out', 'in'")
        return replace(self, file=args[0]), args[1:]

    def rule(self, x: TensorType) -> str:
        names = " ".join(factor_names(len(x.shape)))
        return f"{names} -> {names}"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Sequence[Value | None]:
        return (dout,)

    def confined(self, folder: Path) -> Op:
        if not self.file:
            return self
        path = inside(folder, self.file, self.name)
        stem = path.name.removesuffix(".npy") + "_"
        with contextlib.suppress(OSError):
            for entry in os.scandir(path.parent):
                if entry.name.startswith(stem) and entry.is_symlink():
                    inside(folder, str(Path(entry.path).relative_to(folder)), self.name)
        return replace(self, file=str(path))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,) = inputs
        if not self.file:
            return x
        values = np.asarray(x)
        rank, step, turns = getattr(be.comm, "rank", 0), getattr(be, "step", 0), getattr(be, "turns", ())
        count = "-".join(map(str, (step, *turns)))
        path = Path(self.file.removesuffix(".npy") + f"_{values.dtype.name}_{count}_rank{rank}.npy")
        stored = values.astype(np.float32) if values.dtype.name == "bfloat16" else values
        try:
            make_folder(path.parent)
            write_atomically(path, lambda file: np.save(file, stored), one_of_many=step > 1 or any(turns))
        except MspcError as error:
            raise ExecutionError(f"TensorDump {error.message}") from None
        return x


class DumpGradient(Op):
    """x, whose gradient is written as TensorDump writes. Called as `DumpGradient()(file, x, mode)`."""

    file: str = ""
    mode: str = "out"
    may_alias = True
    follows_neighbours = True
    linear_in = (0,)
    samples = (sample((8, 16)),)

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        if len(args) not in (2, 3) or not isinstance(args[0], str) or not args[0]:
            raise MspcError("DumpGradient takes the name of a file, a tensor and a mode")
        mode = args[2] if len(args) == 3 else self.mode
        if mode not in MODES:
            raise MspcError(f"DumpGradient: mode {mode!r} is not one of 'out', 'in'")
        return replace(self, file=args[0], mode=mode), args[1:2]

    def rule(self, x: TensorType) -> str:
        names = " ".join(factor_names(len(x.shape)))
        return f"{names} -> {names}"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Sequence[Value | None]:
        return (b.emit(TensorDump(self.mode, self.file), dout),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return inputs[0]
