"""`AutoParallel`: a cell around a network that determines its sharding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mspc.ir.diagnostics import Location
from mspc.mindspore_api.common.gradient import JitFunction
from mspc.mindspore_api.communication.group import require_init
from mspc.mindspore_api.context import ParallelMode
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.setting_kind import checked, note_asked, note_places
from mspc.mindspore_api.settings import AUTO_PARALLEL, LEVELS, PARALLEL, SPEED_UP, missing_file

_DEFAULTS: dict[str, Any] = {
    "search_mode": "",
    "dataset_strategy": "data_parallel",
    "gradients_mean": False,
    "enable_alltoall": True,
    "enable_parallel_optimizer": False,
    "comm_fusion": {},
}
"""Settings of the network that do not depend on `set_auto_parallel_context`."""
_MODES = {
    "semi_auto": (ParallelMode.SEMI_AUTO_PARALLEL, ""),
    "sharding_propagation": (ParallelMode.AUTO_PARALLEL, "sharding_propagation"),
    "recursive_programming": (ParallelMode.AUTO_PARALLEL, "recursive_programming"),
    "dynamic_programming": (ParallelMode.AUTO_PARALLEL, "dynamic_programming"),
}
LEVEL = "computation_communication_fusion_level"


class AutoParallel(Cell):
    """Runs `network` on all ranks, whatever `set_auto_parallel_context` says.

    Args:
        network: a Cell, or a function such as a training step.
        parallel_mode: "semi_auto", "sharding_propagation", "recursive_programming" or "dynamic_programming".

    Raises RuntimeError if `init()` was not called; TypeError or ValueError if an argument is of the wrong kind.
    """

    def __init__(self, network: Any, parallel_mode: str = "semi_auto") -> None:
        super().__init__(auto_prefix=False)
        require_init("AutoParallel")
        if not isinstance(network, Cell) and not callable(network):
            raise ApiTypeError(f"AutoParallel: network must be a Cell or a function, not {type(network).__name__}")
        if parallel_mode not in _MODES:
            raise ApiValueError(f"AutoParallel: parallel_mode {parallel_mode!r} is not one of {', '.join(_MODES)}")
        self.network = network.fn if isinstance(network, JitFunction) else network
        mode, search = _MODES[parallel_mode]
        self.parallel_settings: dict[str, Any] = dict(_DEFAULTS, parallel_mode=mode)
        self.asked: dict[str, tuple[str, str]] = {}
        self.set_at: dict[str, Location] = {}
        if search:
            shown = f"AutoParallel(parallel_mode={parallel_mode!r})"
            self._set(shown, search_mode=search)

    def construct(self, *args: Any) -> Any:
        return self.network(*args)

    def wrapping(self, network: Any) -> AutoParallel:
        """Return an AutoParallel with the same settings around another network."""
        other = object.__new__(AutoParallel)
        Cell.__init__(other, auto_prefix=False)
        other.network = network
        other.parallel_settings = self.parallel_settings
        other.asked, other.set_at = self.asked, self.set_at
        return other

    def _set(self, shown: str, **values: Any) -> None:
        """Store settings of `set_auto_parallel_context`, given by the method call `shown`. Raise ValueError, TypeError
        or KeyError if a value is wrong or not supported."""
        found = checked(shown, PARALLEL, values, shown)
        note_asked(self.asked, shown, PARALLEL, found, shown)
        note_places(self.set_at, PARALLEL, found)
        for key in found.keys() & {"strategy_ckpt_config"}:  # several methods set an entry of it each
            found[key] = {**self.parallel_settings.get(key, {}), **found[key]}
        self.parallel_settings |= found

    def dataset_strategy(self, config: Any) -> None:
        """Set the layout of input data: "data_parallel", "full_batch", or one tuple or Layout per input."""
        self._set(f"AutoParallel.dataset_strategy({config!r})", dataset_strategy=config)

    def hsdp(self, shard_size: int = -1, threshold: int = 64, optimizer_level: str = "level1") -> None:
        """Shard optimizer states (and weights) over replicas.

        Args:
            shard_size: number of ranks that share, -1 for all. threshold: smallest parameter in KiB.
            optimizer_level: tensors sharded in addition to optimizer states: "level2" gradients, which "level1"
                includes here; "level3" also weights, which are gathered for the forward operators and again for
                gradients.
        """
        if isinstance(shard_size, bool) or not isinstance(shard_size, int) or (shard_size < 1 and shard_size != -1):
            raise ApiValueError(f"hsdp: shard_size {shard_size!r} must be -1 or a positive integer")
        if isinstance(threshold, bool) or not isinstance(threshold, int) or threshold < 0:
            raise ApiValueError(f"hsdp: threshold {threshold!r} must be an integer, 0 or more")
        if optimizer_level not in LEVELS:
            legal = ", ".join(map(repr, LEVELS))
            raise ApiValueError(f"hsdp: optimizer_level={optimizer_level!r} is not one of {legal}")
        optimizer_config = {
            "parallel_optimizer_threshold": threshold, "optimizer_weight_shard_size": shard_size,
            "optimizer_level": optimizer_level,
        }  # fmt: skip
        found = {"enable_parallel_optimizer": True, "parallel_optimizer_config": optimizer_config}
        note_places(self.set_at, PARALLEL, found)
        self.parallel_settings |= found

    def comm_fusion(self, config: dict[str, Any]) -> None:
        """Set the fusion of collectives, for example {"allreduce": {"mode": "size", "config": 64}}."""
        self._set(f"AutoParallel.comm_fusion({config!r})", comm_fusion=config)

    def enable_gradients_mean(self) -> None:
        self._set("AutoParallel.enable_gradients_mean()", gradients_mean=True)

    def disable_gradient_fp32_sync(self) -> None:
        self._set("AutoParallel.disable_gradient_fp32_sync()", gradient_fp32_sync=False)

    def disable_loss_repeated_mean(self) -> None:
        self._set("AutoParallel.disable_loss_repeated_mean()", loss_repeated_mean=False)

    def enable_fp32_communication(self) -> None:
        self._set("AutoParallel.enable_fp32_communication()", force_fp32_communication=True)

    def no_init_parameters_in_compile(self) -> None:
        self._set("AutoParallel.no_init_parameters_in_compile()", init_param_in_compile=False)

    def save_param_strategy_file(self, file_path: str) -> None:
        self._set(f"AutoParallel.save_param_strategy_file({file_path!r})", strategy_ckpt_save_file=file_path)

    def load_param_strategy_file(self, file_path: str) -> None:
        self._set(f"AutoParallel.load_param_strategy_file({file_path!r})", strategy_ckpt_load_file=file_path)

    def disable_strategy_file_only_for_trainable_params(self) -> None:
        values = {"strategy_ckpt_config": {"only_trainable_params": False}}
        self._set("AutoParallel.disable_strategy_file_only_for_trainable_params()", **values)

    def save_operator_strategy_file(self, file_path: str) -> None:
        values = {"strategy_ckpt_config": {"operator_save_file": file_path}}
        self._set(f"AutoParallel.save_operator_strategy_file({file_path!r})", **values)

    def load_operator_strategy_file(self, file_path: str) -> None:
        values = {"strategy_ckpt_config": {"operator_load_file": file_path}}
        self._set(f"AutoParallel.load_operator_strategy_file({file_path!r})", **values)

    def set_group_ckpt_save_file(self, file_path: str) -> None:
        self._set(f"AutoParallel.set_group_ckpt_save_file({file_path!r})", group_ckpt_save_file=file_path)

    def print_local_norm(self) -> None:
        self._set("AutoParallel.print_local_norm()", dump_local_norm=True)

    def dump_local_norm(self, file_path: str) -> None:
        self._set(f"AutoParallel.dump_local_norm({file_path!r})", dump_local_norm_path=file_path)

    def enable_device_local_norm(self) -> None:
        self._set("AutoParallel.enable_device_local_norm()", dump_device_local_norm=True)

    def transformer_opt(self, file_path: str | None) -> None:
        """Read options for large networks from a JSON file; "" and None mean no file.

        `computation_communication_fusion_level` chooses the parts in which collectives may be split and overlapped with
        matmuls: 0 none, 1 forward, 2 backward, 3 both, the default. Other options change nothing, as warnings say.
        Raise ValueError or TypeError if the file cannot be read, or its contents are wrong.
        """
        if not file_path:
            return

        shown = f"AutoParallel.transformer_opt({file_path!r})"
        found = checked("AutoParallel.transformer_opt", SPEED_UP, options_of_file(shown, file_path))
        if LEVEL in found:
            self._set(shown, **{LEVEL: found[LEVEL]})

    def pipeline(
        self, stages: int = 1, output_broadcast: bool = False, interleave: bool = False, scheduler: str = "1f1b"
    ) -> None:
        """Split the network into stages, each on separate ranks.

        Args:
            stages: number of stages. output_broadcast: changes nothing, all stages have the results. interleave: ranks
                have several parts of the network. scheduler: the schedule, as `pipeline_scheduler`.
        """
        order = {"pipeline_interleave": interleave, "pipeline_scheduler": scheduler}
        shown = f"AutoParallel.pipeline(stages={stages!r}, interleave={interleave!r}, scheduler={scheduler!r})"
        self._set(shown, pipeline_stages=stages, pipeline_config=order)
        checked("AutoParallel.pipeline", AUTO_PARALLEL, {"output_broadcast": output_broadcast})


def options_of_file(shown: str, path: str) -> dict[str, Any]:
    """Return the options in a file, by name. shown: the call with the file, for messages. Raise ValueError if there is
    no such file, or it is no JSON; TypeError if it contains something else."""
    refused = missing_file(path)
    if refused:
        raise ApiValueError(f"{shown}: {refused}")
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ApiValueError(f"{shown}: the file is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ApiTypeError(
            f"{shown}: the file must hold an object, not {type(found).__name__}",
            ['write {"computation_communication_fusion_level": 3}'],
        )
    return found
