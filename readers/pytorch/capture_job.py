"""Runs a script of PyTorch as every rank of a job that has no other processes, for `mspc capture`."""

from __future__ import annotations

import contextlib
import importlib
import os
import runpy
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from mspc import capture
from mspc.capture import FOLDER, CaptureError, is_subclass_call


class _FakeFloats(TorchDispatchMode):
    """Makes floating-point tensors without memory, so that networks of any size can be captured. Integers are real:
    scripts and meshes of ranks read them."""

    def __init__(self) -> None:
        from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

        super().__init__()
        self._fake, self._mode = FakeTensor, FakeTensorMode(allow_non_fake_inputs=True)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_subclass_call(types):
            return NotImplemented
        tensors = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        made = not tensors and any(each.name == "dtype" for each in function._schema.arguments)
        if any(isinstance(each, self._fake) for each in tensors) or (made and _makes_floats(function, args, kwargs)):
            with self._mode:
                return function(*args, **kwargs)
        return function(*args, **kwargs)


def _makes_floats(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    dtype = kwargs.get("dtype")
    if dtype is None:
        counts = function._schema.name == "aten::arange" and all(isinstance(each, int) for each in args)
        return not counts
    return dtype.is_floating_point or dtype.is_complex


def _run_rank(script: str, arguments: Sequence[str], rank: int, ranks: int, with_values: bool) -> None:
    """Run a script as one rank of a job without other processes. The first captured step ends it."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks),
                   "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}  # fmt: skip
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    if ranks > 1:
        import torch.distributed as distributed
        from torch.testing._internal.distributed.fake_pg import FakeStore

        distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
        distributed.init_process_group = lambda *args, **named: None
    torch.compiler.is_compiling = lambda: True
    register_optimizer_step_pre_hook(_make_capturable)
    try:
        with contextlib.nullcontext() if with_values else _FakeFloats():
            runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        if ended.code is None and os.path.isfile(os.path.join(os.environ[FOLDER], f"rank_{rank}.step")):
            return
        raise
    raise CaptureError(f"{script} ended without a call of mspc.capture.step")


def _make_capturable(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Let the number of the step be a tensor, not a number of the program."""
    for group in optimizer.param_groups:
        group |= {"capturable": True} if "capturable" in group else {}


def _own_frames(error: BaseException) -> str:
    """Return the frames of the script and its modules, as Python prints them."""
    outside = capture.OUTSIDE
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(outside)]
    return "".join(traceback.format_list(frames)).rstrip()


def main(arguments: Sequence[str]) -> int:
    """Run `SCRIPT RANKS WITH_VALUES ARGUMENTS...` once for each rank, in processes that share the import of PyTorch.
    Return the exit status."""
    script, ranks, with_values, *rest = arguments
    capture.OUTSIDE += (__file__, runpy.__file__, contextlib.__file__)
    for module in ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel"):
        importlib.import_module(module)  # all processes have it then

    for rank in range(int(ranks)):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            status = 2
            try:
                _run_rank(script, rest, rank, int(ranks), with_values == "1")
                status = 0
            except CaptureError as error:
                print(f"error: rank {rank}: {error}\n{_own_frames(error)}".rstrip(), file=sys.stderr)
            except BaseException as error:
                print(f"error: rank {rank}: {type(error).__name__}: {error}\n{_own_frames(error)}", file=sys.stderr)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
