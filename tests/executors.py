"""Executors for tests, in one import: of one rank, of several in this process and of GPUs, with passes and memory."""

from mspc.ops.collective.one_rank import OneRank
from mspc.passes.autodiff.grad import Grad
from mspc.passes.base import parse_passes, run_passes
from mspc.passes.cleanup.simplify import Simplify
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.local import LocalComm, World
from mspc.runtime.executor import Executor
from mspc.runtime.gpu.executor import GpuExecutor
from mspc.runtime.memory_plan import plan_memory

__all__ = [
    "Executor", "GpuExecutor", "Grad", "LocalComm", "NumPyBackend", "OneRank", "Simplify", "World", "parse_passes",
    "plan_memory", "run_passes",
]  # fmt: skip
