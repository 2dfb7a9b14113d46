"""Write the program that PyTorch runs in one training step: every ATen operator and collective of a rank.

    import mspc.capture
    mspc.capture.step(model, (tokens, labels), optimizer=optimizer)

The step is recorded below autograd and below tensor subclasses (DTensor, FSDP): operators have local tensors, and the
backward pass, hooks, the optimizer and all collectives are in one program, a zip of `capture.json` and known tensors.
"""

from __future__ import annotations

import inspect
import itertools
import json
import linecache
import math
import os
import sys
import traceback
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type as is_wrapper
from torch.utils.weak import WeakIdKeyDictionary

VERSION = 2  # of `capture.json`
FOLDER = "MSPC_CAPTURE"  # variable with the folder of the files; `mspc capture` sets it and ends scripts after a step
DEPENDS = "a number of the program depends on data (`.item()`, or a size)"
_WRAPPERS = {"OptimizedModule": "_orig_mod", "DistributedDataParallel": "module"}
OUTSIDE = (os.path.dirname(torch.__file__), "<", __file__)  # beginnings of files that are none of the script's


class CaptureError(Exception):
    """A step that cannot be recorded, with its line."""


def _frames() -> tuple[tuple[str, int, str], ...]:
    """Return the lines of the script's stack, the innermost first, without those of PyTorch and of this file. Lines
    around the call of `step`, or of the schedule of a pipeline, are given only if there are no others."""
    lines = list[tuple[str, int]]()
    for frame, line in traceback.walk_stack(None):
        file = frame.f_code.co_filename
        if lines and (file.endswith("pipelining/schedules.py") or (file, frame.f_code.co_name) == (__file__, "step")):
            break
        if not file.startswith(OUTSIDE):
            lines.append((file, line))
    return tuple((file, line, linecache.getline(file, line).strip()) for file, line in lines[:8])


def _reduction() -> str:
    """Return `sum`, `avg`, `max`, `min`, `product`, or `sum*0.5` for a sum of operands times 0.5."""
    # It is taken from the options in the nearest frame, because dispatched calls have an object that cannot be read.
    near = (each for frame, _ in traceback.walk_stack(None) for each in frame.f_locals.values())
    value = next((o.reduceOp for o in near if "Options" in type(o).__name__ and hasattr(o, "reduceOp")), "sum")
    name = str(getattr(value, "op", value)).rpartition(".")[2].lower()
    return f"sum*{value.factor!r}" if name == "premul_sum" else name


def _state(given: Mapping[str, Any]) -> list[int]:
    """Return the seed of the generator from which an operator draws, and its offset; modulo 624 on a CPU."""
    device = next((each.device for each in pytree.tree_leaves(given) if isinstance(each, Tensor)), given.get("device"))
    own = torch.cuda.default_generators if "cuda" in str(device) else [torch.default_generator]
    state = bytes((given.get("generator") or own[getattr(device, "index", 0) or 0]).get_state().numpy())
    return [int.from_bytes(state[:8], "little"), int.from_bytes(state[8:12], "little")]


class Recorder(TorchDispatchMode):
    """Records calls of operators."""

    def __init__(self, models: Sequence[nn.Module], outside: str) -> None:
        super().__init__()
        self._outside, self._count = outside, itertools.count()
        self.nodes: list[Any] = []  # (operator, arguments, number of them by name, results, place) of every call
        self.places: dict[Any, int] = {}  # stacks of the script with paths of modules, and their numbers
        self.inputs: list[dict[str, Any]] = []
        self.values: list[Tensor] = []  # of inputs, before the step
        self.losses: list[Tensor] = []  # from which backward passes began
        self.draws: list[Sequence[int]] = []  # (number of the node, state of the generator before it) of draws
        self._sharded: set[str] = set()  # names of DTensors
        self._modules = {id(module): name for each in models for name, module in each.named_modules()}
        self.names: Any = WeakIdKeyDictionary()
        self._storages = dict[int, tuple[StorageWeakRef, str, int, int]]()  # first tensors: name, offset, size or -1
        self._scopes: list[tuple[str, str]] = []
        self._sources: dict[int, int] = {}  # places of forward operators, by the sequence number of their autograd node

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record operators, with the modules that call them, the losses, and the reductions of c10d's collectives."""

        def called(module: nn.Module, inputs: Any, *output: Any) -> None:
            if id(module) in self._modules and output:
                del self._scopes[-1:]
            elif id(module) in self._modules:
                self._scopes.append((self._modules[id(module)], type(module).__name__))

        def backward(tensors: Any, *args: Any, **named: Any) -> Any:
            self.losses += [tensors] if isinstance(tensors, Tensor) else tensors
            return own_backward(tensors, *args, **named)

        def wait(*args: Any) -> Any:
            with _disable_current_modes():  # gloo copies its buffers there
                return own_wait(*args)

        own_backward, own_wait = torch.autograd.backward, dist.Work.wait
        with (register_module_forward_pre_hook(called), register_module_forward_hook(called, always_call=True),
              patch("torch.compiler.is_compiling", lambda: True), patch("torch.autograd.backward", backward),
              patch("torch.distributed.Work.wait", wait), self):  # fmt: skip
            yield

    def declare(self, kind: str, name: str, tensor: Tensor) -> None:
        """Declare a tensor as an input of the program: a parameter, a buffer, a constant or a user's input."""
        whole, tensor = tensor, getattr(tensor, "_local_tensor", tensor)
        found = {"kind": kind, "name": name, "tensor": self._define(tensor), "shape": list(whole.shape)}
        if (spec := getattr(whole, "_spec", None)) is not None:
            found |= {"placements": list(map(str, spec.placements)), "mesh": spec.mesh.mesh.tolist()}
            self._sharded.add(found["tensor"][0])
        if kind != "user" and not tensor.is_meta and type(tensor).__name__ != "FakeTensor":
            found["value"] = len(self.values)
            self.values.append(tensor.detach().clone(memory_format=torch.contiguous_format))
        self.inputs.append(found)

    def name_of(self, tensor: Tensor) -> str:
        """Return the name of a tensor in the graph: of a result, an input, another view of these, or a constant."""
        tensor = getattr(tensor, "_local_tensor", tensor)
        if tensor not in self.names:
            known, base, begin, size = self._storages.get(tensor.untyped_storage()._cdata, (None, "", 0, 0))
            shift, inner = tensor.storage_offset() - begin, size - tensor.numel()
            padded = base in self._sharded and not shift and inner < 0 <= size and tensor.ndim == 1
            if known is None or known.expired() or not (padded or size < 0 or 0 <= shift <= inner):
                self.declare(self._outside if tensor.ndim else "constant", f"outside_{len(self.inputs)}", tensor)
            elif padded:  # FSDP pads the last slices of a parameter with zeros
                given = {"self": {"tensor": self.name_of(tensor[:size])}, "pad": [0, -inner], "value": 0}
                self._node("aten.constant_pad_nd.default", given, 0, tensor)
            else:  # another view of a storage, as flat shards of FSDP are
                gaps = {"stride": list(tensor.stride()), "storage_offset": shift}
                gaps = gaps if not tensor.is_contiguous() or tensor.numel() != size else {}
                given = {"self": {"tensor": base}, "size": list(tensor.shape), **gaps}
                self._node(f"aten.{'as_strided' if gaps else 'view'}.default", given, 0, tensor)
        return self.names[tensor]

    def _define(self, tensor: Tensor) -> list[Any]:
        """Name a tensor and return its name, element type and shape."""
        self.names[tensor] = name = f"v{next(self._count)}"
        storage = tensor.untyped_storage()
        if (owner := self._storages.get(storage._cdata)) is None or owner[0].expired():
            elements = tensor.numel() if tensor.is_contiguous() else -1
            self._storages[storage._cdata] = StorageWeakRef(storage), name, tensor.storage_offset(), elements
        return [name, str(tensor.dtype)[6:], list(tensor.shape)]

    def _node(self, operator: str, given: Mapping[str, Any], by_name: int, result: Any) -> None:
        tensors = [each for each in pytree.tree_leaves(result) if each is None or isinstance(each, Tensor)]
        results = [each if each is None else self._define(each) for each in tensors]
        self.nodes.append([operator, given, by_name, results, self._place()])

    def _place(self) -> int:
        found = self._sources.get(node._sequence_nr()) if (node := torch._C._current_autograd_node()) else None
        if found is None:
            found = self.places.setdefault((_frames(), tuple(self._scopes)), len(self.places))
            self._sources.setdefault(torch.autograd._get_sequence_nr() - 1, found)  # that of the node of this operator
        return found

    def _argument(self, value: Any) -> Any:
        """Return an argument as JSON."""
        if isinstance(value, Tensor):
            return {"tensor": self.name_of(value)}
        if isinstance(value, (list, tuple)):
            return [self._argument(each) for each in value]
        if value is None or isinstance(value, (bool, int, str, torch.Generator)):
            return None if isinstance(value, torch.Generator) else value  # draws are mspc's own
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": str(value)}
        kind = value._type().name() if hasattr(value, "_type") else ""
        if kind == "ProcessGroup":
            return dist.ProcessGroup.unbox(value).group_name
        return _reduction() if kind == "ReduceOp" else {"torch": str(value).rpartition(".")[2]}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and record it. Subclasses of tensors are asked first: they call operators on local ones."""
        kwargs = kwargs or {}
        if any(map(is_wrapper, types)):
            return NotImplemented
        if (schema := function._schema).name.startswith(("prim::", "profiler::")):
            return function(*args, **kwargs)
        if schema.name == "aten::_local_scalar_dense":
            raise CaptureError(DEPENDS)
        given = dict(zip([each.name for each in schema.arguments], args, strict=False)) | kwargs
        named = {name: self._argument(value) for name, value in given.items()}  # before an operator overwrites them
        if torch.Tag.nondeterministic_seeded in function.tags:
            self.draws.append([len(self.nodes), *_state(given)])
        result = function(*args, **kwargs)
        self._node(f"{schema.name.replace('::', '.')}.{schema.overload_name or 'default'}", named, len(kwargs), result)
        return result


def step(model: Any, inputs: Any, loss: Callable[[Any], Tensor] | None = None, optimizer: Optimizer | None = None,
         run: Callable[[], Tensor | None] | None = None) -> Tensor | None:  # fmt: skip
    """Run one training step of a model, write its program to `capture/rank_R.step`, and return the loss.

    inputs: a tensor, a tuple of the model's arguments or a dictionary of named ones. loss: computes the loss of the
    model's result; None if the model returns it. optimizer: its step is recorded too, after one that makes its states.
    run: runs forward and backward in place of the model and the loss, as the schedule of a pipeline does, and returns
    the loss or None; `model` may be a list of stages then. Raise CaptureError if a number depends on data.
    """
    args, named = ((), inputs) if isinstance(inputs, dict) else (inputs if isinstance(inputs, tuple) else (inputs,), {})
    models = model if isinstance(model, (list, tuple)) else (model,)

    def whole(updates: Optimizer | None) -> Tensor | None:
        value = run() if run else (loss or nn.Identity())(models[0](*args, **named))
        if not run:
            value.backward()
        if updates:
            updates.step()
        return value

    fresh = None if optimizer and optimizer.state else optimizer
    if fresh or (run and FOLDER not in os.environ):  # of stages `mspc capture` records the first step
        whole(fresh)
        for each in models:
            each.zero_grad()
    outside = inspect.getclosurevars(loss)[:2] if inspect.isfunction(loss) else ()
    with _recorded(models, (args, named, *outside), optimizer) as recorder:
        value = whole(optimizer)
        recorder.losses = [] if value is None else [value]
    return value


def backend() -> Callable[..., Any]:
    """Return a backend for `torch.compile` that runs a model as it is. The second step after this call is recorded,
    from the call of the model to the end of the optimizer's step, with gradients accumulated or clipped in between."""
    stack, handles, optimizers = ExitStack(), list[Any](), list[Optimizer]()

    def called(module: nn.Module, inputs: Any) -> None:
        handles.pop().remove()
        stack.enter_context(_recorded((module,), (inputs,), optimizers[0], "user"))

    def stepped(optimizer: Optimizer, *_: Any) -> None:
        if optimizers:
            handles.pop().remove()
            stack.close()
            return
        optimizers.append(optimizer)
        torch.compiler.set_stance("force_eager")
        handles.append(register_module_forward_pre_hook(called))

    handles.append(register_optimizer_step_post_hook(stepped))
    return lambda graph, inputs: graph.forward


@contextmanager
def _recorded(models: Any, inputs: Any, optimizer: Optimizer | None, outside: str = "constant") -> Iterator[Recorder]:
    """Record a step and write the file of this rank. outside: the kind of tensors that are no parameter or input."""
    for _ in _WRAPPERS:
        models = [getattr(each, _WRAPPERS.get(type(each).__name__, ""), each) for each in models]
    parameters = [each for part in models for each in part.named_parameters()]
    named = [("parameter", *each) for each in parameters] + [("buffer", *b) for m in models for b in m.named_buffers()]
    names = {id(tensor): name for _, name, tensor in named}
    owners = (getattr(each, "state", None) for each in (getattr(optimizer, "optim", None), optimizer))
    for parameter, states in next((state for state in owners if isinstance(state, Mapping)), {}).items():
        named += [("buffer", f"{key}.{names.get(id(parameter), '')}", state) for key, state in states.items()]
    for path, tensor in pytree.tree_flatten_with_path(inputs)[0]:
        named.append(("user", "".join(pytree.keystr((key,)) for key in path[1:]).strip(".[]'\""), tensor))
    recorder = Recorder(models, outside)
    for each in named:
        if isinstance(each[2], Tensor) and each[2] not in recorder.names:
            recorder.declare(*each)
    with ExitStack() as stack:
        for group in optimizer.param_groups if optimizer else ():  # the number of the step is a tensor in the step
            stack.enter_context(patch.dict(group, {"capturable": True} if "capturable" in group else {}))
        stack.enter_context(recorder.recording())
        yield recorder
    outputs = [["loss", "", recorder.name_of(loss)] for loss in recorder.losses[:1]]
    outputs += [["gradient_to_parameter", name, recorder.name_of(grad), list(map(str, getattr(grad, "placements", ())))]
                for name, each in parameters if (grad := each.grad) is not None]  # fmt: skip
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    groups = {group.group_name: {"ranks": dist.get_process_group_ranks(group), "about": group.group_desc}
              for group in dist.distributed_c10d._world.pg_map}  # fmt: skip
    content = {"version": VERSION, "torch": torch.__version__, "script": os.path.basename(sys.argv[0]), "rank": rank,
               "ranks": ranks, "groups": groups, "inputs": recorder.inputs, "nodes": recorder.nodes,
               "places": list(recorder.places), "outputs": outputs, "draws": recorder.draws}  # fmt: skip
    path = Path(os.environ.get(FOLDER, "capture"), f"rank_{rank}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("step/capture.json", json.dumps(content), zipfile.ZIP_DEFLATED, 1)
        for number, tensor in enumerate(recorder.values):
            archive.writestr(f"step/value_{number}", tensor.cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    os.replace(path, path.with_suffix(".step"))
    if FOLDER in os.environ:
        raise SystemExit
