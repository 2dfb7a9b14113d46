"""`AutoParallel`: a network or a training function that is split over all ranks."""

from __future__ import annotations

from typing import Any

from mspc.api.common.gradient import JitFunction
from mspc.api.communication.groups import require_init
from mspc.api.context import ParallelMode, check_dataset_strategy
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.nn.cell import Cell

_MODES = {
    "semi_auto": (ParallelMode.SEMI_AUTO_PARALLEL, ""),
    "sharding_propagation": (ParallelMode.AUTO_PARALLEL, "sharding_propagation"),
    "recursive_programming": (ParallelMode.AUTO_PARALLEL, "recursive_programming"),
}


class AutoParallel(Cell):
    """Runs `network` on all ranks, whatever `set_auto_parallel_context` says.

    Args:
        network: a Cell, or a function such as a training step.
        parallel_mode: "semi_auto", "sharding_propagation" or "recursive_programming".

    Raises:
        RuntimeError: `init()` was not called. TypeError, ValueError: an argument is of the wrong kind.
    """

    def __init__(self, network: Any, parallel_mode: str = "semi_auto") -> None:
        super().__init__(auto_prefix=False)
        require_init("AutoParallel")
        if not isinstance(network, Cell) and not callable(network):
            raise ApiTypeError(
                f"AutoParallel: network must be a Cell or a function, not {type(network).__name__}"
            )
        if parallel_mode not in _MODES:
            raise ApiValueError(
                f"AutoParallel: parallel_mode {parallel_mode!r} is not one of {', '.join(_MODES)}"
            )
        self.network = network.fn if isinstance(network, JitFunction) else network
        mode, search = _MODES[parallel_mode]
        self.parallel_settings: dict[str, Any] = {
            "parallel_mode": mode,
            "search_mode": search,
            "dataset_strategy": "data_parallel",
            "gradients_mean": False,
            "enable_alltoall": True,
            "enable_parallel_optimizer": False,
            "comm_fusion": (),
        }

    def construct(self, *args: Any) -> Any:
        return self.network(*args)

    def wrapping(self, network: Any) -> AutoParallel:
        """The same settings around another network."""
        other = object.__new__(AutoParallel)
        Cell.__init__(other, auto_prefix=False)
        other.network = network
        other.parallel_settings = self.parallel_settings
        return other

    def dataset_strategy(self, config: Any) -> None:
        """How data arrive: "data_parallel", "full_batch", or one tuple or Layout per input."""
        self.parallel_settings["dataset_strategy"] = check_dataset_strategy("dataset_strategy", config)

    def hsdp(self, shard_size: int = -1, threshold: int = 64, optimizer_level: str = "level1") -> None:
        """Cut optimizer states (and weights) over replicas.

        Args:
            shard_size: number of ranks that share, -1 for all. threshold: smallest parameter in KiB.
            optimizer_level: "level1" is supported.
        """
        if (
            isinstance(shard_size, bool)
            or not isinstance(shard_size, int)
            or (shard_size < 1 and shard_size != -1)
        ):
            raise ApiValueError(f"hsdp: shard_size {shard_size!r} must be -1 or a positive integer")
        if isinstance(threshold, bool) or not isinstance(threshold, int) or threshold < 0:
            raise ApiValueError(f"hsdp: threshold {threshold!r} must be an integer, 0 or more")
        if optimizer_level not in ("level1", "level2", "level3"):
            raise ApiValueError(
                f"hsdp: optimizer_level {optimizer_level!r} is not 'level1', 'level2' or 'level3'"
            )
        self.parallel_settings |= {
            "enable_parallel_optimizer": True,
            "optimizer_shard_size": shard_size,
            "optimizer_threshold": threshold,
        }

    def comm_fusion(self, config: dict[str, Any]) -> None:
        """How collectives are merged, for example {"allreduce": {"mode": "size", "config": 64}}."""
        if not isinstance(config, dict):
            raise ApiTypeError(f"comm_fusion takes a dict, not {config!r}")
        for key in config:
            if key not in ("openstate", "allreduce", "allgather", "reducescatter"):
                raise ApiValueError(f"comm_fusion has no entry {key!r}")
        self.parallel_settings["comm_fusion"] = tuple(
            (key, tuple(value.items()) if isinstance(value, dict) else value) for key, value in config.items()
        )

    def enable_gradients_mean(self) -> None:
        self.parallel_settings["gradients_mean"] = True

    def disable_gradient_fp32_sync(self) -> None:
        self.parallel_settings["gradient_fp32_sync"] = False

    def disable_loss_repeated_mean(self) -> None:
        self.parallel_settings["loss_repeated_mean"] = False

    def enable_fp32_communication(self) -> None:
        self.parallel_settings["force_fp32_communication"] = True

    def no_init_parameters_in_compile(self) -> None:
        """Accepted; initial values are drawn when they are needed."""

    def save_param_strategy_file(self, file_path: str) -> None:
        """Write how parameters are cut."""
        self.parallel_settings["strategy_ckpt_save_file"] = _path("save_param_strategy_file", file_path)

    def load_param_strategy_file(self, file_path: str) -> None:
        self.parallel_settings["strategy_ckpt_load_file"] = _path("load_param_strategy_file", file_path)

    def set_group_ckpt_save_file(self, file_path: str) -> None:
        self.parallel_settings["group_ckpt_save_file"] = _path("set_group_ckpt_save_file", file_path)

    def pipeline(self, stages: int = 1, **_: Any) -> None:
        """Split the network into stages; only 1 is supported."""
        if stages != 1:
            raise ApiValueError(f"AutoParallel.pipeline: {stages} stages are not supported")


def _path(function: str, path: Any) -> str:
    if not isinstance(path, str):
        raise ApiTypeError(f"{function} takes a path, not {path!r}")
    return path
