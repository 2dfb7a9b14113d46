"""Checkpoints as safetensors files: parameters by name, read and written whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mspc.api.common.parameter import Parameter
from mspc.api.common.tensor import Tensor
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.nn.cell import Cell
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.tensors import StoredTensor, TensorFile, write_tensors
from mspc.ir.files.whole import make_folder, write_whole
from mspc.ir.types import TensorType, dtype_of

__all__ = ["load_checkpoint", "load_param_into_net", "save_checkpoint"]

SUFFIX = ".safetensors"


def save_checkpoint(
    save_obj: Any, ckpt_file_name: str, integrated_save: bool = True, async_save: Any = False,
    append_dict: Any = None,
    enc_key: Any = None, enc_mode: str = "AES-GCM", choice_func: Callable[[str], bool] | None = None,
    **_: Any,
) -> None:  # fmt: skip
    """Write parameters to a file; its folder is made, its name gets `.safetensors` when it has no suffix.

    Args:
        save_obj: a Cell, a dict of tensors by name, or a list of {"name": ..., "data": ...}.
        append_dict: numbers and tensors to add. choice_func: which names to save.

    Raises:
        TypeError: `save_obj` is nothing of these, or holds what is no tensor. MspcError: the file cannot be written.
    """
    entries = _entries(save_obj)
    for name, value in (append_dict or {}).items():
        entries[name] = value
    stored = [_stored(name, value) for name, value in entries.items() if choice_func is None or choice_func(name)]
    path = with_suffix(ckpt_file_name)
    try:
        make_folder(path.parent)
        write_whole(path, lambda file: write_tensors(file, stored))
    except MspcError as error:
        raise MspcError(f"save_checkpoint: {error.message}") from None


def _stored(name: Any, value: Any) -> StoredTensor:
    """An entry as it is written. Its values are taken here: all ranks do that together, while one may fail later."""
    if not isinstance(name, str):
        raise ApiTypeError(f"save_checkpoint: the name of a parameter must be a string, not {name!r}")
    array = np.array(value.fill_slices() if isinstance(value, Tensor) else value, order="C")
    try:
        type = TensorType(dtype_of(array.dtype), array.shape)
    except MspcError:
        raise ApiTypeError(f"save_checkpoint: {name!r} is {array.dtype}, which no tensor can be") from None
    return StoredTensor(name, type, lambda: array)


def load_checkpoint(
    ckpt_file_name: str, net: Cell | None = None, strict_load: bool = False, filter_prefix: Any = None,
    dec_key: Any = None, dec_mode: str = "AES-GCM", specify_prefix: Any = None,
    choice_func: Callable[[str], bool] | None = None, **_: Any,
) -> dict[str, Parameter]:  # fmt: skip
    """The parameters of a file by name; with `net` they are loaded into it too.

    Raises:
        MspcError: there is no such file, or it is no checkpoint. ValueError: nothing in it is wanted.
    """
    path = Path(ckpt_file_name)
    path = path if os.path.exists(path) or path.suffix else with_suffix(ckpt_file_name)
    leave_out = _prefixes(filter_prefix)
    take = _prefixes(specify_prefix)
    found: dict[str, Parameter] = {}
    for name, array in read_arrays(path).items():
        if (leave_out and name.startswith(leave_out)) or (take and not name.startswith(take)):
            continue
        if choice_func is None or choice_func(name):
            found[name] = Parameter(Tensor.from_array(array), name)
    if not found:
        raise ApiValueError(f"load_checkpoint: {str(path)!r} holds no parameter that is asked for")
    if net is not None:
        load_param_into_net(net, found, strict_load)
    return found


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file, in the order of their names. Raises MspcError for anything else."""
    try:
        file = TensorFile(path)
        return {name: file.read(name) for name in file.names}
    except FileNotFoundError:
        raise MspcError(f"there is no checkpoint {str(path)!r}") from None
    except OSError as error:
        raise MspcError(f"cannot read the checkpoint {str(path)!r}: {error.strerror}") from None
    except ValueError as error:
        raise MspcError(f"{str(path)!r} is no safetensors file: {error}") from None


def load_param_into_net(
    net: Cell, parameter_dict: Mapping[str, Any], strict_load: bool = False, remove_redundancy: bool = False
) -> tuple[list[str], list[str]]:
    """Give a network's parameters the values in a dict.

    Returns:
        (names of the network that the dict lacks, names of the dict that the network lacks). When no
        name fits, a prefix that all of the dict's names lack or share is tried.

    Raises:
        TypeError: an argument is of the wrong kind. ValueError: a shape or element type does not fit; with
            `strict_load` no conversion between floats either.
    """
    if not isinstance(net, Cell):
        raise ApiTypeError(f"load_param_into_net: net must be a Cell, not {type(net).__name__}")
    if not isinstance(parameter_dict, Mapping):
        raise ApiTypeError(
            f"load_param_into_net: parameter_dict must be a dict, not {type(parameter_dict).__name__}"
        )
    wanted = {parameter.name: parameter for parameter in net.get_parameters()}
    given = dict(parameter_dict)
    if wanted and given and not wanted.keys() & given.keys():
        given = _matched(given, wanted)
    for name, parameter in wanted.items():
        if name not in given:
            continue
        value = given[name]
        array = value.value if isinstance(value, Tensor) else np.asarray(value)
        if array.shape != parameter.shape and not (array.size == parameter.size == 1):
            raise ApiValueError(
                f"load_param_into_net: parameter '{name}' has shape {parameter.shape}, "
                f"the checkpoint {array.shape}"
            )
        kind = dtype_of(array.dtype)
        if kind != parameter.dtype and (strict_load or kind.kind != parameter.dtype.kind):
            raise ApiValueError(
                f"load_param_into_net: parameter '{name}' is {parameter.dtype}, in the checkpoint {kind}"
            )
        parameter.set_data(array.reshape(parameter.shape))
    missing = [name for name in wanted if name not in given]
    return missing, [name for name in given if name not in wanted]


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


def _entries(save_obj: Any) -> dict[str, Any]:
    if isinstance(save_obj, Cell):
        return {parameter.name: parameter for parameter in save_obj.get_parameters()}
    if isinstance(save_obj, Mapping):
        return dict(save_obj)
    if isinstance(save_obj, (list, tuple)):
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


def with_suffix(name: str) -> Path:
    """The path with `.safetensors` at its end."""
    if name.endswith((SUFFIX, ".ckpt")):
        return Path(name)
    return Path(name + SUFFIX)


def _prefixes(prefix: Any) -> tuple[str, ...]:
    if not prefix:
        return ()
    return (prefix,) if isinstance(prefix, str) else tuple(prefix)
