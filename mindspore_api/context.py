"""Settings of a script, `set_context` and `set_auto_parallel_context`, and their frozen copy for a launch."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import field, make_dataclass, replace
from typing import Any, ClassVar

from mspc.ir.diagnostics import Location
from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api import checks, state
from mspc.mindspore_api.errors import ApiValueError
from mspc.mindspore_api.setting_kind import (
    CallSite,
    Places,
    Table,
    checked,
    first_place,
    name_of,
    note_asked,
    note_places,
    unknown,
    with_entries,
)
from mspc.mindspore_api.settings import (
    CONTEXT,
    GENERAL_FIELDS,
    MODES,
    OFFLOAD,
    PARALLEL,
    SHARDED,
    STAGE,
    frozen_settings,
)

GRAPH_MODE = 0
PYNATIVE_MODE = 1
STRICT, COMPATIBLE, LAX = 0, 1, 2
"""How much of Python a compiled function may use, as MindSpore counts: `jit_syntax_level`."""


class ParallelMode:
    """The ways to spread a network over ranks."""

    STAND_ALONE = "stand_alone"
    DATA_PARALLEL = "data_parallel"
    HYBRID_PARALLEL = "hybrid_parallel"
    SEMI_AUTO_PARALLEL = "semi_auto_parallel"
    AUTO_PARALLEL = "auto_parallel"
    MODE_LIST: ClassVar[list[str]] = list(MODES)


def _frozen_value(value: Any) -> Any:
    """Return the value in hashable form."""
    if isinstance(value, Mapping):
        return tuple((key, _frozen_value(item) if isinstance(item, Mapping) else item) for key, item in value.items())
    return tuple(value) if isinstance(value, list) else value


_Settings = make_dataclass(
    "_Settings",
    [
        (name, Any, _frozen_value(setting.attribute_of(setting.default) if name in GENERAL_FIELDS else setting.default))
        for name, setting in frozen_settings().items()
    ],
    init=False, repr=False, eq=False, frozen=True, namespace={"__doc__": "Settings."},
)  # fmt: skip  # `FrozenContext` has these methods for all fields
_CONDITIONAL = {name: setting for name, setting in with_entries(CONTEXT | PARALLEL | STAGE) if setting.is_conditional}


@dataclass(frozen=True)
class FrozenContext(_Settings):
    """Context for the compiler at the launch of a graph. Its fields are those of `frozen_settings` and

    training: the launched cell is in training mode.
    asked: (name, text in the script, line) of the settings that change nothing under some conditions.
    set_at: (name, line) of the settings that the script set; it does not affect equality.

    device_num: 0 if the script set none. search_mode: "" if none was set.
    dataset_strategy: "data_parallel", "full_batch" or one tuple (or layout) per input.
    optimizer_threshold: in KiB; optimizer_shard_size: -1 for all replicas.
    matmul_allow_tf32, conv_allow_tf32: whether Float32 matmuls and convolutions on a GPU may round their operands to
    TF32, from `gpu_config`. deterministic: use only kernels that give the same bits in every run.
    """

    training: bool = False
    asked: tuple[tuple[str, str, str], ...] = ()
    set_at: Places = field(default=(), compare=False, repr=False)

    @property
    def full_batch(self) -> bool:
        return self.dataset_strategy == "full_batch"

    def place_of(self, *names: str) -> Location | None:
        """Return the line that set the first of these settings that the script set, or None."""
        return first_place(self.set_at, *names)

    def changing_nothing(self, command: str, device: str) -> list[tuple[str, str]]:
        """Return (name, message) of every setting of the script that changes nothing in this launch.

        command: "compile" or "run". device: "CPU" or "GPU".
        """
        on = (name for name in PARALLEL if getattr(self, name, None) is True)
        enabled = frozenset([*on, *(["pipeline_stages"] if self.pipeline_stages > 1 else [])])
        place = CallSite(command, self.parallel_mode, device, enabled)
        found: list[tuple[str, str]] = []
        for name, shown, line in self.asked:
            why = _CONDITIONAL[name].without_effect(place)
            if why:
                found.append((name_of(shown), f"{line}{shown} changes nothing here: {why}"))
        return found


def _values(table: Table, given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: given.get(key, setting.default) for key, setting in table.items()}


def set_context(**values: Any) -> None:
    """Set general options: `mode`, `device_target`, `save_graphs` (False, True or 0 to 3), `save_graphs_path`, ...
    Raise ValueError for an unknown key or value; TypeError if a value has the wrong type."""
    found = checked("set_context", CONTEXT, values)
    session = state.current()
    note_asked(session.asked, "set_context", CONTEXT, found)
    note_places(session.set_at, CONTEXT, found)
    session.general.update(found)


def get_context(attr_key: str) -> Any:
    """Return the value of one option of `set_context`. Raise ValueError for an unknown key."""
    if attr_key not in CONTEXT:
        raise unknown("get_context", attr_key, CONTEXT)
    return state.current().general.get(attr_key, CONTEXT[attr_key].default)


def set_auto_parallel_context(**values: Any) -> None:
    """Set options of parallel training. Raise ValueError for an unknown key or value; TypeError if a value has the
    wrong type."""
    found = checked("set_auto_parallel_context", PARALLEL, values)
    session = state.current()
    note_asked(session.asked, "set_auto_parallel_context", PARALLEL, found)
    if "full_batch" in found:
        found["full_batch_is_set"] = True
        found.setdefault("dataset_strategy", "full_batch" if found["full_batch"] else "data_parallel")
    if "dataset_strategy" in found:
        found["full_batch"] = found["dataset_strategy"] == "full_batch"
    if "auto_parallel_search_mode" in found:
        found.setdefault("search_mode", found["auto_parallel_search_mode"])
    if found.get("sharding_propagation"):
        found.setdefault("search_mode", "sharding_propagation")
    note_places(session.set_at, PARALLEL, found)
    session.parallel.update(found)


def get_auto_parallel_context(attr_key: str) -> Any:
    """Return the value of one option of `set_auto_parallel_context`; device_num and global_rank come from the launcher.
    Raise ValueError for an unknown key."""
    session = state.current()
    if attr_key not in PARALLEL:
        return _entry(attr_key, "get_auto_parallel_context")
    value = session.parallel.get(attr_key, PARALLEL[attr_key].default)
    if attr_key == "device_num":
        return session.size if session.launched or not value else value
    if attr_key == "global_rank":
        return session.rank
    return checks.FUSED_BY_DEFAULT | value if attr_key == "comm_fusion" else value


def _entry(name: str, function: str) -> Any:
    """Return the value of an entry of the options that are dicts. Raise ValueError for an unknown name."""
    for key, setting in PARALLEL.items():
        for entry in setting.entries:
            if entry.name == name:
                return (state.current().parallel.get(key) or {}).get(name, entry.default)
    raise unknown(function, name, PARALLEL)


def reset_auto_parallel_context() -> None:
    """Reset every option of `set_auto_parallel_context` to its default."""
    session = state.current()
    session.parallel.clear()
    for name, _ in with_entries(PARALLEL):
        session.asked.pop(name, None)
        session.set_at.pop(name, None)


_reset_auto_parallel_context = reset_auto_parallel_context
"""MindSpore's older name."""


def set_ps_context(**values: Any) -> None:
    """Raise ValueError: parameter servers are not supported."""
    raise ApiValueError("set_ps_context: parameter servers are not supported")


def set_offload_context(offload_config: Mapping[str, Any]) -> None:
    """Choose values to offload from device memory. Nothing is offloaded here; one warning says that other entries
    change nothing. It is an older name, which MindSpore 2.10 no longer has. Raise ValueError for an unknown entry or
    value; TypeError if a value has the wrong type."""
    given = checks.mapping("offload_config", offload_config)
    state.current().offload.update(checked("set_offload_context", OFFLOAD, given))


def get_offload_context() -> dict[str, Any]:
    """Return the entries of `set_offload_context`, sizes in bytes."""
    return _values(OFFLOAD, state.current().offload)


def is_graph_mode() -> bool:
    """Return whether the script has chosen graph mode. The default is PyNative mode, as in MindSpore."""
    return state.current().general.get("mode", PYNATIVE_MODE) == GRAPH_MODE


def freeze(target: Any = None) -> FrozenContext:
    """Return the current context for the compiler.

    `target` is the cell or function to launch. An `AutoParallel` cell has its own options: its attribute
    `parallel_settings`, a dict with keys of `set_auto_parallel_context`, and `asked` and `set_at`, the text and the
    lines in the script. A function returned by `shard` takes global inputs, unless the script sets a dataset strategy.
    """
    session = state.current()
    settings = getattr(target, "parallel_settings", None)
    # Every call of a network comes here, and the result hardly ever changes.
    made_from = (session.parallel, session.general, bool(getattr(target, "training", False)), settings)
    unsaid = settings is None and "dataset_strategy" not in session.parallel
    if unsaid and getattr(target, "takes_global_inputs", False) and session.parallel.get("parallel_mode") in SHARDED:
        made_from = ({**session.parallel, "dataset_strategy": "full_batch"}, *made_from[1:])
    if session.frozen is not None and session.frozen[0] == made_from:
        return session.frozen[1]
    own, places = session.asked, session.set_at
    if settings is not None:
        own = own | target.asked
        places = {name: place for name, place in places.items() if name.partition("[")[0] not in settings}
        places |= target.set_at
    found = replace(_frozen(*made_from, own), set_at=tuple(places.items()))
    session.frozen = deepcopy(made_from), found
    return found


def share_a_run(network: Any) -> bool:
    """Return whether several ranks work on one run of `network`, and not each on one of its own."""
    return state.current().size > 1 and freeze(network).parallel_mode != ParallelMode.STAND_ALONE


def feeds_own_rows(network: Any) -> bool:
    """Return whether ranks have a loss of their own each, of their own rows."""
    modes = (ParallelMode.DATA_PARALLEL, ParallelMode.HYBRID_PARALLEL)
    return share_a_run(network) and freeze(network).parallel_mode in modes


def _frozen(
    parallel: Mapping[str, Any], general: Mapping[str, Any], training: bool, settings: Mapping[str, Any] | None,
    asked: Mapping[str, tuple[str, str]],
) -> FrozenContext:  # fmt: skip
    parallel, general = _values(PARALLEL, {**parallel, **(settings or {})}), _values(CONTEXT, general)
    values: dict[str, Any] = parallel | {name: CONTEXT[name].attribute_of(general[name]) for name in GENERAL_FIELDS}
    values["optimizer_shard_size"] = parallel["optimizer_weight_shard_size"]
    for table, given in ((CONTEXT, general), (PARALLEL, parallel)):
        for key, setting in table.items():
            values |= {e.frozen_name: given[key][e.name] for e in setting.entries if e.name in given[key]}
    known = frozen_settings()
    defaulted = {name for name, value in parallel.items() if value == PARALLEL[name].default}
    return FrozenContext(
        **{name: _frozen_value(value) for name, value in values.items() if name in known},
        training=training,
        asked=tuple((name, *written) for name, written in asked.items() if name not in defaulted),
    )
