"""Checkpoints of a script: saving parameters and loading them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mspc.checkpoint.files import TensorSlice, write_slices_to
from mspc.checkpoint.mindspore_file import Entry, write_file
from mspc.checkpoint.sets import open_checkpoint, with_slices_as_tensors
from mspc.checkpoint.sliced import STRATEGY
from mspc.checkpoint.stored_tensors import Checkpoint, box_of, extent
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import make_folder, write_atomically
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType, dtype_of
from mspc.mindspore_api import state
from mspc.mindspore_api.call_handler import backend
from mspc.mindspore_api.common.parameter import HeldSlice, Parameter, StoredValue, require_distinct_names
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.index.module import beside
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.setting_kind import say_once

__all__ = [
    "async_ckpt_thread_status", "load_checkpoint", "load_param_into_net", "load_torch",
    "save_checkpoint",
]  # fmt: skip


@dataclass(frozen=True)
class SavedValue:
    """Value to save, copied when it was taken. layout: its sharding over the ranks, None for a global tensor. array:
    with the padding at the end of the global tensor, if there is any."""

    name: str
    global_type: TensorType
    array: np.ndarray
    layout: Layout | None = None

    def slice_of(self, rank: int) -> TensorSlice:
        shape = self.global_type.shape
        places = None if self.layout is None else self.layout.held_slices(rank, shape, self.array.shape)
        box = box_of(places, shape)
        own = np.ascontiguousarray(self.array[tuple(map(slice, extent(box)))])
        layout = "" if self.layout is None else str(self.layout)
        return TensorSlice(self.name, self.global_type, box.begin, extent(box), layout, lambda: own)

    def entry(self) -> Entry:
        """Return the value for MindSpore's format. Raise MspcError for a slice that is padded."""
        shape, array = self.global_type.shape, self.array
        if self.layout is None:
            array = array[tuple(map(slice, shape))]
        elif not self.layout.holds(shape, array.shape):
            raise MspcError(f"{self.name!r} is padded, and .ckpt has equal slices: save .safetensors, or all of it")
        return Entry(self.name, TensorType(self.global_type.dtype, array.shape), lambda: array)


def entries_of(save_obj: Any) -> dict[str, Any]:
    """Return the values of a Cell, a dict or a list by name.

    Raises TypeError for anything else, ValueError for two parameters of one name.
    """
    if isinstance(save_obj, Cell):
        require_distinct_names(save_obj.parameters_and_places())
        return {parameter.name: parameter for parameter in save_obj.get_parameters()}
    if isinstance(save_obj, Mapping):
        return dict(save_obj)
    if isinstance(save_obj, (list, tuple)):
        numbered = [(f"element {i}", entry) for i, entry in enumerate(save_obj) if isinstance(entry, Parameter)]
        require_distinct_names(numbered)
        entries: dict[str, Any] = {}
        for entry in save_obj:
            if isinstance(entry, Parameter):
                entries[entry.name] = entry
            elif isinstance(entry, Mapping) and {"name", "data"} <= entry.keys():
                entries[entry["name"]] = entry["data"]
            else:
                raise ApiTypeError(f'save_checkpoint: {entry!r} is no {{"name": ..., "data": ...}}')
        return entries
    raise ApiTypeError(f"save_checkpoint takes a Cell, a dict or a list, not {type(save_obj).__name__}")


def taken(
    entries: Mapping[str, Any], gathered: bool, copied: bool, choice: Callable[[str], bool] | None = None,
    writes: Callable[[int, Layout | None], bool] = lambda number, layout: True,
) -> list[SavedValue]:  # fmt: skip
    """Return the current values.

    Args:
        gathered: gather sharded values; then all ranks do this together, and each may fail only later.
        copied: copy arrays that further training changes. choice: which names to save.
        writes: whether this rank writes an entry, by its index and its layout; not called with `gathered`.

    Raises TypeError if a name is no string, or a value no tensor.
    """
    found: list[SavedValue] = []
    for number, (name, value) in enumerate(entries.items()):
        if not isinstance(name, str):
            raise ApiTypeError(f"save_checkpoint: the name of a parameter must be a string, not {name!r}")
        if choice is not None and not choice(name):
            continue
        if gathered or not isinstance(value, Parameter):
            array = value.fill_slices() if isinstance(value, Tensor) else value
            if gathered or writes(number, None):
                found.append(_taken(name, np.array(array, order="C"), None))
            continue
        if not value.is_here:
            continue
        layout, own = value.part()
        if writes(number, layout):
            array = np.array(own, order="C") if copied else np.asarray(own)
            found.append(SavedValue(name, value.type, array, layout))
    return found


def _taken(name: str, array: np.ndarray, layout: Layout | None) -> SavedValue:
    try:
        type = TensorType(dtype_of(array.dtype), array.shape)
    except MspcError:
        raise ApiTypeError(f"save_checkpoint: {name!r} is {array.dtype}, which no tensor can be") from None
    return SavedValue(name, type, array, layout)


def without_texts(
    entries: Mapping[str, Any], append: Mapping[str, Any] | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return (the tensors of both, the appended texts)."""
    texts = {name: value for name, value in (append or {}).items() if isinstance(value, str)}
    return {**entries, **{n: v for n, v in (append or {}).items() if n not in texts}}, texts


def spread(rank: int, size: int) -> Callable[[int, Layout | None], bool]:
    """Return which entries a rank writes if each slice is written once: the ranks with the same slice take turns."""

    def writes(number: int, layout: Layout | None) -> bool:
        holders: Sequence[int] = range(size) if layout is None else layout.group(layout.unused, rank)
        return holders[number % len(holders)] == rank

    return writes


class Background:
    """Work in a thread while the script continues. A failure is raised when the script waits for it."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: MspcError | None = None

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], object]) -> None:
        """Begin some work after the previous work has ended. Raise errors of the previous work."""
        self.wait()

        def run() -> None:
            try:
                work()
            except MspcError as error:
                self._error = error
            except Exception as error:  # whatever it is: the script must hear of it
                self._error = MspcError(f"a checkpoint could not be written: {type(error).__name__}: {error}")

        self._thread = threading.Thread(target=run, name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait for the current work. Raise MspcError if it has failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error


__getattr__ = beside(__name__)

SUFFIX, CKPT = ".safetensors", ".ckpt"
FORMATS = ("ckpt", "safetensors")
MAX_LISTED = 12
"""Names that a message lists."""


def save_checkpoint(
    save_obj: Any, ckpt_file_name: str, integrated_save: bool = True, async_save: Any = False,
    append_dict: Any = None,
    enc_key: Any = None, enc_mode: str = "AES-GCM", choice_func: Callable[[str], bool] | None = None,
    crc_check: bool = False, format: str = "ckpt", **kwargs: Any,
) -> None:  # fmt: skip
    """Write parameters to a file. Its folder is created, and its name gets `.safetensors` if it has no suffix.

    The name determines the format: `.ckpt` is MindSpore's, all else safetensors.

    Args:
        save_obj: a Cell, a dict of tensors by name, or a list of {"name": ..., "data": ...}.
        integrated_save: global parameters; all ranks must call this together. False: this rank's slices, and every rank
            needs its own file name.
        async_save: write while the script continues; True, "thread" and "process" are a thread.
        append_dict: numbers, tensors and texts to add. choice_func: which names to save.
        crc_check: a checksum at the end of a `.ckpt` file. Safetensors always have one for every tensor.
        format: "ckpt" or "safetensors"; a suffix of the name already determines it.

    Raises TypeError if `save_obj` is none of these, or has other values than tensors; ValueError if an argument has no
    use; MspcError if the file cannot be written.
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
    """Write a file of values in the format of its name. Raise MspcError if it cannot be written."""
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
    """Return the background writer of this rank's files."""
    session = state.current()
    if session.background is None:
        session.background = Background()
    return session.background


def async_ckpt_thread_status() -> bool:
    """Return whether a checkpoint is being written."""
    found = state.current().background
    return found is not None and found.is_busy


def load_checkpoint(
    ckpt_file_name: str, net: Cell | None = None, strict_load: bool = False, filter_prefix: Any = None,
    dec_key: Any = None, dec_mode: str = "AES-GCM", specify_prefix: Any = None,
    choice_func: Callable[[str], bool] | None = None, crc_check: bool = False, remove_redundancy: bool = False,
    format: str = "ckpt", name_map: Mapping[str, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the parameters of a checkpoint by name; with `net` also load them into it.

    Values are read when they are needed: a parameter that a graph trains in slices reads its slice. A file with the
    slices of one rank has tensors of their shapes.

    Args:
        ckpt_file_name: a file (safetensors, MindSpore's `.ckpt`), the folder or index of a set, a folder with
            checkpoints of one prefix, of which the newest is used, or the index of sharded safetensors in Hugging
            Face's format.
        strict_load: see `load_param_into_net`. filter_prefix, specify_prefix: of names to skip, or to load.
        crc_check: read everything now and compare checksums, which is otherwise done at reading.
        remove_redundancy: changes nothing: a set knows the files of its slices.
        format: "ckpt" or "safetensors"; the file itself states its format.
        name_map: names by names of the checkpoint; other names are unchanged.

    Raises MspcError if there is no such file, or it is no checkpoint; ValueError if all its names are filtered out, or
    an argument has no use.
    """
    check_format("load_checkpoint", format)
    _check_options("load_checkpoint", dec_key, {})
    if remove_redundancy:
        say_once("load_checkpoint remove_redundancy", "load_checkpoint(remove_redundancy=True) has no effect: if "
                 "slices were written once, give the set, which has their positions")  # fmt: skip
    source = open_checkpoint(_existing(ckpt_file_name), crc_check)
    source = with_slices_as_tensors(source)
    source.prefer = state.current().rank
    say_what_is_unchecked(source)
    if crc_check:
        wrong = next((text for _, text in source.verified() if text), "")
        if wrong:
            raise MspcError(f"load_checkpoint: {wrong}")
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


def load_param_into_net(
    net: Cell, parameter_dict: Mapping[str, Any], strict_load: bool = False, remove_redundancy: bool = False
) -> tuple[list[str], list[str]]:
    """Assign the values in a dict to a network's parameters.

    Returns: (names of the network that the dict lacks, names of the dict that the network lacks). If no name fits, a
        prefix that all of the dict's names lack or share is tried. After `Model.infer_train_layout` values may be the
        slices that this rank has written.

    Raises:
        TypeError: an argument is of the wrong kind. ValueError: a shape or element type does not fit; with
            `strict_load` no conversion between floats either. All mismatches are listed, and nothing is loaded.
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
        more = [f"and {len(wrong) - MAX_LISTED} more"] if len(wrong) > MAX_LISTED else []
        raise ApiValueError(
            f"load_param_into_net: {'these may be slices of one rank: ' * bool(slices)}{wrong[0]}",
            [*wrong[1:MAX_LISTED], *more, *slices], code="E0602",
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


def _of_slices(wanted: Mapping[str, Parameter], given: Mapping[str, Any]) -> list[str]:
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
        "a network with the sharding of the saved one takes the rank's own file after Model.infer_train_layout or "
        "Model.build",
    ]


def _mismatch(parameter: Parameter, value: Any, strict: bool) -> str:
    """Return why a parameter cannot have a value, or "" if it can."""
    tensor = value if isinstance(value, Tensor) else np.asarray(value)
    alike = tuple(tensor.shape) == parameter.shape or tensor.size == parameter.size == 1
    if not alike and _layout_of_slice(parameter, value) is None:
        return f"parameter '{parameter.name}' has shape {parameter.shape}, the checkpoint {tuple(tensor.shape)}"
    kind = dtype_of(tensor.dtype)
    if kind != parameter.dtype and (strict or kind.kind != parameter.dtype.kind):
        return f"parameter '{parameter.name}' is {parameter.dtype}, in the checkpoint {kind}"
    return ""


def _layout_of_slice(parameter: Parameter, value: Any) -> Layout | None:
    """Return a parameter's layout if a value is this rank's slice in it, else None."""
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
    """Warn once if checksums cannot be computed here, or if the file is older than checksums of headers."""
    kinds = {p.checksum for stored in source.tensors.values() for p in stored.pieces if p.checksum}
    if kinds and source.unchecked():
        why = "the library xxhash is not installed"
        say_once("checksums", f"{source.name} has checksums that cannot be compared here: {why}")
    elif not source.is_sealed:
        why = "it was written when headers had no checksums"
        say_once("headers", f"what {source.name} says of its tensors and its run is compared with nothing: {why}")


def _existing(name: Any) -> Path:
    """Return the file or folder for a script's name of a checkpoint; a `.ckpt` name may refer to a safetensors file."""
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
    """Return the path with `.safetensors` appended, unless it has a checkpoint's suffix."""
    if str(name).endswith((SUFFIX, CKPT)):
        return Path(name)
    return Path(f"{name}{SUFFIX}")


def check_format(function: str, format: Any) -> None:
    """Raise ValueError for an unknown format."""
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


def load_torch(
    file_name: str | os.PathLike[str], returns: str | None = None, sizes: Any = None, precision: str = ""
) -> Cell:
    """Return the network that `torch.export.save` has written, as a cell; PyTorch is not needed.

    Its parameters have the module's names and are read when a run needs them. It is called, wrapped and trained like
    any cell; arguments may have the names of `forward`.

    Args:
        file_name: the exported program, `model.pt2`.
        returns: the result of `forward` that the cell returns, by its name or path (`loss`, `0`); None for all.
        sizes: numbers for open sizes, by dimension or symbol: `{"x.0": 64}`. Other sizes are the example's.
        precision: "bfloat16" or "float16", in which it computes as under `torch.autocast`; "" for none.

    Raises MspcError if the file cannot be read, has unknown operators, which are all listed, or there is no such
    precision; TypeError if file_name is no path, or sizes are no dictionary of integers.
    """
    if not isinstance(file_name, (str, os.PathLike)):
        raise ApiTypeError(f"load_torch takes the path of an exported program, not {type(file_name).__name__}")
    if sizes is not None and not (
        isinstance(sizes, Mapping) and all(isinstance(n, int) and not isinstance(n, bool) for n in sizes.values())
    ):
        raise ApiTypeError(f"load_torch: sizes must be a dictionary of integers, not {sizes!r:.60}")
    return backend().exported_network(Path(file_name), returns, sizes or {}, precision)
