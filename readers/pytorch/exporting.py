"""Modules are exported here by PyTorch itself, if it is installed, to be read as data like any exported program.

This is the only file of the readers that imports PyTorch.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import inspect
import json
import sys
import warnings
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from unittest.mock import patch

from mspc.checkpoint.sets import HUGGING_FACE_INDEX, open_checkpoint
from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api.setting_kind import say_once
from mspc.readers.pytorch.exported_program import ExportedProgram
from mspc.readers.pytorch.graph_reader import read_program
from mspc.readers.pytorch.kinds.aten_table import kind_of
from mspc.readers.pytorch.other_weights import JoinedWeight, with_weights

ASKED = "a module, or (module, inputs), or (module, inputs, inputs by name)"
FAMILIES: Mapping[str, str] = {"input_ids": "int64", "pixel_values": "float32"}
"""Inputs of models of Hugging Face that can be made up."""
STACKED, JOINED = "MergeModulelist", "Concatenate"
"""The ways in which transformers makes a parameter of several tensors."""
BATCH, LENGTH = "batch", "length"
EXAMPLE: Mapping[str, int] = {BATCH: 8, LENGTH: 128}
"""Sizes of an example's inputs, if nothing else is said."""


@dataclass(frozen=True)
class Exported:
    """An archive that was written. same: parameters that are another one under a second name, with that name. stored:
    for parameters that are no tensor of their name in a folder's files, the tensors there. own_plan: the styles of
    layers that the module brings. dropped: the lines at which numbers decide in the module whether a layer runs."""

    path: Path
    same: Mapping[str, str]
    stored: Mapping[str, JoinedWeight] = field(default_factory=dict[str, JoinedWeight])
    own_plan: Mapping[str, str] = field(default_factory=dict[str, str])
    dropped: tuple[str, ...] = ()


def export_made(made: Any, to: Path, where: str) -> Exported:
    """Export the result of a user's function.

    made: a module of PyTorch with inputs of an example. to: the archive to write. where: the function.

    Raise MspcError if PyTorch is not installed, `made` is something else, or PyTorch cannot export it.
    """
    torch = _library("torch", "--torch exports a module by PyTorch")
    parts = cast(Sequence[Any], made if isinstance(made, tuple) else (made,))
    module, inputs, named = (*parts, *((), {})[len(parts) - 1 :])[:3] if parts else (None, (), {})
    fits = len(parts) <= 3 and isinstance(module, torch.nn.Module) and isinstance(named, dict)
    if not fits or not isinstance(inputs, tuple | list | torch.Tensor):
        raise MspcError(f"{where} gives {_described(made)}, not {ASKED}")
    inputs = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
    if not inputs and not named:
        raise MspcError(f"{where} gives a module without the inputs of an example", notes=[f"give {ASKED}"])
    return _exported(torch, module, inputs, named, to, where)


def export_folder(folder: Path, to: Path, sizes: Mapping[str, int], names: Sequence[str]) -> Exported:
    """Export the model that a folder of Hugging Face describes, without values for its weights.

    sizes: of the example, `batch` and `length`. names: of the tensors in the folder's files.

    Raises:
        MspcError: transformers is not installed, does not know the model, or PyTorch cannot export it.
    """
    purpose = f"{folder} is a folder of Hugging Face"
    torch, transformers = _library("torch", purpose), _library("transformers", purpose)
    unknown = [name for name in sizes if name not in EXAMPLE]
    if unknown:
        raise MspcError(f"{folder} has no size {unknown[0]!r:.60}", notes=[f"it has {', '.join(EXAMPLE)}"])
    with _error_message(f"transformers cannot make the model in {folder}"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = _config(transformers, folder)
        name = next(iter(getattr(config, "architectures", None) or ()), "")
        kind = getattr(transformers, name, None)
        if kind is None:
            raise MspcError(f"{folder}: its config.json names no architecture that transformers has, but {name!r:.60}",
                            notes=_notes_of_own_code(folder))  # fmt: skip
        if _notes_of_own_code(folder):
            say_once("auto_map", f"{folder}: code of the folder (auto_map) is not run; the model is {name} as "
                     "transformers has it")  # fmt: skip
        mode = fake_mode()
        # Values of weights are read out of the folder: none are drawn.
        undrawn = importlib.import_module("transformers.initialization").no_init_weights
        with in_type(getattr(config, "dtype", None)), without_values(mode), undrawn():
            model = kind(config).train()
            model.tie_weights()
    inputs = _made_up(torch, mode, model, config, {**EXAMPLE, **sizes}, folder)
    exported = _exported(torch, model, (), inputs, to, str(folder))
    return replace(exported, stored=_stored_names(model, names))


def _config(transformers: Any, folder: Path) -> Any:
    """Return the configuration in a folder. Code of the folder is not run: without an answer transformers would ask on
    stdin whether to run it."""
    try:
        return transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except ValueError as error:
        notes = _notes_of_own_code(folder)
        if not notes:
            raise
        raise MspcError(f"{folder}: the model is made by code of the folder, which is not run", notes=notes) from error


def _notes_of_own_code(folder: Path) -> list[str]:
    """Return notes on the code that a folder brings for its model; none if it brings none."""
    try:
        own = json.loads((folder / "config.json").read_text()).get("auto_map")
    except (OSError, ValueError, AttributeError):
        return []
    if not isinstance(own, dict):
        return []
    names = ", ".join(f"{key!s:.40}: {value!s:.60}" for key, value in cast(dict[Any, Any], own).items())
    advice = "if you trust it, write a function that loads the model with trust_remote_code=True"
    return [f"auto_map in {folder / 'config.json'} names it: {names}", f"{advice}: mspc compile model.py:make --torch"]


def _stored_names(model: Any, names: Sequence[str]) -> dict[str, JoinedWeight]:
    """Return the tensors of each parameter that transformers makes of one of another name, or of several that it stacks
    and joins."""
    mapping = importlib.import_module("transformers.conversion_mapping")
    loading = importlib.import_module("transformers.core_model_loading")
    transforms = mapping.get_model_conversion_mapping(model)
    renamings = [each for each in transforms if isinstance(each, loading.WeightRenaming)]
    converters = [each for each in transforms if isinstance(each, loading.WeightConverter)]
    known = model.state_dict()
    found: dict[str, JoinedWeight] = {}
    parts: dict[str, dict[str, list[str]]] = {}
    for name in names:
        own, pattern = loading.rename_source_key(name, renamings, converters, model.base_model_prefix, known)
        if pattern is None:
            found[own] = JoinedWeight(((name,),))
        else:
            parts.setdefault(own, {}).setdefault(pattern, []).append(name)
    for own, by_pattern in parts.items():
        converter = next(each for each in converters if set(by_pattern) <= set(each.source_patterns))
        dims = {type(each).__name__: getattr(each, "dim", None) for each in converter.operations}
        if not set(dims) <= {STACKED, JOINED} or len(converter.target_patterns) != 1:
            continue  # it does more with them
        lists = [sorted(by_pattern.get(pattern, ()), key=_natural_order) for pattern in converter.source_patterns]
        found[own] = JoinedWeight(tuple(map(tuple, lists)), dims.get(STACKED), dims.get(JOINED))
    return found


def _natural_order(name: str) -> list[Any]:
    """Sort `experts.10` after `experts.9`."""
    return [(len(part), part) if part.isdigit() else part for part in name.split(".")]


def _exported(
    torch: Any, module: Any, inputs: tuple[Any, ...], named: dict[str, Any], to: Path, where: str
) -> Exported:
    with (
        _error_message(f"PyTorch cannot export {where}"), warnings.catch_warnings(), own_gradients(torch) as lost,
        recorded_checkpoints(torch), dense_flex_attention(torch),
    ):  # fmt: skip
        warnings.simplefilter("ignore")
        inputs, named = _each_its_own(torch, (inputs, named))
        dropped: list[str] = []
        program = _program(torch, module, inputs, named, lost, dropped)
        unknown = _unknown_kinds(program)
        if unknown:
            rules = torch.export.default_decompositions()
            simpler = program.run_decompositions({target: rules[target] for target in unknown if target in rules})
            program = program if _unknown_kinds(simpler) else simpler
        torch.export.save(program, to)
    for place, name in lost.items():
        text = (
            f"{place}: {name}.backward is not in the program that torch.export writes: the gradient is that of the "
            f"operators of {name}.forward. Write the gradient with detach() instead, as in x + (f(x) - x).detach() for "
            "a gradient that passes f"
        )
        say_once(f"backward {place}", text)
    first: dict[int, str] = {}
    same: dict[str, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) != name:
            same[name] = first[id(parameter)]
    plan = {name: str(style) for name, style in (getattr(module, "_tp_plan", None) or {}).items()}
    return Exported(to, same, own_plan=plan, dropped=tuple(dropped))


def _program(torch: Any, module: Any, inputs: Any, named: Any, lost: Mapping[str, str], dropped: list[str]) -> Any:
    """Return the exported program: as PyTorch runs the module, else without layer drop, else as its compiler reads it,
    else of the recorded operators of the gradients in `forward`. Raise the first error. lost: the calls of users'
    gradients, which the last way does not have. dropped: gets the lines of layer drop."""
    try:
        with assigned_buffers(torch, module):
            program = torch.export.export(module, inputs, named, strict=False)
        if not lost and any(_is_transform(each.target) and "grad" in each.name for each in program.graph.nodes):
            recorded = _recorded_gradients(torch, module, inputs, named)  # PyTorch takes the parameters for constants
            return torch.export.export(recorded, inputs, named, strict=False)
        return program
    except Exception as error:
        with contextlib.suppress(Exception):
            return _with_every_layer(torch, module, inputs, named, dropped)
        dropped.clear()
        with contextlib.suppress(Exception):
            return torch.export.export(module, inputs, named, strict=True)
        if not lost:
            with contextlib.suppress(Exception):
                recorded = _recorded_gradients(torch, module, inputs, named)
                return torch.export.export(recorded, inputs, named, strict=False)
        raise error


def _with_every_layer(torch: Any, module: Any, inputs: Any, named: Any, dropped: list[str]) -> Any:
    while True:
        try:
            with assigned_buffers(torch, module), without_layer_drop(torch, dropped):
                program = torch.export.export(module, inputs, named, strict=False)
        except LayerDrop as found:
            dropped.append(str(found))
            continue
        for line in dropped:
            say_once(f"layer drop {line}", f"{line}: a number drawn here decides whether a layer runs, which no "
                     "exported program can say: every layer runs")  # fmt: skip
        return program


@contextlib.contextmanager
def assigned_buffers(torch: Any, module: Any) -> Generator[None]:
    """Let buffers to which `forward` assigns other tensors end with their elements: PyTorch forgets assignments in
    inner modules."""
    before: dict[tuple[int, str], tuple[Any, Any]] = {}
    original = torch.nn.Module.__setattr__

    def assign(self: Any, name: str, value: Any) -> None:
        old = self.__dict__.get("_buffers", {}).get(name)
        if isinstance(old, torch.Tensor) and isinstance(value, torch.Tensor) and old.shape == value.shape:
            before.setdefault((id(self), name), (self, old))
        original(self, name, value)

    def write(*_: Any) -> None:
        for (_, name), (owner, old) in before.items():
            old.copy_(owner._buffers[name].detach())
            owner._buffers[name] = old
        before.clear()

    with module.register_forward_hook(write), patch.object(torch.nn.Module, "__setattr__", assign):
        yield


def _recorded_gradients(torch: Any, module: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return the module with a `forward` of the operators that PyTorch runs below autograd and `torch.func`: an
    exported program cannot compute gradients, so that those in `forward`, as of a penalty, have to be operators of it.
    Raise MspcError if a tensor without a gradient is overwritten.

    Autograd detaches the tensors that it saves. These have gradients here, and only those that the module detaches, or
    reads under `no_grad`, have none: they are copied to tell them apart.
    """
    proxies = importlib.import_module("torch.fx.experimental.proxy_tensor")
    tree = importlib.import_module("torch.utils._pytree")
    aten, mode = torch.ops.aten, importlib.import_module("torch.overrides").TorchFunctionMode
    detached = (torch.Tensor.detach, torch.detach, torch.Tensor.data.__get__)

    def stopped(value: Any) -> Any:
        trains = isinstance(value, torch.Tensor) and value.requires_grad
        return torch.detach_copy(value.detach()) if trains else value

    class DetachingMode(mode):  # type: ignore[misc, valid-type]  # PyTorch need not be installed
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function in detached:
                return stopped(args[0])
            if not torch.is_grad_enabled():
                args, kwargs = tree.tree_map(stopped, (args, kwargs))
            return function(*args, **(kwargs or {}))

    def run(held: Any, given: Any) -> Any:
        with DetachingMode():
            return torch.func.functional_call(module, held, *given)

    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    traced = proxies.make_fx(run, tracing_mode="fake", record_stack_traces=True)(held, (inputs, named))
    for node in list(traced.graph.nodes):
        if node.target is aten.detach.default:
            node.replace_all_uses_with(node.args[0])
            traced.graph.erase_node(node)
        elif node.target is aten.detach_copy.default:
            node.target = aten.detach.default
        elif getattr(getattr(node.target, "_schema", None), "is_mutable", False):
            if node.args[0].target is aten.detach.default:
                raise MspcError(f"{node.target} overwrites a tensor without a gradient")
    found = copy.copy(module)

    @functools.wraps(module.forward)
    def forward(*args: Any, **kwargs: Any) -> Any:
        own = {**dict(found.named_parameters()), **dict(found.named_buffers())}
        with importlib.import_module("torch.fx.traceback").preserve_node_meta():
            return torch.fx.Interpreter(traced).run(*tree.tree_leaves((own, (args, kwargs))))

    found.forward = forward
    return found


class LayerDrop(Exception):
    """A number drawn at a line decides whether a layer runs."""


@contextlib.contextmanager
def without_layer_drop(torch: Any, lines: Collection[str]) -> Generator[None]:
    """Let `torch.rand([])` at these lines be 1. Raise LayerDrop if the program decides by such a number of another
    line, as modules do that skip layers. Numbers that only tensors are computed from are drawn."""
    original, decides = torch.rand, [getattr(torch.Tensor, f"__{name}__") for name in ("bool", "float", "int")]
    drawn: dict[int, tuple[Any, str]] = {}

    def rand(*size: Any, **named: Any) -> Any:
        caller = sys._getframe(1)
        line = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        is_number = size in ((), ([],), ((),)) and named.get("size", ()) in ((), [])
        if is_number and line in lines:
            return 1.0
        found = original(*size, **named)
        drawn.update({id(found): (found, line)} if is_number else {})
        return found

    class Deciding(importlib.import_module("torch.overrides").TorchFunctionMode):  # type: ignore[misc]  # as above
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            line = next((drawn[id(each)][1] for each in args if id(each) in drawn), "")
            if line and function in (*decides, torch.Tensor.item):
                raise LayerDrop(line)
            found = function(*args, **(kwargs or {}))
            drawn.update({id(found): (found, line)} if line else {})
            return found

    with patch.object(torch, "rand", rand), Deciding():
        yield


@contextlib.contextmanager
def recorded_checkpoints(torch: Any) -> Generator[None]:
    """Record the operators of `checkpoint(..., use_reentrant=True)`, which PyTorch would export without
    gradients. As in PyTorch only operands with gradients make a result with one."""
    function = importlib.import_module("torch.utils.checkpoint").CheckpointFunction

    def apply(run: Any, preserve_rng_state: bool, *args: Any) -> Any:
        trains = any(isinstance(each, torch.Tensor) and each.requires_grad for each in args)
        with torch.set_grad_enabled(trains and torch.is_grad_enabled()):
            return run(*args)

    with patch.object(function, "apply", staticmethod(apply)):
        yield


@contextlib.contextmanager
def dense_flex_attention(torch: Any) -> Generator[None]:
    """Record `flex_attention` as the matmuls, functions and softmax that it computes: PyTorch cannot write its own node
    into a file, and refuses its gradient on a CPU."""
    module = importlib.import_module("torch.nn.attention.flex_attention")
    names = ("flex_attention_hop", "_validate_device", "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG")
    if not all(hasattr(module, name) for name in names):  # another version of PyTorch
        yield
        return

    def attention(query: Any, key: Any, value: Any, changed: Any, block_mask: Any, scale: float, *others: Any) -> Any:
        heads = query.shape[1] // key.shape[1]
        if heads > 1:
            key, value = key.repeat_interleave(heads, 1), value.repeat_interleave(heads, 1)
        scores = query @ key.transpose(-2, -1) * scale
        places = [
            torch.arange(size, device=query.device).view([-1 if dim == own else 1 for dim in range(4)])
            for own, size in enumerate(scores.shape)
        ]
        scores = changed(scores, *places)
        scores = torch.where(block_mask[-1](*places), scores, -float("inf"))
        seen = scores.amax(-1, keepdim=True) > -float("inf")
        weights = torch.softmax(torch.where(seen, scores, 0.0), -1) * seen
        found = weights.to(value.dtype) @ value
        return found, scores.logsumexp(-1), scores.amax(-1)

    with patch.multiple(module, **dict(zip(names, (attention, lambda *_: None, True), strict=True))):
        yield


def _unknown_kinds(program: Any) -> list[Any]:
    """Return the operators of ATen in a program that are not known, and the calls of `torch.vmap` and the like."""
    called = dict.fromkeys(node.target for node in program.graph.nodes if node.op == "call_function")
    return [
        each for each in called
        if (str(each).startswith("aten.") and kind_of(str(each)) is None) or _is_transform(each)
    ]  # fmt: skip


def _is_transform(target: Any) -> bool:
    return str(getattr(target, "__module__", "")).startswith("torch._functorch")


@contextlib.contextmanager
def own_gradients(torch: Any) -> Generator[dict[str, str]]:
    """Collect the calls of users' `autograd.Function`s: the line of each call, and the name of the class."""
    found: dict[str, str] = {}
    function = torch.autograd.Function
    own = vars(function).get("apply")  # None if it is inherited, as in PyTorch 2.14

    def apply(cls: Any, *args: Any, **named: Any) -> Any:
        if not cls.__module__.startswith("torch."):
            line = sys._getframe(1)
            found[f"{line.f_code.co_filename}:{line.f_lineno}"] = cls.__name__
        original = super(function, cls).apply if own is None else own.__get__(None, cls)
        return original(*args, **named)

    with patch.object(function, "apply", classmethod(apply)):
        yield found


def _each_its_own(torch: Any, inputs: Any) -> Any:
    """Return the inputs with copies of repeated tensors, as words that are labels too: an exported program would read
    one of the two inputs alone."""
    tree = importlib.import_module("torch.utils._pytree")
    leaves, spec = tree.tree_flatten(inputs)
    seen: set[int] = set()
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and id(leaf) in seen:
            leaves[place] = leaf.clone()
        seen.add(id(leaf))
    return tree.tree_unflatten(leaves, spec)


def _made_up(torch: Any, mode: Any, model: Any, config: Any, sizes: Mapping[str, int], folder: Path) -> dict[str, Any]:
    """Return the inputs of an example, with labels if the model computes a loss of them."""
    main = getattr(model, "main_input_name", "")
    if main not in FAMILIES:
        raise MspcError(
            f"{folder}: the model's first input is {main!r:.60}; mspc makes up {' and '.join(FAMILIES)}",
            notes=["write a function that gives module and inputs: mspc compile model.py:make --torch"],
        )
    batch, length = sizes[BATCH], sizes[LENGTH]
    found: dict[str, Any] = {}
    takes = inspect.signature(model.forward).parameters
    with mode:
        if main == "input_ids":
            found[main] = torch.zeros((batch, length), dtype=torch.int64)
        else:
            side = getattr(config, "image_size", 224)
            height, width = side if isinstance(side, list | tuple) else (side, side)
            dtype = next(model.parameters()).dtype
            found[main] = torch.zeros((batch, getattr(config, "num_channels", 3), height, width), dtype=dtype)
        if "labels" in takes:
            is_whole = main == "pixel_values" or "ForSequenceClassification" in type(model).__name__
            found["labels"] = torch.zeros((batch,) if is_whole else (batch, length), dtype=torch.int64)
    if "use_cache" in takes:
        found["use_cache"] = False
    return found


def fake_mode() -> Any:
    """In it tensors have types and no values."""
    fakes = importlib.import_module("torch._subclasses.fake_tensor")
    return fakes.FakeTensorMode(allow_non_fake_inputs=True)


@contextlib.contextmanager
def without_values(mode: Any) -> Generator[None]:
    """Parameters that are made have shapes and types only, and buffers their values."""
    torch = importlib.import_module("torch")
    module = torch.nn.Module
    original = module.register_parameter

    def register(self: Any, name: str, parameter: Any) -> None:
        if parameter is not None and not hasattr(parameter, "fake_mode"):
            fake = mode.from_tensor(parameter.detach(), static_shapes=True)
            parameter = torch.nn.Parameter(fake, requires_grad=parameter.requires_grad)
        original(self, name, parameter)

    with patch.object(module, "register_parameter", register):
        yield


@contextlib.contextmanager
def in_type(dtype: Any) -> Generator[None]:
    """Parameters are made in this element type."""
    torch = importlib.import_module("torch")
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype if isinstance(dtype, torch.dtype) else before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def _error_message(what: str) -> Generator[None]:
    """Return the first lines of PyTorch's error as a message."""
    try:
        yield
    except MspcError:
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise MspcError(f"{what}: {type(error).__name__}: {lines[0] if lines else ''}", notes=lines[1:6]) from None


def _library(name: str, purpose: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MspcError(f"{purpose}, and {name} cannot be imported: {error}", notes=[f"pip install {name}"]) from None


def _described(value: Any) -> str:
    if isinstance(value, tuple):
        kinds = ", ".join(type(each).__name__ for each in cast(tuple[Any, ...], value))
        return f"({kinds})"
    return "None" if value is None else f"a {type(value).__name__}"


WEIGHTS = (HUGGING_FACE_INDEX, "model.safetensors")
ADVICE = (
    "if transformers joins several tensors, write a function that returns the loaded model: "
    "mspc compile model.py:make --torch"
)


def read_folder(folder: Path, sizes: Mapping[str, int]) -> ExportedProgram:
    """Return the model in a folder, exported in training mode, with the weights that are there.

    sizes: `batch` and `length` of its inputs.

    Raises:
        MspcError: PyTorch or transformers is missing, cannot make or export the model, or weights are not the model's.
    """
    found = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    stored = None if found is None else open_checkpoint(found)
    with TemporaryDirectory(prefix="mspc-") as place:
        exported = export_folder(folder, Path(place) / "model.pt2", sizes, [*(stored.tensors if stored else ())])
        program = replace(read_program(exported.path), name=str(folder), same=exported.same, own_plan=exported.own_plan,
                          dropped=exported.dropped)  # fmt: skip
        return program if stored is None else with_weights(program, stored, exported.stored, ADVICE)
