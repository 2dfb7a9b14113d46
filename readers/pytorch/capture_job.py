"""Runs a script of PyTorch as every rank of a job that has no other processes, for `mspc capture`."""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import itertools
import os
import runpy
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial, partialmethod
from pathlib import Path
from typing import Any

import torch
from torch._ops import DispatchKey, HigherOrderOperator
from torch.nn.attention import flex_attention
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _pop_mode_temporarily

from mspc import capture
from mspc.capture import DEPENDS, FOLDER, CaptureError, is_wrapper
from mspc.readers.pytorch.captured_kinds import RANKS, content_of, find_kinds, write_kinds
from mspc.readers.pytorch.placed import axes_in, mesh_with

_IN_PLACE = frozenset(
    getattr(getattr(torch.ops.aten, name), overload)
    for name in ("add_", "sub_", "mul_", "div_", "lerp_", "addcmul_", "addcdiv_", "copy_", "fill_", "zero_", "normal_",
                 "uniform_")
    for overload in getattr(torch.ops.aten, name).overloads()
    if overload != "out"
)  # fmt: skip
"""Operators whose result is their first argument, in its shape."""


class _FakeFloats(TorchDispatchMode):
    """Makes floating-point tensors without memory, so that networks of any size can be captured. Integers are real:
    scripts and meshes of ranks read them."""

    def __init__(self) -> None:
        from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

        super().__init__()
        self._fake, self._mode = FakeTensor, FakeTensorMode(allow_non_fake_inputs=True)
        self._forms = dict[Any, Any]()  # of results, by the operator and the forms of its arguments

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(map(is_wrapper, types)):
            return NotImplemented
        if function is torch.ops.prim.device.default and isinstance(args[0], self._fake):
            return args[0].fake_device
        if self._is_fake(function, args, kwargs):
            if function in _IN_PLACE:
                return args[0]  # its shape stays, and there is nothing to compute
            if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None:
                return self._result(function, types, args, kwargs)
            with self._mode:
                return function(*args, **kwargs)
        return function(*args, **kwargs)

    def _result(self, function: Any, types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of an operator on tensors without memory. Arguments of forms that it had before give a
        result of the form that it had, without the computation of shapes, which takes most of the time of a capture."""
        inputs, key = list[torch.Tensor](), None
        with contextlib.suppress(TypeError):
            if _is_shaped_by_arguments(function):
                parts = self._form([*args, *kwargs, *kwargs.values()], inputs)
                key = function, torch.get_default_dtype(), parts
                if (known := self._forms.get(key)) is not None:
                    kind, forms = known
                    made = [self._made(inputs, *form) for form in forms]
                    return kind(made) if kind else made[0]
        result = self._mode.dispatch(function, types, args, kwargs)
        kind = type(result) if type(result) in (tuple, list) else None
        forms = [self._form_of(each, inputs) for each in (result if kind else [result])] if key else [None]
        if None not in forms:
            self._forms[key] = kind, forms
        return result

    def _form(self, values: Sequence[Any], inputs: list[torch.Tensor]) -> tuple[Any, ...]:
        """Return values with the forms of tensors, which are added to `inputs`. Raise TypeError for known values."""
        found: list[Any] = []
        for value in values:
            if isinstance(value, torch.Tensor):
                fake = isinstance(value, self._fake)
                if value.layout is not torch.strided or (fake and value.constant is not None):
                    raise TypeError
                inputs.append(value)
                device = value.fake_device if fake else value.device
                found.append((value.dtype, value.shape, value.stride(), value.storage_offset(), device))
            else:
                nested = isinstance(value, list | tuple)
                found.append((type(value), self._form(value, inputs) if nested else value))
        return tuple(found)

    def _form_of(self, value: Any, inputs: Sequence[torch.Tensor]) -> tuple[Any, ...] | None:
        """Return the number of the input in whose memory a result is, or None, and the result's form; None if it has
        memory in another way."""
        if not isinstance(value, self._fake) or value.constant is not None or value.layout is not torch.strided:
            return None
        memory = value.untyped_storage()
        shared = [at for at, each in enumerate(inputs) if each.untyped_storage()._cdata == memory._cdata]
        size = value.numel() * value.itemsize
        if any(value is each for each in inputs) or (not shared and memory.nbytes() != size):
            return None
        where = value.storage_offset(), value.shape, value.stride()
        return next(iter(shared), None), value.dtype, where, value.fake_device, {**vars(value)}

    def _made(self, inputs: Sequence[torch.Tensor], source: int | None, dtype: torch.dtype, where: Any,
              device: torch.device, state: Mapping[str, Any]) -> torch.Tensor:  # fmt: skip
        made = torch.empty_strided(*where[1:], dtype=dtype, device="meta")
        if source is not None:
            made.set_(inputs[source].untyped_storage(), *where)
        # The constructor takes longer than the rest of an operator.
        keys = {"dispatch_device": True, "device_for_backend_keys": device}
        fake = torch.Tensor._make_subclass(self._fake, made, False, **keys)
        torch._C._set_throw_on_mutable_data_ptr(fake)
        vars(fake).update(state)
        return fake

    def _is_fake(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        has_real = False
        for value in (*args, *kwargs.values()):
            for each in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(each, self._fake):
                    return True
                has_real |= isinstance(each, (torch.Tensor, list))
        made = not has_real and any(each.name == "dtype" for each in function._schema.arguments)
        return made and _makes_floats(function, args, kwargs)


@cache
def _is_shaped_by_arguments(function: Any) -> bool:
    """Return whether the forms of an operator's results follow from those of its arguments, and it changes none."""
    by_data = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & {*function.tags}
    return function.namespace == "aten" and not function._schema.is_mutable and not by_data


def _makes_floats(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    dtype = kwargs.get("dtype")
    if dtype is None:
        counts = function._schema.name == "aten::arange" and all(isinstance(each, int) for each in args)
        return not counts
    return dtype.is_floating_point or dtype.is_complex


class _Objects:
    """Objects that ranks send to each other, in files. Stages of a pipeline tell each other the shapes of their results
    so. A rank stops after each, and if one is not there, until `_Processes` lets it go on."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._counts: Counter[tuple[int, int]] = Counter()

    def _next(self, source: int, target: int) -> Path:
        self._counts[source, target] += 1
        return self._folder / f"object-{source}-{target}-{self._counts[source, target]}"

    def send(self, objects: list[Any], dst: int | None = None, group: Any = None, *_: Any, **named: Any) -> None:
        path = self._next(self._rank, _peer(dst, group, named.get("group_dst")))
        torch.save(objects, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)
        self._stop("")

    def receive(self, objects: list[Any], src: int | None = None, group: Any = None, *_: Any, **named: Any) -> int:
        source = _peer(src, group, named.get("group_src"))
        path = self._next(source, self._rank)
        while not path.exists():
            self._stop(path.name)
        objects[:] = torch.load(path, weights_only=False)
        return source

    def _stop(self, name: str) -> None:
        (self._folder / f"object-needed-{self._rank}").write_text(name)
        os.kill(os.getpid(), signal.SIGSTOP)


def _peer(rank: int | None, group: Any, place: int | None) -> int:
    return rank if place is None else torch.distributed.get_global_rank(group, place)


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
        objects = _Objects(Path(os.environ[FOLDER]), rank)
        distributed.send_object_list, distributed.recv_object_list = objects.send, objects.receive
    torch.compiler.is_compiling = _is_compiling
    flex_attention._validate_device = lambda *_: None  # its plain operators have gradients on any device
    register_optimizer_step_pre_hook(_make_capturable)
    if with_values:
        importlib.import_module("torch.distributed.tensor.placement_types").mesh_scatter = _keep_own
    if not with_values or ranks > 1:  # collectives without other ranks would give the states no values
        capture.step = partial(_step_with_states, capture.step)
    try:
        with contextlib.nullcontext() if with_values else _FakeFloats():
            runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        if ended.code is None and os.path.isfile(os.path.join(os.environ[FOLDER], f"rank_{rank}.step")):
            return
        raise
    raise CaptureError(f"{script} ended without a call of mspc.capture.step")


def _is_compiling() -> bool:
    """Replace torch.compiler.is_compiling. TorchScript reads its text, so that it is no lambda."""
    return True


def _unrecorded(schedule: Any, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Call a method that is no part of a step, as the one that tells stages the shapes of their results."""
    recorded = isinstance(_get_current_dispatch_mode(), capture.Recorder)
    with _pop_mode_temporarily() if recorded else contextlib.nullcontext():
        return function(schedule, *args, **named)


def _keep_own(output: torch.Tensor, slices: Sequence[torch.Tensor], mesh: Any, mesh_dim: int = 0, **_: Any) -> None:
    """Take the own slice of a tensor that the first rank scatters: every rank has made the same one."""
    output.copy_(slices[mesh.get_local_rank(mesh_dim)])


def _make_capturable(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Let the number of the step be a tensor, not a number of the program."""
    for group in optimizer.param_groups:
        group |= {"capturable": True} if "capturable" in group else {}


def _step_with_states(
    step: Any, model: Any, inputs: Any, loss: Any = None, optimizer: torch.optim.Optimizer | None = None,
    run: Any = None,
) -> Any:  # fmt: skip
    """Make the states of the optimizer by a step with gradients of 0, faster than a step of the model, once FSDP has
    padded uneven slices, which it does in the first forward pass."""
    models = model if isinstance(model, list | tuple) else (model,)
    for module in itertools.chain(*(each.modules() for each in models)):
        if isinstance(module, importlib.import_module("torch.distributed.fsdp").FSDPModule):
            module._get_fsdp_state()._lazy_init()
    if optimizer is not None and not optimizer.state:
        for parameter in itertools.chain(*(group["params"] for group in optimizer.param_groups)):
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        optimizer.step()
        optimizer.zero_grad()
    return step(model, inputs, loss, optimizer, run)


def _own_frames(error: BaseException) -> str:
    """Return the frames of the script and its modules, as Python prints them."""
    outside = capture.OUTSIDE
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(outside)]
    return "".join(traceback.format_list(frames)).rstrip()


def _with_plain_operators(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    """Return a mode's function that runs operators that take functions, such as `flex_attention`, by their definition
    in plain operators, under the mode."""

    def dispatched(mode: TorchDispatchMode, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not isinstance(function, HigherOrderOperator):
            return dispatch(mode, function, types, args, kwargs)
        if (kernel := function.py_kernels.get(DispatchKey.CompositeExplicitAutograd)) is None:
            raise CaptureError(f"{function} has no definition in plain operators")
        with mode:
            return kernel(*args, **(kwargs or {}))

    return dispatched


def main(arguments: Sequence[str]) -> int:
    """Run `SCRIPT RANKS WITH_VALUES EVERY ARGUMENTS...` for one rank of each kind, or for every rank, in processes that
    share the import of PyTorch. Return the exit status."""
    script, count, with_values, every, *rest = arguments
    ranks, folder = int(count), Path(os.environ[FOLDER])
    for module in ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel"):
        importlib.import_module(module)  # all processes have it then
    schedules = importlib.import_module("torch.distributed.pipelining.schedules")._PipelineSchedule
    schedules._initialize_pp_stages = partialmethod(_unrecorded, schedules._initialize_pp_stages)
    torch._dynamo.config.optimize_ddp = "python_reducer"  # the other one is in C++ and needs other processes
    torch.compiler.set_stance("force_eager")
    warnings.filterwarnings("ignore", "Using `torch.compile")
    for mode in (capture.Recorder, _FakeFloats):  # without the guard against compilation, which takes time at each call
        mode.supports_higher_order_operators = True
        mode.__torch_dispatch__ = _with_plain_operators(inspect.unwrap(mode.__torch_dispatch__))
    capture.OUTSIDE += (os.path.dirname(__file__), runpy.__file__, contextlib.__file__)

    def run(rank: int) -> None:
        _run_rank(script, rest, rank, ranks, with_values == "1")

    gc.collect()
    gc.freeze()  # so that the processes keep on sharing the memory of what was imported
    processes = _Processes(run, folder)

    @cache
    def content(rank: int) -> Any:
        return content_of(folder / f"rank_{rank}.step")

    def trace(wanted: Sequence[int]) -> list[Any]:
        processes.run_all([r for r in dict.fromkeys(wanted) if not (folder / f"rank_{r}.step").exists()])
        return [content(rank) for rank in wanted]

    try:
        first = trace([0])[0]
        mesh = (ranks,)
        with contextlib.suppress(ValueError):
            groups = [group["ranks"] for group in first["groups"].values()]
            mesh = mesh_with(axes_in([each.get("mesh") for each in first["inputs"]], groups), ranks)
        if every == "1":
            processes.run_all(range(1, ranks))
        elif ranks > 1:
            write_kinds(folder / RANKS, find_kinds(trace, mesh))
    except ChildProcessError:
        return 2
    finally:
        processes.close()
    for path in folder.glob("object-*"):
        path.unlink()
    return 0


class _Processes:
    """Runs a function for ranks, in as many processes at a time as there are processors. A rank stops when it waits for
    an object of another one, and when it has sent one: it goes on if its file is wanted or its next object."""

    def __init__(self, run: Callable[[int], None], folder: Path) -> None:
        self._run, self._folder = run, folder
        self._stopped = dict[int, tuple[int, str]]()  # by rank: process, file of the object that it waits for, or ""
        self._ended = set[int]()

    def run_all(self, wanted: Sequence[int]) -> None:
        """Call the function for each rank. Raise ChildProcessError once it failed for a rank, after its message."""
        running, failed = dict[int, int](), False
        while True:
            free = 0 if failed else len(os.sched_getaffinity(0)) - len(running)
            for rank in self._ready(wanted, running.values())[:free]:
                sys.stdout.flush()
                child, _ = self._stopped.pop(rank, (0, ""))
                if child:
                    os.kill(child, signal.SIGCONT)
                elif (child := os.fork()) == 0:
                    os._exit(_status(rank, self._run))
                running[child] = rank
            if not running:
                break
            child, status = os.waitpid(-1, os.WUNTRACED)
            rank = running.pop(child, -1)
            if rank < 0:  # a stopped process that the system let go on, as it does once the terminal is gone
                rank = next(each for each, (process, _) in self._stopped.items() if process == child)
                del self._stopped[rank]
            if os.WIFSTOPPED(status):
                self._stopped[rank] = child, (self._folder / f"object-needed-{rank}").read_text()
            else:
                self._ended.add(rank)
                failed |= status != 0
        missing = [rank for rank in wanted if rank not in self._ended]
        for rank in missing if not failed else ():
            source = self._stopped[rank][1].split("-")[1]
            print(f"error: rank {rank}: waits for an object that rank {source} does not send", file=sys.stderr)
        if failed or missing:
            raise ChildProcessError

    def _ready(self, wanted: Sequence[int], running: Collection[int]) -> list[int]:
        """Return the ranks that can go on, of those that are wanted and those on whose objects they wait."""
        needed, ready = list(wanted), list[int]()
        for rank in needed:
            _, name = self._stopped.get(rank, (0, ""))
            if name and not (self._folder / name).exists():
                source = int(name.split("-")[1])
                needed += [source] if source not in needed else []
            elif rank not in self._ended and rank not in running:
                ready.append(rank)
        return ready

    def close(self) -> None:
        for child, _ in self._stopped.values():
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _status(rank: int, run: Callable[[int], None]) -> int:
    """Return 0 if a function ends for a rank, and 2 with a message if it fails."""
    try:
        run(rank)
    except BaseException as error:
        kind, said = type(error).__name__, str(error)
        if kind in ("DataDependentOutputException", "DynamicOutputShapeException"):  # of a tensor without memory
            said = f"{DEPENDS}: {said}"
        elif not isinstance(error, CaptureError):
            said = f"{kind}: {said}"
        print(f"error: rank {rank}: {said}\n{_own_frames(error)}".rstrip(), file=sys.stderr)
    else:
        return 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
