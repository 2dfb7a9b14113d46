"""Checkpoints are files of parameters by name, written as global tensors or in slices, and read where they are
needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mspc.api import state
from mspc.api.common.held_slice import HeldSlice
from mspc.api.common.parameter import Parameter
from mspc.api.common.stored_value import StoredValue
from mspc.api.common.tensor import Tensor
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.index.module import beside
from mspc.api.nn.cell import Cell
from mspc.api.setting_kind import say_once
from mspc.api.train.background import Background
from mspc.api.train.entries import SavedValue, entries_of, taken, without_texts
from mspc.checkpoint.mindspore_file import Entry, write_file
from mspc.checkpoint.opening import as_it_lies, open_checkpoint
from mspc.checkpoint.sliced import STRATEGY
from mspc.checkpoint.stored_tensors import Checkpoint
from mspc.checkpoint.writing import write_slices_to
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import make_folder, write_atomically
from mspc.ir.layout import Layout
from mspc.ir.types import dtype_of

__all__ = [
    "async_ckpt_thread_status", "load_checkpoint", "load_checkpoint_async", "load_param_into_net", "save_checkpoint",
]  # fmt: skip

__getattr__ = beside(__name__)

SUFFIX, CKPT = ".safetensors", ".ckpt"
FORMATS = ("ckpt", "safetensors")
MOST_LISTED = 12
"""Names that a message lists."""


def save_checkpoint(
    save_obj: Any, ckpt_file_name: str, integrated_save: bool = True, async_save: Any = False,
    append_dict: Any = None,
    enc_key: Any = None, enc_mode: str = "AES-GCM", choice_func: Callable[[str], bool] | None = None,
    crc_check: bool = False, format: str = "ckpt", **kwargs: Any,
) -> None:  # fmt: skip
    """Write parameters to a file; its folder is made, its name gets `.safetensors` when it has no suffix.

    The name decides on the format: `.ckpt` is MindSpore's, all else safetensors.

    Args:
        save_obj: a Cell, a dict of tensors by name, or a list of {"name": ..., "data": ...}.
        integrated_save: global parameters; all ranks must call this together. False: this rank's slices, for which
            every rank needs a name of its own.
        async_save: write while the script continues; True, "thread" and "process" are a thread.
        append_dict: numbers, tensors and texts to add. choice_func: which names to save.
        crc_check: a checksum at the end of a `.ckpt` file. Safetensors have one for every tensor always.
        format: "ckpt" or "safetensors"; a name with a suffix says it already.

    Raises:
        TypeError: `save_obj` is nothing of these, or holds what is no tensor. ValueError: an argument is of no use.
        MspcError: the file cannot be written.
    """
    check_format("save_checkpoint", format)
    _check_options("save_checkpoint", enc_key, kwargs)
    if async_save not in (True, False, "thread", "process"):
        raise ApiValueError(f"save_checkpoint: async_save {async_save!r} is not True, False, 'thread' or 'process'")
    if format == "safetensors" and str(ckpt_file_name).endswith(CKPT):
        raise ApiValueError(f"save_checkpoint: {ckpt_file_name!r} ends in .ckpt, and format is 'safetensors'")
    entries, texts = without_texts(entries_of(save_obj), append_dict)
    values = taken(entries, integrated_save, bool(async_save), choice_func)
    path = with_suffix(ckpt_file_name)
    rank = state.current().rank

    def write() -> None:
        write_values(path, values, rank, texts, crc_check)

    if async_save:
        background().start(write)
    else:
        write()


def write_values(
    path: Path, values: Sequence[SavedValue], rank: int, texts: Mapping[str, str], crc_check: bool = False,
    about: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Write a file of values as its name says. Raises MspcError."""
    try:
        make_folder(path.parent)
        if path.suffix == CKPT:
            entries = [value.entry() for value in values]
            entries += [Entry(name, None, lambda text=text: text) for name, text in texts.items()]
            write_atomically(path, lambda file: write_file(file, entries, crc_check))
            return
        slices = [value.slice_of(rank) for value in values]
        said = {**({"texts": dict(texts)} if texts else {}), **(about or {})}
        write_atomically(path, lambda file: write_slices_to(file, slices, said))
    except MspcError as error:
        raise MspcError(f"save_checkpoint: {error.message}") from None


def background() -> Background:
    """What writes this rank's files while its script continues."""
    session = state.current()
    if session.background is None:
        session.background = Background()
    return session.background


def async_ckpt_thread_status() -> bool:
    """Whether a checkpoint is being written."""
    found = state.current().background
    return found is not None and found.is_busy


def load_checkpoint(
    ckpt_file_name: str, net: Cell | None = None, strict_load: bool = False, filter_prefix: Any = None,
    dec_key: Any = None, dec_mode: str = "AES-GCM", specify_prefix: Any = None,
    choice_func: Callable[[str], bool] | None = None, crc_check: bool = False, remove_redundancy: bool = False,
    format: str = "ckpt", name_map: Mapping[str, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The parameters of a checkpoint by name; with `net` they are loaded into it too.

    Values are read when they are needed: a parameter that a graph trains in slices reads its slice. A file with the
    slices of one rank has tensors of their shapes.

    Args:
        ckpt_file_name: a file (safetensors, MindSpore's `.ckpt`), the folder or index of a set, a folder with
            checkpoints of one prefix, of which the newest counts, or the index of sharded safetensors as Hugging Face
            writes them.
        strict_load: see `load_param_into_net`. filter_prefix, specify_prefix: of names to leave out, or to take.
        crc_check: read everything now and compare checksums, which is done at reading otherwise.
        remove_redundancy: changes nothing: a set knows where its slices are.
        format: "ckpt" or "safetensors"; what the file is says the file.
        name_map: names by names of the checkpoint; those that are not in it stay.

    Raises:
        MspcError: there is no such file, or it is no checkpoint. ValueError: nothing in it is wanted, or an argument is
            of no use.
    """
    check_format("load_checkpoint", format)
    _check_options("load_checkpoint", dec_key, {})
    if remove_redundancy:
        say_once("load_checkpoint remove_redundancy", "load_checkpoint(remove_redundancy=True) changes nothing here: "
                 "where slices were written once, give the set, which knows where they are")  # fmt: skip
    source = open_checkpoint(_existing(ckpt_file_name), crc_check)
    source = as_it_lies(source)
    source.prefer = state.current().rank
    say_what_is_unchecked(source)
    if crc_check:
        _check_all(source)
    leave_out, take = _prefixes(filter_prefix), _prefixes(specify_prefix)
    found: dict[str, Any] = {}
    for key in [*source.tensors, *source.texts]:
        name = (name_map or {}).get(key, key)
        if (leave_out and name.startswith(leave_out)) or (take and not name.startswith(take)):
            continue
        if choice_func is None or choice_func(name):
            found[name] = (
                source.texts[key] if key in source.texts else Parameter(Tensor(StoredValue(source, key)), name)
            )
    if not found:
        raise ApiValueError(f"load_checkpoint: {str(ckpt_file_name)!r} holds no parameter that is requested")
    if net is not None:
        load_param_into_net(net, found, strict_load)
    return found


def load_checkpoint_async(
    ckpt_file_name: str, net: Cell | None = None, strict_load: bool = False, filter_prefix: Any = None,
    dec_key: Any = None, dec_mode: str = "AES-GCM", specify_prefix: Any = None,
    choice_func: Callable[[str], bool] | None = None,
) -> Any:  # fmt: skip
    """`load_checkpoint`, whose `result()` has the parameters: they are read when they are needed anyway."""
    found = load_checkpoint(
        ckpt_file_name, net, strict_load, filter_prefix, dec_key, dec_mode, specify_prefix, choice_func
    )
    return ParamDictFuture(found)


class ParamDictFuture:
    """What `load_checkpoint_async` returns."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._found = found

    def result(self) -> dict[str, Any]:
        """The parameters by name."""
        return self._found


def load_param_into_net(
    net: Cell, parameter_dict: Mapping[str, Any], strict_load: bool = False, remove_redundancy: bool = False
) -> tuple[list[str], list[str]]:
    """Give a network's parameters the values in a dict.

    Returns:
        (names of the network that the dict lacks, names of the dict that the network lacks). When no
        name fits, a prefix that all of the dict's names lack or share is tried. Behind `Model.infer_train_layout`
        values may be the slices that this rank has written of its own.

    Raises:
        TypeError: an argument is of the wrong kind. ValueError: a shape or element type does not fit; with
            `strict_load` no conversion between floats either. All that do not fit are listed, and nothing is loaded.
    """
    if remove_redundancy:
        say_once(
            "load_param_into_net remove_redundancy",
            "load_param_into_net(remove_redundancy=True) changes nothing here: nothing is left out of a set",
        )
    if not isinstance(net, Cell):
        raise ApiTypeError(f"load_param_into_net: net must be a Cell, not {type(net).__name__}")
    if not isinstance(parameter_dict, Mapping):
        raise ApiTypeError(f"load_param_into_net: parameter_dict must be a dict, not {type(parameter_dict).__name__}")
    for name, value in parameter_dict.items():
        if value is None or isinstance(value, bool | int | float | complex | dict | set):
            raise ApiTypeError(
                f"load_param_into_net: the value of {name!r} must be a Parameter, not {type(value).__name__}"
            )
    net.distinguish_parameters()  # as a call does: a checkpoint of a network that was called has these names
    wanted = {parameter.name: parameter for parameter in net.get_parameters()}
    given = {name: value for name, value in parameter_dict.items() if not isinstance(value, str)}
    if wanted and given and not wanted.keys() & given.keys():
        given = _matched(given, wanted)
    fitting = {name: given[name] for name in wanted if name in given}
    wrong = [text for name, value in fitting.items() if (text := _mismatch(wanted[name], value, strict_load))]
    if wrong:
        slices = _of_slices(wanted, fitting)
        more = [f"and {len(wrong) - MOST_LISTED} more"] if len(wrong) > MOST_LISTED else []
        raise ApiValueError(
            f"load_param_into_net: {'these may be slices of one rank: ' * bool(slices)}{wrong[0]}",
            [*wrong[1:MOST_LISTED], *more, *slices],
        )
    for name, value in fitting.items():
        parameter = wanted[name]
        layout = _layout_of_slice(parameter, value)
        if layout is not None:
            array = value.array if isinstance(value, Tensor) else np.asarray(value)
            rank = state.current().rank
            parameter.set_data(Tensor(HeldSlice(name, parameter.shape, layout, rank, array)))
            continue
        if isinstance(value, Tensor) and value.shape == parameter.shape:
            parameter.set_data(value)
            continue
        array = value.array if isinstance(value, Tensor) else np.asarray(value)
        parameter.set_data(array.reshape(parameter.shape))
    missing = [name for name in wanted if name not in given]
    return missing, [name for name in given if name not in wanted]


def _load_dismatch_prefix_params(
    net: Cell, parameter_dict: Mapping[str, Any], param_not_load: list[str], strict_load: bool
) -> None:
    """Load parameters whose names in the dict have a prefix more, and take them from `param_not_load`."""
    while param_not_load:
        pairs = ((missing, name) for missing in param_not_load for name in parameter_dict if name.endswith(missing))
        missing, name = next(pairs, ("", ""))
        if not missing:
            return
        prefix = name[: len(name) - len(missing)]
        found = {each: parameter_dict[prefix + each] for each in param_not_load if prefix + each in parameter_dict}
        load_param_into_net(net, found, strict_load)
        param_not_load[:] = [each for each in param_not_load if each not in found]


def _of_slices(wanted: Mapping[str, Parameter], given: Mapping[str, Any]) -> list[str]:
    """What to do where all shapes that do not fit are those of slices."""
    shapes = [(wanted[name].shape, v.shape if isinstance(v, Tensor) else np.shape(v)) for name, v in given.items()]
    unlike = [(global_shape, part) for global_shape, part in shapes if global_shape != part]
    if not unlike:
        return []
    for global_shape, part in unlike:
        if len(global_shape) != len(part) or any(not n or w % n for w, n in zip(global_shape, part, strict=True)):
            return []
    return [
        "slices of a rank are loaded with all others: load_distributed_checkpoint(net, files in the ranks' order, "
        "train_strategy_filename=file)",
        STRATEGY,
        "a network that is sharded as the one that was saved takes the rank's own file behind Model.infer_train_layout "
        "or Model.build",
    ]


def _mismatch(parameter: Parameter, value: Any, strict: bool) -> str:
    """Why a parameter cannot have a value; "" where it can."""
    tensor = value if isinstance(value, Tensor) else np.asarray(value)
    alike = tuple(tensor.shape) == parameter.shape or tensor.size == parameter.size == 1
    if not alike and _layout_of_slice(parameter, value) is None:
        return f"parameter '{parameter.name}' has shape {parameter.shape}, the checkpoint {tuple(tensor.shape)}"
    kind = dtype_of(tensor.dtype)
    if kind != parameter.dtype and (strict or kind.kind != parameter.dtype.kind):
        return f"parameter '{parameter.name}' is {parameter.dtype}, in the checkpoint {kind}"
    return ""


def _layout_of_slice(parameter: Parameter, value: Any) -> Layout | None:
    """How a parameter is sharded, where a value is the slice that this rank has by it; None elsewhere."""
    shape = tuple(value.shape) if isinstance(value, Tensor) else np.shape(value)
    layout = parameter.laid_out
    if layout is None or shape == parameter.shape or layout.local_shape(parameter.shape) != shape:
        return None
    return layout


def _matched(given: dict[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    name = min(given, key=len)
    for candidate in wanted:
        if candidate.endswith(f".{name}"):
            prefix = candidate[: -len(name)]
            return {f"{prefix}{key}": value for key, value in given.items()}
        if name.endswith(f".{candidate}"):
            prefix = name[: -len(candidate)]
            return {key.removeprefix(prefix): value for key, value in given.items()}
    return given


def say_what_is_unchecked(source: Checkpoint) -> None:
    """Say once where checksums are of a kind that cannot be computed here, or missing where mspc writes them now."""
    kinds = {p.checksum for stored in source.tensors.values() for p in stored.pieces if p.checksum}
    if kinds and source.unchecked():
        why = "the library xxhash is not installed"
        say_once("checksums", f"{source.name} has checksums that cannot be compared here: {why}")
    elif not source.is_sealed:
        why = "it was written when headers had no checksums"
        say_once("headers", f"what {source.name} says of its tensors and its run is compared with nothing: {why}")


def _check_all(source: Checkpoint) -> None:
    wrong = next((text for _, text in source.verified() if text), "")
    if wrong:
        raise MspcError(f"load_checkpoint: {wrong}")


def _existing(name: Any) -> Path:
    """The file or folder that a script's name of a checkpoint is for; one that is written `.ckpt` may have become
    safetensors."""
    if not isinstance(name, (str, os.PathLike)):
        raise ApiTypeError(f"load_checkpoint: ckpt_file_name must be a string, not {type(name).__name__}")
    path = Path(name)
    try:
        if os.path.exists(path):
            return path
    except ValueError:
        return path
    if path.suffix == CKPT and os.path.exists(path.with_suffix(SUFFIX)):
        return path.with_suffix(SUFFIX)
    if path.suffix in (CKPT, SUFFIX) and os.path.isdir(path.with_suffix("")):
        return path.with_suffix("")
    return path if path.suffix else with_suffix(str(name))


def with_suffix(name: str) -> Path:
    """The path with `.safetensors` at its end, where it has no suffix of a checkpoint."""
    if str(name).endswith((SUFFIX, CKPT)):
        return Path(name)
    return Path(f"{name}{SUFFIX}")


def check_format(function: str, format: Any) -> None:
    """Raises ValueError for a format that is none."""
    if format not in FORMATS:
        raise ApiValueError(f"{function}: format {format!r} is not one of 'ckpt', 'safetensors'")


def _check_options(function: str, key: Any, others: Mapping[str, Any]) -> None:
    if key is not None:
        raise ApiValueError(f"{function}: encryption is not supported")
    for name, value in others.items():
        if name not in ("incremental", "global_step_num", "remove_redundancy"):
            raise ApiTypeError(f"{function} has no argument {name!r}")
        if value:
            say_once(f"{function} {name}", f"{function}({name}={value!r}) changes nothing here")


def _prefixes(prefix: Any) -> tuple[str, ...]:
    if not prefix:
        return ()
    return (prefix,) if isinstance(prefix, str) else tuple(prefix)
