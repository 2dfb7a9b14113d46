"""Merges the strategy files of the stages of a pipeline."""

from __future__ import annotations

import os
from pathlib import Path

from mspc.api.errors import caller_location
from mspc.api.parallel.checkpoint_transform import strategy_path
from mspc.ir.diagnostics import MspcError
from mspc.plans.files.stage_files import merged_stages
from mspc.plans.files.strategy_file import write_strategies

__all__ = ["merge_pipeline_strategys"]


def merge_pipeline_strategys(src_strategy_dirs: str, dst_strategy_file: str) -> None:
    """Write one strategy file of those of all stages, from which a checkpoint of them is transformed.

    MindSpore's ranks write that of their stage; mspc writes one of all stages, which may be merged all the same.

    Args:
        src_strategy_dirs: a folder with strategy files, all `.ckpt` or all `.json`; of several of one stage, which are
            alike, one counts. dst_strategy_file: the file to write: JSON where its name ends in `.json`.

    Raises:
        NotADirectoryError: there is no such folder. ValueError: it has files of both formats or none, a file that says
            nothing, or two of one stage that differ. TypeError: an argument is no path.
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
