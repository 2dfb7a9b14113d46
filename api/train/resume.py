"""A run resumes from its newest checkpoint, as if it had never ended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mspc.api import call_handler, state
from mspc.api.common.parameter import Parameter
from mspc.api.common.stored_value import StoredValue
from mspc.api.common.tensor import Tensor
from mspc.api.errors import ApiRuntimeError, ApiTypeError, ApiValueError
from mspc.api.nn.cell import Cell
from mspc.api.setting_kind import say_once
from mspc.api.train.model import Model
from mspc.api.train.rank_agreement import share_a_run
from mspc.api.train.run_state import restore
from mspc.api.train.serialization import MOST_LISTED, load_param_into_net, say_what_is_unchecked
from mspc.checkpoint.opening import open_checkpoint, own_state
from mspc.checkpoint.sets import CALLED, FoundCheckpoint, find_sets, of_mindspores_format, prefixes_in, unreadable
from mspc.checkpoint.stored_tensors import Checkpoint
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import shown_path
from mspc.ir.late_dataclass import dataclass

__all__ = ["Resumed", "resume_training"]

FINDS = "looks for the newest checkpoint"
MUST_HAVE = "ranks with folders of their own must all have saved it; give `checkpoint`"
DEFAULT_PREFIX = "CKP"
TOGETHER = "all ranks resume from one checkpoint: call resume_training on every rank"


@dataclass(frozen=True)
class Resumed:
    """Where a run resumes.

    epoch, step: the last step that was saved; 0 for a run that begins. initial_epoch: for Model.train: epochs that are
    done. total_step: steps in all. file: the checkpoint, "" where there was none.
    """

    epoch: int = 0
    step: int = 0
    initial_epoch: int = 0
    total_step: int = 0
    file: str = ""


def resume_training(
    network: Any, directory: Any = ".", prefix: str | None = None, train_dataset: Any = None, checkpoint: Any = None
) -> Resumed:
    """Load the newest complete checkpoint that `ModelCheckpoint(prefix, directory)` has written, if there is one.

    Without `prefix` it is that of the folder's checkpoints.

    Parameters, states of the optimizer, counters and the loss scale, random numbers and the data set's position are
    those of the moment at which it was saved. Every rank reads its slices, whatever ranks and strategies wrote them.
    The run resumes with `model.train(epochs, data, ..., initial_epoch=resumed.initial_epoch)`.

    Args:
        network: the Model, or the training network. directory, prefix: where the checkpoints are.
        train_dataset: is read on from where it was. checkpoint: this one, not the newest.

    Returns:
        how far the run is.

    Raises:
        ValueError: the checkpoint is of another network; all names and shapes that differ are listed. Or the folder has
        checkpoints, but none of `prefix`, or, without one, of several.
        MspcError: the checkpoint is damaged. TypeError: an argument is of the wrong kind.
    """
    target = network.train_network if isinstance(network, Model) else network
    if not isinstance(target, Cell):
        raise ApiTypeError(f"resume_training takes a Model or a Cell, not {type(network).__name__}")
    if not isinstance(prefix, str | None):
        raise ApiTypeError(f"resume_training: prefix must be a string, not {prefix!r}")
    folder = Path(str(directory))
    if checkpoint is not None:
        path = Path(str(checkpoint))
        called = CALLED.fullmatch(path.name)
        prefix = prefix if prefix is not None else called[1] if called else DEFAULT_PREFIX
    else:
        prefix = _prefix_of(folder, prefix)
        found = _newest(folder, prefix, share_a_run(target))
        if found is None:
            return Resumed()
        path = found
    source = open_checkpoint(path)
    source.prefer = state.current().rank
    say_what_is_unchecked(source)
    _load(target, source)
    done = _restored(source, train_dataset, str(path))
    state.current().resumed.add((os.path.realpath(folder), prefix))
    return done


def _prefix_of(folder: Path, given: str | None) -> str:
    """The prefix of the checkpoints to resume from. Raises ValueError where others are in the folder, or several do:
    a run that begins there would end by writing over what somebody meant to resume from."""
    there = prefixes_in(folder)
    if given in there or not there:
        prefix = DEFAULT_PREFIX if given is None else given
    elif given is None and len(there) == 1:
        prefix = there[0]
    else:
        newest = [(prefix, find_sets(folder, prefix)) for prefix in there]
        listed = [f"{prefix!r}, the newest {found[-1].path.name}" for prefix, found in newest if found]
        listed += [f"{prefix!r}, all damaged" for prefix, found in newest if not found]
        none = f"{shown_path(folder)} has no checkpoint of prefix {given!r}, and some of"
        several = f"{shown_path(folder)} has checkpoints of {len(there)} prefixes:"
        raise ApiValueError(
            f"resume_training: {several if given is None else none} {'; '.join(listed[:MOST_LISTED])}",
            [f"say which: prefix={there[0]!r}; a run that is to begin needs a folder without checkpoints"],
        )
    files = of_mindspores_format(folder, prefix)
    if files and not there:
        raise ApiValueError(
            f"resume_training: {shown_path(folder / files[-1])} is of MindSpore's format, which does not say where its "
            "run stood",
            ["load it with load_checkpoint, and write safetensors, which do; or begin in a folder without checkpoints"],
        )
    return prefix


def _newest(folder: Path, prefix: str, together: bool) -> Path | None:
    """The newest checkpoint that all ranks see."""
    found: list[FoundCheckpoint] = find_sets(folder, prefix)
    for other in unreadable(folder, prefix, found):
        why = "it is damaged, cannot be read, or does not say where its run stood"
        say_once(f"resume_training {other}", f"resume_training passes over {other}: {why}")
    last = found[-1].sequence if found else 0
    if together:
        of_ranks = call_handler.current().of_all_ranks(float(last), FINDS, TOGETHER)
        without = [rank for rank, number in enumerate(of_ranks) if not number]
        if 0 < len(without) < len(of_ranks):
            raise MspcError(
                f"resume_training: rank {without[0]} finds no checkpoint to resume from, and "
                f"{len(of_ranks) - len(without)} of {len(of_ranks)} ranks find one",
                notes=[f"rank {state.current().rank} looks in {shown_path(folder)}", MUST_HAVE],
            )
        last = int(min(of_ranks))
    fitting = [entry.path for entry in found if entry.sequence == last]
    if last and not fitting:
        raise MspcError(
            f"resume_training: rank {state.current().rank} finds no checkpoint number {last} in {folder}",
            notes=[MUST_HAVE],
        )
    return fitting[-1] if fitting else None


def _load(network: Cell, source: Checkpoint) -> None:
    """Raises ValueError where the checkpoint is of another network."""
    values = {name: Parameter(Tensor(StoredValue(source, name)), name) for name in source.tensors}
    wanted = {parameter.name: parameter for parameter in network.get_parameters()}
    wrong = [f"it has no parameter '{name}'" for name in wanted if name not in values]
    wrong += [
        f"parameter '{name}' has shape {parameter.shape}, in the checkpoint {values[name].shape}"
        for name, parameter in wanted.items()
        if name in values and values[name].shape != parameter.shape
    ]
    if not wrong:
        load_param_into_net(network, {name: values[name] for name in wanted})
        return
    unknown = [name for name in values if name not in wanted]
    wrong += [f"the network has no parameter '{name}'" for name in unknown]
    more = [f"and {len(wrong) - MOST_LISTED} more"] if len(wrong) > MOST_LISTED else []
    raise ApiValueError(
        f"resume_training: {source.name} is a checkpoint of another network", [*wrong[:MOST_LISTED], *more]
    )


def _restored(source: Checkpoint, dataset: Any, file: str) -> Resumed:
    saved: Any = source.state
    if not saved:
        raise ApiRuntimeError(
            f"resume_training: {file} does not say where its run stood", ["load it with load_checkpoint"]
        )
    try:
        own = own_state(source, state.current().rank)
        restore(saved, own)
        if not own:
            why = "where NumPy's and Python's generators stood: they continue as the script has them"
            say_once(f"resume_training own {file}", f"{file} does not say {why}")
        epoch, step, batches, total = (int(saved[key]) for key in ("epoch", "step", "batches", "total_step"))
        position = saved["data"]
        if dataset is not None and position is not None:
            dataset.set_init_step(int(position))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise MspcError(f"resume_training: the state of the run in {file} is damaged: {error}") from None
    return Resumed(epoch, step, epoch if step == batches else epoch - 1, total, file)
