"""Checks that ranks that train together start equal: the initial values that several ranks hold, and optimizer
settings.

A parameter made by an initializer is compared by its recipe; an array of the script by a checksum of this rank's slice.
One small message tells whether all are equal. Only if they are not are the values compared and the differences named.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mspc.compiler.driver import Compiled
from mspc.engine.equal_values import SharedUpdates, compare_updates, first_difference, shared_updates
from mspc.ir.diagnostics import MspcError, ranks_listed
from mspc.ir.graph import Graph
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.printer import print_graph
from mspc.mindspore_api import state
from mspc.mindspore_api.common.parameter import HeldSlice, Parameter, StoredValue
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.nn.learning_rate_schedule import LearningRateSchedule
from mspc.mindspore_api.nn.optim.optimizer import Optimizer
from mspc.runtime.comm.agreement import gathered
from mspc.runtime.comm.interface import Communicator, fingerprint
from mspc.runtime.device_choice import RANK_LOCAL_MODES

Array = Any
LONGEST = 300
"""Maximum number of characters of a program line in a message."""
FEW = 4
"""Maximum number of values of a setting in a message."""
SAME = (
    "ranks that hold the same part of a parameter must begin with the same values: the same seed, the same files; "
    "or set_auto_parallel_context(parameter_broadcast=True) gives all of them those of rank 0",
    "in data_parallel mode, parameter_broadcast=False says that every rank is meant to have its own",
)
ALIKE = ("every rank must make its optimizer with the same settings: ranks that train together share every update",)


@dataclass(frozen=True)
class RankInitialValue:
    """Initial values of a parameter or constant on this rank.

    place: of its slice in the global tensor, as text; "" for the whole tensor. recipe: how an initializer makes the
    global tensor, None if the script passed an array. array: this rank's slice, in device memory. trained: whether
    gradients update it.
    """

    name: str
    kind: str
    place: str
    recipe: str | None
    array: Array
    trained: bool = True


def initial_of(name: str, kind: str, slices: Any, source: Any, array: Array) -> RankInitialValue | None:
    """Describe the initial values in `array` for a comparison; None for a parameter declared as different on each rank.
    source: the script's Parameter or InitialValue that made them, or an array."""
    initial = source.initial if isinstance(source, Parameter) else source
    if getattr(source, "layerwise_parallel", False):
        return None
    describe = getattr(initial, "description", None)
    described = None if describe is None else describe()
    place = "" if slices is None else str([(s.start, s.stop) for s in slices])
    trained = getattr(source, "requires_grad", True)
    return RankInitialValue(name, kind, place, None if described is None else repr(described), array, trained)


def settings_of(cells: Iterable[Any]) -> dict[str, str]:
    """Return the settings of a graph's optimizers and schedules, as text by name."""
    found: dict[str, str] = {}
    for number, cell in enumerate(c for c in cells if isinstance(c, Optimizer | LearningRateSchedule)):
        for name in _setting_names(type(cell)):
            text = _text(getattr(cell, name, None))
            if text:
                found[f"{number}:{type(cell).__name__}:{name}"] = text
    return found


def _setting_names(kind: type) -> list[str]:
    """Return the attributes of a cell class that are settings. A class of the script may have rank-dependent
    settings."""
    own = [base for base in kind.__mro__ if base.__module__.startswith("mspc.")]
    signatures = [inspect.signature(base.__init__).parameters for base in own if "__init__" in vars(base)]
    return sorted({"weight_decays", *(name for names in signatures for name in names)} - {"self"})


def _text(value: Any) -> str:
    """Return numbers and words as text, "" for anything else. A long sequence is shortened, followed by a checksum of
    all."""
    if isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, Parameter):
        if isinstance(value.initial, StoredValue | HeldSlice) or not value.is_here:
            return ""
        layout, value = value.part()
        if layout is not None:
            return ""
    elif isinstance(value, Tensor):
        value = value.array
    elif not (isinstance(value, tuple | list) and value and all(isinstance(v, bool | int | float) for v in value)):
        return ""
    array = np.asarray(value)
    shown = ", ".join(str(number) for number in array.reshape(-1)[:FEW])
    if array.size <= 1:
        return shown
    if array.size <= FEW:
        return f"[{shown}]"
    return f"[{shown}, ...] ({array.size} numbers, {hashlib.sha256(array.tobytes()).hexdigest()[:8]})"


def compare_settings(comm: Communicator, own: Mapping[str, str]) -> None:
    """Compare optimizer settings; all ranks call this together. Raise MspcError if they differ."""
    of_ranks: list[dict[str, str]] = gathered(comm, dict(own))
    for key in sorted({key for found in of_ranks for key in found}):
        having = [rank for rank, found in enumerate(of_ranks) if key in found]
        values = {rank: of_ranks[rank][key] for rank in having}
        if len(set(values.values())) > 1:
            _, kind, name = key.split(":", 2)
            raise MspcError(f"{name} of {kind} differs between ranks: {_listed(values)}", notes=ALIKE, code="E0805")


def _listed(values: Mapping[int, str]) -> str:
    """Return a text such as "0.1 on rank 0; 0.2 on ranks 1, 2"."""
    ranks: dict[str, list[int]] = {}
    for rank, value in values.items():
        ranks.setdefault(value, []).append(rank)
    return "; ".join(f"{value} on {ranks_listed(who, 8)}" for value, who in ranks.items())


def compare_initial_values(
    job: Any, compiled: Compiled, begun: Sequence[RankInitialValue], settings: Mapping[str, str]
) -> None:
    """Check that the ranks of a job start a graph with equal values; all ranks call this together. Raise MspcError if
    they do not."""
    mode, updates = compiled.config.mode, SharedUpdates()
    if job.size == 1 or mode in RANK_LOCAL_MODES:
        return
    if mode == "data_parallel":
        on_purpose = state.current().parallel.get("parameter_broadcast") is False
        updates = updates if on_purpose else shared_updates(compiled.graph)
        needed = [b for b in begun if (b.kind == "parameter" and b.trained) or b.name in updates.reads]
        begun = [] if on_purpose else needed
    with job.outside_user_code():
        _compare(job.meeting or job.aside, begun, settings, updates, job.hardware.memory.fetch)


def _compare(
    comm: Communicator, begun: Sequence[RankInitialValue], settings: Mapping[str, str], updates: SharedUpdates,
    fetch: Callable[[Array], Array],
) -> None:  # fmt: skip
    """Raise MspcError with the setting, the update, or the parameter and its first element that differs. fetch:
    converts an array of the job's device to NumPy."""
    digests = {b.name: [b.place, _digest(b, fetch)] for b in begun}
    alike = {name: found[1] for name, found in digests.items() if not found[0] or found[1].startswith("made")}
    apart = len(alike) < len(digests)
    mine = fingerprint(json.dumps([dict(settings), updates.digest, alike], sort_keys=True))
    everyone = tuple(range(comm.size))
    rows = comm.all_gather(np.array([[*mine, apart]], np.int64), everyone, 0)
    if not rows[:, -1].any() and (rows == rows[0]).all():
        return
    compare_settings(comm, settings)
    compare_updates(comm, updates)
    suspect = _differing_ranks(gathered(comm, digests))
    if not suspect:
        return
    known = {b.name: b for b in begun}
    own = {name: [known[name].place, _exact(fetch(known[name].array))] for name in suspect if name in known}
    exact = gathered(comm, own)
    for name, ranks in _differing_ranks(exact).items():
        raise _different(comm, known.get(name), name, ranks, fetch)


def _digest(begun: RankInitialValue, fetch: Callable[[Array], Array]) -> str:
    if begun.recipe is not None:
        return f"made {hashlib.sha256(begun.recipe.encode()).hexdigest()[:16]}"
    return f"brought {zlib.crc32(_bytes(fetch(begun.array))):08x}"


def _exact(array: Array) -> str:
    data = np.asarray(array)
    return f"{data.dtype} {data.shape} {hashlib.sha256(_bytes(data)).hexdigest()}"


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _differing_ranks(of_ranks: Sequence[Mapping[str, Sequence[str]]]) -> dict[str, tuple[int, int]]:
    """Return, by name, the first two ranks that hold the same slice of a tensor with different descriptions."""
    first: dict[tuple[str, str], int] = {}
    found: dict[str, tuple[int, int]] = {}
    for rank, said in enumerate(of_ranks):
        for name, (place, digest) in said.items():
            before = first.setdefault((name, place), rank)
            if digest != of_ranks[before][name][1]:
                found.setdefault(name, (before, rank))
    return dict(sorted(found.items()))


def _different(
    comm: Communicator, begun: RankInitialValue | None, name: str, ranks: tuple[int, int],
    fetch: Callable[[Array], Array],
) -> MspcError:  # fmt: skip
    """Return the error of two ranks that begin with different values; all ranks make it together."""
    first, other = ranks
    kind = gathered(comm, "" if begun is None else begun.kind)[other]
    place = first_difference(comm, None if begun is None else fetch(begun.array), ranks)
    where = ""
    if place is not None:
        which = f"element {place[0]}" if place[0] else "its value"
        where = f": {which} is {place[2]} there and {place[1]} on rank {first}"
    return MspcError(
        f"{kind} '{name}' begins with other values on rank {other} than on rank {first}, which hold the same part of "
        f"it{where}",
        notes=SAME,
    )


def different_programs(comm: Communicator, settings: Mapping[str, str], graph: Graph, error: MspcError) -> MspcError:
    """Return the `error` of ranks with different programs, extended by the first line that differs; all ranks call this
    together. Raise MspcError if optimizers have different settings."""
    compare_settings(comm, settings)
    found = _first_difference(comm, print_graph(graph))
    return MspcError(error.message, notes=[*([found] if found else []), *error.notes])


def _first_difference(comm: Communicator, text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if not line.startswith("compile_id")]
    sums = gathered(comm, [zlib.crc32(line.encode()) for line in lines])
    other = next((rank for rank, found in enumerate(sums) if found != sums[0]), None)
    if other is None:
        return ""
    length = max(len(sums[0]), len(sums[other]))
    at = next(i for i in range(length) if sums[0][i : i + 1] != sums[other][i : i + 1])
    said = gathered(comm, lines[at][:LONGEST] if at < len(lines) else "nothing more")
    return f"they differ first where rank 0 has `{said[0]}` and rank {other} `{said[other]}`"
