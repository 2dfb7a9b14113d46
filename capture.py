"""Write the program that PyTorch runs in one training step: every ATen operator and collective of a rank.

    import mspc.capture
    mspc.capture.step(model, (tokens, labels), optimizer=optimizer)

The step is recorded below autograd and below tensor subclasses (DTensor, FSDP), so that operators have local tensors,
and the backward pass, gradient clipping by hooks, the optimizer and all collectives are in one program. A file is a zip
archive of JSON in the form of `torch.export.save`, with groups, placements and versions in `extra/capture.json`.
`mspc capture` runs a script under a process group without other processes.
"""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

VERSION = 1
"""The version of `extra/capture.json`."""
FOLDER = "MSPC_CAPTURE"
"""Environment variable with the folder of the files. `mspc capture` sets it and ends scripts after the first step."""
_SKIPPED = ("profiler::", "prim::device", "aten::_assert")
"""Operators that compute nothing."""
_SAME = ("_c10d_functional::_wrap_tensor_autograd",)
"""Operators that return their operand."""
_DTYPES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float16": 6, "float32": 7, "float64": 8,
           "complex32": 9, "complex64": 10, "complex128": 11, "bool": 12, "bfloat16": 13, "uint16": 28,
           "float8_e4m3fn": 29, "float8_e5m2": 30, "uint32": 34, "uint64": 35}  # fmt: skip
_FORMATS = {"contiguous_format": 1, "channels_last": 2, "channels_last_3d": 3, "preserve_format": 4}


class CaptureError(Exception):
    """A step that cannot be recorded, with its line."""


def _dtype(dtype: torch.dtype) -> int:
    return _DTYPES[str(dtype).removeprefix("torch.")]


def _reduction(value: Any) -> str:
    """Return `sum`, `avg`, `max`, `min` or `product`; `sum*0.5` for a sum of operands times 0.5."""
    name = str(getattr(value, "op", value)).rpartition(".")[2].lower()
    return f"sum*{value.factor!r}" if name == "premul_sum" else name


def _frames() -> str:
    """Return the stack of the script as Python prints it, without frames of PyTorch and of this file."""
    library = os.path.dirname(torch.__file__)
    outside = (library, "<", __file__)
    frames = [frame for frame in traceback.extract_stack() if not frame.filename.startswith(outside)]
    return "".join(traceback.format_list(frames[-8:]))


class Recorder(TorchDispatchMode):
    """Records calls of operators as nodes of an exported program."""

    def __init__(self, modules: Mapping[int, str]) -> None:
        super().__init__()
        self.nodes: list[dict[str, Any]] = []
        self.metas: dict[str, dict[str, Any]] = {}
        self.inputs: list[tuple[str, str, str]] = []
        """(kind, name in the graph, name in the model) of every input."""
        self.groups: dict[str, list[int]] = {}
        self.values: dict[str, tuple[str, torch.Tensor]] = {}
        """Kind and value before the step of parameters, buffers and constants, by their names in the model."""
        self.reduction = "sum"
        """Reduction of the last options made for c10d: dispatched calls have it as an object that cannot be read."""
        self._names: Any = WeakIdKeyDictionary()
        self._storages: dict[int, tuple[StorageWeakRef, str, tuple[int, ...] | None, int]] = {}
        """The first tensor of each storage: its name, its sizes if its elements follow each other, its offset."""
        self._unwritten: set[int] = set()
        """Storages without known values, made before the step: buffers of FSDP, which it overwrites."""
        self._count = 0
        self._modules = modules
        self._scopes: list[str] = []
        self._sources: dict[int, tuple[str, str]] = {}
        """Stack and modules of the forward operators, by the sequence number of their autograd node."""

    # Modules are entered by global hooks, so that operators know the path of the module that called them.

    @contextmanager
    def scopes(self) -> Iterator[None]:
        """Follow calls of modules."""
        from torch.nn.modules import module as hooks

        def enter(module: torch.nn.Module, inputs: Any) -> None:
            path = self._modules.get(id(module))
            if path is not None:
                kind = type(module)
                self._scopes.append(f"{path or 'self'},{path},{kind.__module__}.{kind.__qualname__}")

        def leave(module: torch.nn.Module, inputs: Any, output: Any) -> None:
            if id(module) in self._modules and self._scopes:
                self._scopes.pop()

        handles = [hooks.register_module_forward_pre_hook(enter),
                   hooks.register_module_forward_hook(leave, always_call=True)]  # fmt: skip
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def reductions(self) -> Iterator[None]:
        """Note the reductions in options of c10d's collectives."""
        import torch.distributed.distributed_c10d as c10d

        recorder, own = self, {}

        def noting(kind: Any) -> Any:
            class NotingOptions(kind):
                def __setattr__(self, name: str, value: Any) -> None:
                    if name == "reduceOp":
                        recorder.reduction = _reduction(value)
                    super().__setattr__(name, value)

            return NotingOptions

        for name in ("AllreduceOptions", "ReduceScatterOptions", "ReduceOptions", "AllreduceCoalescedOptions"):
            own[name] = getattr(c10d, name)
            setattr(c10d, name, noting(own[name]))

        def wait(*args: Any) -> Any:
            with torch.utils._python_dispatch._disable_current_modes():
                return finish(*args)

        finish, c10d.Work.wait = c10d.Work.wait, wait  # gloo copies its buffers there
        try:
            yield
        finally:
            c10d.Work.wait = finish
            for name, kind in own.items():
                setattr(c10d, name, kind)

    def add_input(self, kind: str, name: str, tensor: torch.Tensor) -> str:
        """Declare a tensor as an input of the program and return its name in the graph."""
        known = f"{kind[0]}_{len(self.inputs)}"
        self.inputs.append((kind, known, name))
        self._define(known, tensor)
        if kind != "user" and not tensor.is_meta and type(tensor).__name__ != "FakeTensor":
            self.values[name] = kind, tensor.detach().clone(memory_format=torch.contiguous_format)
        return known

    def name_of(self, tensor: torch.Tensor) -> str:
        """Return the name of a tensor in the graph: of a result, an input, another view of these, or a constant."""
        known = self._names.get(tensor)
        if known is not None:
            return known
        owner = self._storages.get(tensor.untyped_storage()._cdata)
        if owner is not None and not owner[0].expired():
            return self._view(tensor, *owner[1:])
        if type(tensor).__name__ == "FakeTensor":
            self._unwritten.add(tensor.untyped_storage()._cdata)
        return self.add_input("constant", f"constant_{len(self.inputs)}", tensor)

    def _view(self, tensor: torch.Tensor, base: str, sizes: tuple[int, ...] | None, begin: int) -> str:
        """Add the node that views a known storage as another tensor does (as flat shards of FSDP do). sizes: of the
        base, None if its elements do not follow each other; begin: its first element."""
        given = {"self": {"as_tensor": {"name": base}}, "size": {"as_ints": list(tensor.shape)}}
        if sizes is not None and tensor.is_contiguous() and tensor.numel() == math.prod(sizes):
            return self._node("torch.ops.aten.view.default", given, tensor)
        given |= {"stride": {"as_ints": list(tensor.stride())},
                  "storage_offset": {"as_int": tensor.storage_offset() - begin}}  # fmt: skip
        return self._node("torch.ops.aten.as_strided.default", given, tensor)

    def _define(self, name: str, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        owner = self._storages.get(storage._cdata)
        if owner is None or owner[0].expired():
            sizes = tuple(tensor.shape) if tensor.is_contiguous() else None
            self._storages[storage._cdata] = StorageWeakRef(storage), name, sizes, tensor.storage_offset()
        self._names[tensor] = name
        self.metas[name] = {"dtype": _dtype(tensor.dtype), "sizes": [{"as_int": int(n)} for n in tensor.shape],
                            "requires_grad": False, "layout": 7}  # fmt: skip

    def _node(self, target: str, given: Mapping[str, Any], result: Any, keywords: Sequence[str] = ()) -> str:
        """Add a node for a call with these arguments in the form of the file. Return the name of its one result."""
        inputs = [{"name": name, "arg": value, "kind": 1 + (name in keywords)} for name, value in given.items()]
        outputs = [self._result(each) for each in (result if isinstance(result, tuple) else (result,))]
        stack, scope = self._source()
        self.nodes.append({"target": target, "inputs": inputs, "outputs": [each for each in outputs if each],
                           "metadata": {"stack_trace": stack, "nn_module_stack": scope}})  # fmt: skip
        return self._names.get(result) if isinstance(result, torch.Tensor) else ""

    def _source(self) -> tuple[str, str]:
        node = torch._C._current_autograd_node()
        if node is not None:
            return self._sources.get(node._sequence_nr(), ("", ""))
        found = _frames(), ";".join(self._scopes)
        self._sources[torch.autograd._get_sequence_nr()] = found
        return found

    def _result(self, value: Any) -> dict[str, Any] | None:
        if isinstance(value, torch.Tensor):
            self._count += 1
            self._define(f"v{self._count}", value)
            return {"as_tensor": {"name": self._names[value]}}
        if isinstance(value, (list, tuple)):
            return {"as_tensors": [each["as_tensor"] for each in map(self._result, value) if each is not None]}
        return {"as_none": True} if value is None else None

    def _argument(self, value: Any) -> dict[str, Any]:
        if isinstance(value, torch.Tensor):
            return {"as_tensor": {"name": self.name_of(value)}}
        if value is None:
            return {"as_none": True}
        for kind, tag in ((bool, "as_bool"), (int, "as_int"), (float, "as_float"), (str, "as_string")):
            if isinstance(value, kind):
                return {tag: value}
        if isinstance(value, torch.dtype):
            return {"as_scalar_type": _dtype(value)}
        if isinstance(value, torch.memory_format):
            return {"as_memory_format": _FORMATS[str(value).removeprefix("torch.")]}
        if isinstance(value, torch.layout):
            return {"as_layout": 7}
        if isinstance(value, torch.device):
            return {"as_device": {"type": value.type, "index": value.index}}
        if isinstance(value, (list, tuple)):
            return self._list(value)
        return {"as_string": self._object(value)}

    def _list(self, values: Sequence[Any]) -> dict[str, Any]:
        if any(isinstance(each, torch.Tensor) for each in values):
            if all(isinstance(each, torch.Tensor) for each in values):
                return {"as_tensors": [{"name": self.name_of(each)} for each in values]}
            return {"as_optional_tensors": [self._argument(each) for each in values]}
        for kind, tag in ((bool, "as_bools"), (int, "as_ints"), (float, "as_floats"), (str, "as_strings")):
            if all(isinstance(each, kind) for each in values):
                return {tag: list(values)}
        return {"as_floats": [float(each) for each in values]}

    def _object(self, value: Any) -> str:
        """Return the name of a process group, whose ranks are noted, or the requested reduction of c10d."""
        from torch.distributed import ProcessGroup

        kind = value._type().qualified_name() if hasattr(value, "_type") else ""
        if kind.endswith(".ProcessGroup"):
            return self._group(ProcessGroup.unbox(value).group_name)
        return self.reduction if kind.endswith(".ReduceOp") else type(value).__name__

    def _group(self, name: str) -> str:
        from torch.distributed.distributed_c10d import _resolve_process_group, get_process_group_ranks

        self.groups[name] = get_process_group_ranks(_resolve_process_group(name))
        return name

    def _check_written(self, schema: Any, given: Mapping[str, Any]) -> None:
        """Raise CaptureError if an operator reads a tensor whose values nobody knows."""
        for argument in schema.arguments:
            for tensor in pytree.tree_leaves(given.get(argument.name)):
                if not isinstance(tensor, torch.Tensor) or tensor.untyped_storage()._cdata not in self._unwritten:
                    continue
                if argument.alias_info is None:
                    raise CaptureError(f"a tensor of shape {tuple(tensor.shape)} was made before the step and is no "
                                       f"parameter, buffer or input\n{_frames()}")  # fmt: skip
                if argument.alias_info.is_write:
                    self._unwritten.discard(tensor.untyped_storage()._cdata)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and record it. Subclasses of tensors are asked first: they call operators on local ones."""
        kwargs = kwargs or {}
        if is_subclass_call(types):
            return NotImplemented
        schema = function._schema
        if schema.name.startswith(_SKIPPED):
            return function(*args, **kwargs)
        if schema.name in _SAME:
            result = function(*args, **kwargs)
            self._names[result] = self.name_of(args[0])
            return result
        if schema.name == "aten::_local_scalar_dense":
            raise CaptureError(f"a number of the program depends on data\n{_frames()}")
        names = [each.name for each in schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if "group_name" in given:
            self._group(given["group_name"])
        named = {name: self._argument(value) for name, value in given.items()}  # before an operator overwrites them
        if self._unwritten:
            self._check_written(schema, given)
        result = function(*args, **kwargs)
        target = f"torch.ops.{schema.name.replace('::', '.')}.{schema.overload_name or 'default'}"
        self._node(target, named, result, list(kwargs))
        return result


def is_subclass_call(types: Any) -> bool:
    """Return whether an operator is called with a subclass of Tensor that calls operators on local tensors."""
    plain = (torch.Tensor, torch.nn.Parameter)
    return any(
        kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl and kind.__name__ != "FakeTensor"
        for kind in types if kind not in plain
    )  # fmt: skip


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor that a rank holds of a DTensor, or the tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)


def _placement(tensor: torch.Tensor) -> dict[str, Any]:
    """Return the whole shape of a tensor, and the mesh and placements of a DTensor."""
    spec = getattr(tensor, "_spec", None)
    found: dict[str, Any] = {"shape": [int(n) for n in tensor.shape]}
    if spec is not None:
        mesh = spec.mesh
        found |= {"placements": [str(each) for each in spec.placements], "mesh": mesh.mesh.tolist(),
                  "axes": list(mesh.mesh_dim_names or ())}  # fmt: skip
    return found


def step(
    model: torch.nn.Module, inputs: Any, loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None, folder: str | Path | None = None,
) -> torch.Tensor:  # fmt: skip
    """Run one training step of a model and write its program to `rank_R.pt2`; return the loss.

    inputs: a tensor, a tuple of the model's arguments or a dictionary of named ones. loss: computes the loss of the
    model's result; None if the model returns it. optimizer: its step is part of the program; a step before makes its
    states. folder: of the files, else that of `mspc capture` or `capture`.

    Raise CaptureError if a number depends on data, or a tensor comes from outside of the step.
    """
    args, named = ((), inputs) if isinstance(inputs, dict) else (inputs if isinstance(inputs, tuple) else (inputs,), {})

    def run() -> torch.Tensor:
        found = model(*args, **named)
        value = found if loss is None else loss(found)
        value.backward()
        if optimizer is not None:
            optimizer.step()
        return value

    for group in optimizer.param_groups if optimizer is not None else ():
        group["foreach"] = group["fused"] = False
        if "capturable" in group:
            group["capturable"] = True  # the number of the step is a tensor, not a number of the program
    is_compiling, torch.compiler.is_compiling = torch.compiler.is_compiling, lambda: True
    try:
        if optimizer is not None:
            run()
            optimizer.zero_grad()
        recorder = Recorder({id(module): name for name, module in model.named_modules()})
        placements = _declare(recorder, model, args, named, optimizer)
        with recorder, recorder.scopes(), recorder.reductions():
            value = run()
    finally:
        torch.compiler.is_compiling = is_compiling
    _write(recorder, model, value, placements, Path(os.environ.get(FOLDER) or folder or "capture"))
    if FOLDER in os.environ:
        sys.stdout.flush()
        os._exit(0)
    return value


def _declare(
    recorder: Recorder, model: torch.nn.Module, args: Any, named: Any, optimizer: torch.optim.Optimizer | None
) -> dict[str, Any]:
    """Declare the inputs of the program and return their placements by name."""
    found: dict[str, Any] = {}
    names: dict[int, str] = {}
    for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in tensors:
            names[id(tensor)] = name
            found[name] = _placement(tensor)
            recorder.add_input(kind, name, _local(tensor))
    for parameter, states in optimizer.state.items() if optimizer is not None else ():
        for key, tensor in states.items():
            if isinstance(tensor, torch.Tensor):
                name = f"{key}.{names.get(id(parameter), '')}"
                found[name] = _placement(tensor)
                recorder.add_input("buffer", name, _local(tensor))
    leaves = pytree.tree_flatten_with_path((args, named))[0]
    for path, tensor in leaves:
        if isinstance(tensor, torch.Tensor):
            name = "".join(pytree.keystr((key,)) for key in path[1:]).strip(".[]'\"")
            found[recorder.add_input("user", name, _local(tensor))] = _placement(tensor)  # it has no other name there
    return found


_INPUTS = {"parameter": ("parameter", "parameter_name"), "buffer": ("buffer", "buffer_name"),
           "constant": ("tensor_constant", "tensor_constant_name")}  # fmt: skip


def _write(
    recorder: Recorder, model: torch.nn.Module, value: torch.Tensor, placements: Mapping[str, Any], folder: Path
) -> None:
    """Write the file of this rank."""
    outputs = [({"as_tensor": {"name": recorder.name_of(_local(value))}}, "loss_output", {})]
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            outputs.append(({"as_tensor": {"name": recorder.name_of(_local(parameter.grad))}}, "gradient_to_parameter",
                            {"parameter_name": name}))  # fmt: skip
    specs: list[Any] = []
    for kind, name, qualified in recorder.inputs:
        argument = {"name": name}
        if kind == "user":
            specs.append({"user_input": {"arg": {"as_tensor": argument}}})
        else:
            tag, key = _INPUTS[kind]
            specs.append({tag: {"arg": argument, key: qualified}})
    graph = {"inputs": [{"as_tensor": {"name": name}} for _, name, _ in recorder.inputs], "nodes": recorder.nodes,
             "outputs": [each for each, _, _ in outputs], "tensor_values": recorder.metas}  # fmt: skip
    given = [{tag: {"arg": each["as_tensor"], **more}} for each, tag, more in outputs]
    signature = {"input_specs": specs, "output_specs": given}
    program = {"graph_module": {"graph": graph, "signature": signature}, "schema_version": {"major": 8, "minor": 0},
               "torch_version": torch.__version__}  # fmt: skip
    rank, ranks = _rank()
    about = {"version": VERSION, "rank": rank, "ranks": ranks, "groups": recorder.groups, "placements": placements,
             "torch": torch.__version__, "script": os.path.basename(sys.argv[0])}  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rank_{rank}.pt2"
    with zipfile.ZipFile(path.with_suffix(".tmp"), "w", zipfile.ZIP_STORED) as archive:
        texts = {"archive_format": "pt2", "archive_version": "0", "byteorder": sys.byteorder,
                 "models/step.json": json.dumps(program), "extra/capture.json": json.dumps(about)}  # fmt: skip
        for name, text in texts.items():
            archive.writestr(f"step/{name}", text, zipfile.ZIP_DEFLATED)
        _write_values(archive, recorder.values)
    os.replace(path.with_suffix(".tmp"), path)


def _write_values(archive: zipfile.ZipFile, values: Mapping[str, tuple[str, torch.Tensor]]) -> None:
    """Write tensors as plain bytes, and the lists of them."""
    listed: dict[str, dict[str, Any]] = {"weights": {}, "constants": {}}
    for number, (name, (kind, tensor)) in enumerate(values.items()):
        part = "constants" if kind == "constant" else "weights"
        strides = torch.empty(tensor.shape, device="meta").stride()
        meta = {"dtype": _dtype(tensor.dtype), "sizes": [{"as_int": n} for n in tensor.shape], "requires_grad": False,
                "strides": [{"as_int": n} for n in strides], "storage_offset": {"as_int": 0}, "layout": 7}  # fmt: skip
        listed[part][name] = {"path_name": f"value_{number}", "is_param": kind == "parameter", "use_pickle": False,
                              "tensor_meta": meta}  # fmt: skip
        content = tensor.cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        archive.writestr(f"step/data/{part}/value_{number}", content)
    for part, found in listed.items():
        archive.writestr(f"step/data/{part}/step_{part}_config.json", json.dumps({"config": found}))


def _rank() -> tuple[int, int]:
    import torch.distributed as distributed

    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
