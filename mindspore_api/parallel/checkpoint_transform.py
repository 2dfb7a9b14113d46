"""Checkpoints for other strategies: the ranks' files to read, merge and rewrite."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mspc.checkpoint.files import atomic_publication
from mspc.checkpoint.sets import open_checkpoint
from mspc.checkpoint.sliced import (
    FORMATS,
    check_divides,
    check_replicated,
    in_threads,
    layouts_in,
    needed_ranks,
    open_slices,
    rank_folders,
    ranks_of,
    write_part,
)
from mspc.checkpoint.stored_tensors import Checkpoint
from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api.common.parameter import Parameter, StoredValue
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.context import freeze
from mspc.mindspore_api.errors import ApiKeyError, ApiTypeError, ApiValueError, caller_location
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.parallel.auto_parallel import AutoParallel
from mspc.mindspore_api.setting_kind import say_once
from mspc.mindspore_api.train.serialization import load_param_into_net
from mspc.plans.files.strategy_file import (
    ParameterCut,
    layout_of,
    merged_stages,
    read_restore_ranks,
    read_strategies,
    write_strategies,
)

__all__ = [
    "build_searched_strategy", "load_distributed_checkpoint",
    "merge_pipeline_strategys", "merge_sliced_parameter", "rank_list_for_transform", "restore_group_info_list",
    "sync_pipeline_shared_parameters", "transform_checkpoint_by_rank", "transform_checkpoints",
]  # fmt: skip


class Row:
    """Row of integers, in the form of MindSpore's strategies: `dim`."""

    def __init__(self, numbers: Any) -> None:
        self.dim = list(numbers)


class ParallelLayouts:
    """Sharding of a parameter, with the names of MindSpore's strategy files."""

    def __init__(self, sharding: ParameterCut) -> None:
        self.sharding = sharding
        single = all(len(axes) < 2 for axes in sharding.tensor_map)
        flat = [axes[0] if axes else -1 for axes in sharding.tensor_map] if single else []
        self.dev_matrix = [Row(sharding.device_matrix)]
        self.tensor_map = [Row(flat)] if single else [Row(list(axes) or [-1]) for axes in sharding.tensor_map]
        self.param_split_shape = [Row(sharding.split_shape)]
        self.indices_offset = [Row(sharding.offsets)]
        self.field = sharding.field_size
        self.opt_weight_shard_step = sharding.optimizer_step
        self.opt_weight_shard_size = sharding.optimizer_size


def build_searched_strategy(strategy_filename: str) -> dict[str, ParallelLayouts]:
    """Return the sharding of every parameter from a strategy file. Raise TypeError if the name is no string, ValueError
    for no strategy file."""
    path = strategy_path("build_searched_strategy", "strategy_filename", strategy_filename)
    return {name: ParallelLayouts(sharding) for name, sharding in read_strategies(path).parameters.items()}


def restore_group_info_list(group_info_file_name: str) -> list[int]:
    """Return the ranks with the same slices as the one that wrote a file of groups. Raise TypeError if the name is no
    string, ValueError for no such file."""
    return read_restore_ranks(strategy_path("restore_group_info_list", "group_info_file_name", group_info_file_name))


def merge_sliced_parameter(sliced_parameters: Any, strategy: Mapping[str, Any] | None = None) -> Parameter:
    """Return the global parameter from the slices of all ranks in their order.

    Args:
        strategy: the result of `build_searched_strategy`; without it the slices are concatenated along dimension 0.

    Raises TypeError or ValueError if the slices do not fit each other or the strategy; KeyError if the strategy lacks
    the parameter.
    """
    name = "merge_sliced_parameter"
    if not isinstance(sliced_parameters, list) or not all(isinstance(p, Parameter) for p in sliced_parameters):
        raise ApiTypeError(f"{name} takes a list of Parameters, not {type(sliced_parameters).__name__}")
    if not sliced_parameters:
        raise ApiValueError(f"{name}: there is no slice")
    first = sliced_parameters[0]
    for index, other in enumerate(sliced_parameters):
        if other.name != first.name or other.shape[1:] != first.shape[1:] or other.ndim != first.ndim:
            raise ApiValueError(
                f"{name}: slice {index} is '{other.name}' of shape {other.shape}, slice 0 '{first.name}' of "
                f"{first.shape}"
            )
    arrays = [parameter.asnumpy() for parameter in sliced_parameters]
    merged = np.concatenate(arrays) if strategy is None else _merged(first.name, arrays, strategy)
    return Parameter(Tensor.from_array(merged), first.name, first.requires_grad, first.layerwise_parallel)


def _merged(name: str, arrays: list[np.ndarray], strategy: Mapping[str, Any]) -> np.ndarray:
    if not isinstance(strategy, Mapping):
        raise ApiTypeError(f"merge_sliced_parameter: strategy must be a dict, not {type(strategy).__name__}")
    if name not in strategy:
        raise ApiKeyError(f"merge_sliced_parameter: the strategy has no parameter '{name}'")
    layout = layout_of(name, _sharding(name, strategy[name]))
    if layout.ranks != len(arrays):
        raise ApiValueError(
            f"merge_sliced_parameter: the strategy has {layout.ranks} ranks, there are {len(arrays)} slices"
        )
    if len({array.shape for array in arrays}) > 1 or len(layout.dims) != arrays[0].ndim:
        raise ApiValueError(f"merge_sliced_parameter: slices of '{name}' do not have the shape that the strategy says")
    shape = tuple(n * c for n, c in zip(arrays[0].shape, layout.strategy, strict=True))
    merged = np.empty(shape, arrays[0].dtype)
    for rank, array in enumerate(arrays):
        merged[layout.slices_for(rank, shape)] = array
    return merged


def _sharding(name: str, given: Any) -> ParameterCut:
    if isinstance(given, ParallelLayouts):
        return given.sharding
    try:
        matrix, maps = list(given.dev_matrix[0].dim), [list(row.dim) for row in given.tensor_map]
        axes = [(a,) if a >= 0 else () for a in maps[0]] if len(maps) == 1 else [
            tuple(a for a in row if a >= 0) for row in maps if row
        ]  # fmt: skip
        return ParameterCut(
            tuple(matrix), tuple(axes), int(given.opt_weight_shard_step), int(given.opt_weight_shard_size)
        )
    except (AttributeError, IndexError, TypeError, ValueError):
        raise ApiValueError(f"the strategy of '{name}' is {given!r}, not a result of build_searched_strategy") from None


def rank_list_for_convert(rank_id: int, src_strategy_file: Any = None, dst_strategy_file: Any = None) -> list[int]:
    """Call `rank_list_for_transform`, with the name of newer scripts."""
    return rank_list_for_transform(rank_id, src_strategy_file, dst_strategy_file)


def rank_list_for_transform(rank_id: int, src_strategy_file: Any = None, dst_strategy_file: Any = None) -> list[int]:
    """Return the ranks, descending, with checkpoints that contain the slices of `rank_id` under another strategy.

    Args:
        src_strategy_file, dst_strategy_file: None for a network that is not sharded.

    Raises TypeError or ValueError if an argument is of the wrong kind, or no strategy file.
    """
    name = "rank_list_for_transform"
    _rank(name, rank_id)
    if src_strategy_file is None:
        return [0]
    source = layouts_in(strategy_path(name, "src_strategy_file", src_strategy_file))
    target = layouts_in(_optional(name, "dst_strategy_file", dst_strategy_file))
    if not source:
        raise ApiValueError(f"{name}: {src_strategy_file} says nothing of any parameter")
    return needed_ranks(rank_id % ranks_of(target), source, target)[::-1]


def transform_checkpoint_by_rank(
    rank_id: int, checkpoint_files_map: Mapping[int, str], save_checkpoint_file_name: str,
    src_strategy_file: Any = None, dst_strategy_file: Any = None,
) -> None:  # fmt: skip
    """Write the slices of one rank under another strategy.

    Args:
        checkpoint_files_map: files of the ranks that `rank_list_for_transform` lists. save_checkpoint_file_name: ends
            in `.ckpt` or `.safetensors`.

    Raises TypeError or ValueError if an argument is of the wrong kind; MspcError if a file is missing or damaged, or
    does not fit.
    """
    name = "transform_checkpoint_by_rank"
    _rank(name, rank_id)
    if not isinstance(checkpoint_files_map, Mapping) or not checkpoint_files_map:
        raise ApiTypeError(f"{name}: checkpoint_files_map must be a dict of files by rank")
    path = strategy_path(name, "save_checkpoint_file_name", save_checkpoint_file_name)
    format = path.suffix[1:]
    if format not in FORMATS:
        raise ApiValueError(
            f"{name}: save_checkpoint_file_name {save_checkpoint_file_name!r} ends in neither .ckpt nor .safetensors"
        )
    source = layouts_in(_optional(name, "src_strategy_file", src_strategy_file))
    target = layouts_in(_optional(name, "dst_strategy_file", dst_strategy_file))
    files = {_rank(name, rank): strategy_path(name, "file", file) for rank, file in checkpoint_files_map.items()}
    opened = open_slices(files, source)
    check_divides(opened, target)
    write_part(opened, target, rank_id, path, format)


def transform_checkpoints(
    src_checkpoints_dir: str, dst_checkpoints_dir: str, ckpt_prefix: str, src_strategy_file: Any = None,
    dst_strategy_file: Any = None, process_num: int = 1, output_format: str = "ckpt",
    on_rank: Callable[[int, int], object] = lambda done, ranks: None,
) -> None:  # fmt: skip
    """Rewrite a checkpoint for another strategy: `DST/rank_R/PREFIX R.FORMAT`, for one rank without a strategy file.
    The files of all ranks get their names together, once all are written.

    Args:
        src_checkpoints_dir: a folder with `rank_0`, `rank_1`, ..., of which the last file of each is used; or the
            folder of a set. process_num: number of ranks written at a time, by threads. on_rank: called with (number of
            ranks written, number of ranks).

    Raises TypeError or ValueError if an argument is of the wrong kind, or a strategy file does not fit; MspcError if a
    file is missing or damaged, or cannot be written.
    """
    name = "transform_checkpoints"
    folder, out = (strategy_path(name, "folder", given) for given in (src_checkpoints_dir, dst_checkpoints_dir))
    if not isinstance(ckpt_prefix, str) or not re.fullmatch(r"[^/\0]*", ckpt_prefix):
        raise ApiValueError(f"{name}: ckpt_prefix {ckpt_prefix!r} must be a string without '/'")
    if type(process_num) is not int or process_num < 1:
        raise ApiValueError(f"{name}: process_num {process_num!r} must be a positive integer")
    if output_format not in FORMATS:
        raise ApiValueError(f"{name}: output_format {output_format!r} is not one of 'ckpt', 'safetensors'")
    source = layouts_in(_optional(name, "src_strategy_file", src_strategy_file))
    target = layouts_in(_optional(name, "dst_strategy_file", dst_strategy_file))
    opened = open_folder(folder, source)
    check_divides(opened, target)
    ranks = ranks_of(target)

    with atomic_publication(out) as beside:

        def writer(rank: int) -> Callable[[], None]:
            path = beside / f"rank_{rank}" / f"{ckpt_prefix}{rank}.{output_format}"
            return lambda: write_part(opened, target, rank, path, output_format)

        in_threads([writer(rank) for rank in range(ranks)], process_num, lambda done: on_rank(done, ranks))


def open_folder(folder: Path, layouts: Mapping[str, Any], may_be_slices: bool = False) -> Checkpoint:
    """Return the checkpoint of a folder: a set, or files of all ranks in a folder each. may_be_slices: accept files
    without known layouts even if their values differ. Raise MspcError if the folder has no complete checkpoint."""
    if not os.path.isdir(folder):
        raise MspcError(f"there is no folder {str(folder)!r}")
    if any(p.is_dir() and re.fullmatch(r"rank_\d+", p.name) for p in folder.iterdir()):
        paths = dict(rank_folders(folder))
        ranks = ranks_of(layouts)
        missing = [rank for rank in range(ranks) if rank not in paths]
        if missing:
            said = f"; the strategy file has {ranks} ranks" if layouts else ""
            raise MspcError(f"{folder} has no checkpoint of rank {missing[0]}{said}")
        stages = (1 + max(paths)) // ranks if layouts else 1
        if layouts:
            paths = {rank: path for rank, path in paths.items() if rank < stages * ranks}
        found = open_slices(paths, layouts, str(folder))
        if layouts.keys().isdisjoint(found.tensors) and not may_be_slices:
            check_replicated(found)
        return found
    return open_checkpoint(folder)


def load_distributed_checkpoint(
    network: Any, checkpoint_filenames: Any = None, predict_strategy: Any = None, train_strategy_filename: Any = None,
    strict_load: bool = False, dec_key: Any = None, dec_mode: str = "AES-GCM", format: str = "ckpt",
    unified_safetensors_dir: Any = None, dst_safetensors_dir: Any = None, rank_id: int | None = None,
    output_format: str = "safetensors", name_map: Mapping[str, str] | None = None, max_process_num: int = 64,
    return_param_dict: bool = False,
) -> Any:  # fmt: skip
    """Load a checkpoint that ranks have written in slices into a network; every rank reads its slices, once its network
    is compiled.

    Args:
        network: a Cell. checkpoint_filenames: one for every rank, in order. predict_strategy: changes nothing, because
            layouts are those of the network.
        train_strategy_filename: the sharding of the files; by default `strategy_ckpt_load_file` of the context, or the
            file of an AutoParallel network. Safetensors of mspc need none.
        format: "ckpt" uses `checkpoint_filenames`, "safetensors" `unified_safetensors_dir`: a set, or sharded
            safetensors. name_map: names by names of the checkpoint.
        dst_safetensors_dir, rank_id, output_format, max_process_num: of written files; `transform_checkpoints` writes
            files.

    Returns: True; with `return_param_dict` the parameters by name.

    Raises TypeError or ValueError if an argument is of the wrong kind, or does not fit; MspcError if a file is missing
    or damaged.
    """
    name = "load_distributed_checkpoint"
    if format not in FORMATS or output_format not in FORMATS:
        raise ApiValueError(f"{name}: format {format!r} and output_format {output_format!r} must be 'ckpt' or "
                            "'safetensors'")  # fmt: skip
    if dec_key is not None:
        raise ApiValueError(f"{name}: encryption is not supported")
    if network is None or dst_safetensors_dir is not None or rank_id is not None:
        message = f"{name} loads into a network, and writes no files"
        raise ApiValueError(message, ["transform_checkpoints writes files for another strategy"])
    source = _distributed(name, network, checkpoint_filenames, train_strategy_filename, format, unified_safetensors_dir)
    renamed = {(name_map or {}).get(key, key): stored for key, stored in source.tensors.items()}
    source = Checkpoint(source.name, source.files, renamed, source.state, source.texts)
    if not isinstance(network, Cell):
        raise ApiTypeError(f"{name}: network must be a Cell, not {type(network).__name__}")
    if predict_strategy is not None:
        say_once(
            f"{name} predict_strategy",
            f"{name}: predict_strategy changes nothing here: every rank reads the slices that the network has on it",
        )
    found = {key: Parameter(Tensor(StoredValue(source, key)), key) for key in source.tensors}
    missing, _ = load_param_into_net(network, found, strict_load)
    if missing:
        say_once(f"{name} missing", f"{name}: the checkpoint has no {', '.join(missing[:5])}; these keep their values")
    return found if return_param_dict else True


def _strategy_of(network: Any) -> str | None:
    """Return the strategy file set in the context, or in an AutoParallel network, or None."""
    found = freeze(network)
    written = found.strategy_save_file or found.strategy_ckpt_save_file if isinstance(network, AutoParallel) else ""
    return found.strategy_load_file or found.strategy_ckpt_load_file or (os.path.isfile(written) and written) or None


def _distributed(name: str, network: Any, files: Any, strategy: Any, format: str, folder: Any) -> Checkpoint:
    if format == "safetensors":
        if folder is None:
            raise ApiValueError(f"{name}: format 'safetensors' needs unified_safetensors_dir")
        for key, value in (("checkpoint_filenames", files), ("train_strategy_filename", strategy)):
            if value is not None:
                raise ApiValueError(f"{name}: {key} goes with format 'ckpt', not with unified_safetensors_dir")
        return open_checkpoint(strategy_path(name, "unified_safetensors_dir", folder))
    if not isinstance(files, (list, tuple)) or not files:
        raise ApiTypeError(f"{name}: checkpoint_filenames must be a list of files, one for every rank")
    paths = {rank: strategy_path(name, "checkpoint_filenames", file) for rank, file in enumerate(files)}
    layouts = layouts_in(_optional(name, "train_strategy_filename", strategy or _strategy_of(network)))
    others = {rank: path for rank, path in paths.items() if layouts and rank >= ranks_of(layouts)}
    if layouts and (len(paths) % ranks_of(layouts) or (others and not _has_stages(paths, set(others)))):
        raise ApiValueError(f"{name}: the strategy file has {ranks_of(layouts)} ranks, there are {len(paths)} files")
    return open_slices(paths, layouts)


def _has_stages(paths: Mapping[int, Path], later: set[int]) -> bool:
    """Return whether files of later ranks have tensors that those of the first stage lack."""
    names = {rank: set(open_checkpoint(path).tensors) for rank, path in paths.items()}
    first = set[str]().union(*(found for rank, found in names.items() if rank not in later))
    return any(names[rank] - first for rank in later)


def _rank(name: str, rank: Any) -> int:
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0:
        raise ApiTypeError(f"{name}: a rank is an integer from 0 on, not {rank!r}")
    return rank


def strategy_path(name: str, what: str, given: Any) -> Path:
    """Return a path that a script passes to the function `name` as `what`. Raise TypeError if it is no path."""
    if not isinstance(given, (str, os.PathLike)):
        raise ApiTypeError(f"{name}: {what} must be a string, not {type(given).__name__}")
    return Path(given)


def _optional(name: str, what: str, given: Any) -> Path | None:
    return None if given is None else strategy_path(name, what, given)


def merge_pipeline_strategys(src_strategy_dirs: str, dst_strategy_file: str) -> None:
    """Merge the strategy files of all stages into one, for the transformation of their checkpoint.

    MindSpore's ranks write the file of their stage; mspc writes one for all stages, which may be merged, too.

    Args:
        src_strategy_dirs: a folder with strategy files, all `.ckpt` or all `.json`; of several equal files of one
            stage, one is used. dst_strategy_file: the file to write: JSON if its name ends in `.json`.

    Raises NotADirectoryError if there is no such folder; ValueError if it has files of both formats or none, an empty
    file, or two of one stage that differ; TypeError if an argument is no path.
    """
    name = "merge_pipeline_strategys"
    folder = strategy_path(name, "src_strategy_dirs", src_strategy_dirs)
    target = Path(os.path.abspath(strategy_path(name, "dst_strategy_file", dst_strategy_file)))
    if not folder.is_dir():
        raise MspcError(
            f"src_strategy_dirs {src_strategy_dirs} is not a directory.", caller_location(), kind=NotADirectoryError
        )
    found = {suffix: sorted(folder.glob(f"*{suffix}")) for suffix in (".ckpt", ".json")}
    if all(found.values()):
        raise _refused("The strategys format should be all '.ckpt' or all '.json'")
    files = found[".ckpt"] or found[".json"]
    if not files:
        raise _refused(f"{name}: {src_strategy_dirs} has no strategy file, .ckpt or .json")
    write_strategies(target, merged_stages(files))


def _refused(message: str) -> MspcError:
    return MspcError(message, caller_location(), kind=ValueError)


def sync_pipeline_shared_parameters(net: Any) -> None:
    """Do nothing: all stages that read a parameter begin with the same value, and every update adds up the gradients of
    all of them.

    Raises TypeError if `net` is no Cell.
    """
    if not isinstance(net, Cell):
        raise ApiTypeError(f"sync_pipeline_shared_parameters: net must be a Cell, not {type(net).__name__}")
