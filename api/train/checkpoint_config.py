"""This module says when ModelCheckpoint saves, and what."""

from __future__ import annotations

from typing import Any

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.nn.cell import Cell
from mspc.api.setting_kind import say_once

__all__ = ["CheckpointConfig"]

_COUNTS = (
    "save_checkpoint_steps", "save_checkpoint_seconds", "keep_checkpoint_max", "keep_checkpoint_per_n_minutes",
)  # fmt: skip
_FLAGS = ("integrated_save", "exception_save", "crc_check", "remove_redundancy")
_KNOWN = ("epoch_num", "step_num")


class CheckpointConfig:
    """When ModelCheckpoint saves, and what.

    Args:
        save_checkpoint_steps: every so many steps. save_checkpoint_seconds: or so many seconds, when
            steps is 0.
        keep_checkpoint_max: older checkpoints are removed beyond that number, 0 keeps all. The newest one that is
            complete always stays. keep_checkpoint_per_n_minutes: where keep_checkpoint_max is 0, one is kept of every
            so many minutes, and the newest.
        integrated_save: global parameters. False: every rank writes its slices, and all of them together are one set,
            which any number of ranks can read.
        async_save: write while training continues; True, "thread" and "process" are a thread.
        saved_network: its parameters are saved instead of the training network's.
        append_info: further entries, "epoch_num", "step_num" or {name: number}.
        exception_save: changes nothing: the last complete checkpoint is there whatever happens.
        crc_check: a checksum at the end of a file of MindSpore's format; safetensors have one for every tensor always.
        remove_redundancy: slices, as without integrated_save, and of those that several ranks hold one is written.
        format: "safetensors", also where it is not given, or "ckpt", MindSpore's.
        on_failure: what a checkpoint that cannot be written does: "stop" ends training with the error, "continue"
            warns and trains on; either way older checkpoints stay.

    Raises:
        ValueError, TypeError: an argument is of the wrong kind, or of no use here.
    """

    def __init__(
        self, save_checkpoint_steps: int = 1, save_checkpoint_seconds: int = 0, keep_checkpoint_max: int = 5,
        keep_checkpoint_per_n_minutes: int = 0, integrated_save: bool = True, async_save: Any = False,
        saved_network: Any = None, append_info: Any = None, enc_key: Any = None, enc_mode: str = "AES-GCM",
        exception_save: bool = False, crc_check: bool = False, remove_redundancy: bool = False,
        format: str | None = None, on_failure: str = "stop",
        **kwargs: Any,
    ) -> None:  # fmt: skip
        given = dict(locals())
        for name in _COUNTS:
            value = given[name]
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise ApiValueError(f"CheckpointConfig: {name} {value!r} must be an integer, 0 or more")
        if not save_checkpoint_steps and not save_checkpoint_seconds:
            raise ApiValueError("CheckpointConfig: save_checkpoint_steps or save_checkpoint_seconds must be given")
        if enc_key is not None:
            raise ApiValueError("CheckpointConfig: encryption is not supported")
        for name in _FLAGS:
            if not isinstance(given[name], bool):
                raise ApiTypeError(f"CheckpointConfig: {name} must be True or False, not {given[name]!r}")
        _check_choices(async_save, format, on_failure, saved_network, kwargs)
        self.save_checkpoint_steps = save_checkpoint_steps or 0
        self.save_checkpoint_seconds = 0 if save_checkpoint_steps else save_checkpoint_seconds or 0
        self.keep_checkpoint_max = keep_checkpoint_max or 0
        self.keep_checkpoint_per_n_minutes = keep_checkpoint_per_n_minutes or 0
        self.integrated_save = integrated_save
        self.async_save = bool(async_save)
        self.saved_network = saved_network
        self.append_info = _checked_info(append_info)
        self.crc_check = crc_check
        self.remove_redundancy = remove_redundancy
        self.format = format or "safetensors"
        self.on_failure = on_failure
        self._say_what_counts_not(exception_save)

    @property
    def sliced(self) -> bool:
        """Whether ranks write their slices."""
        return self.remove_redundancy or not self.integrated_save

    def _say_what_counts_not(self, exception_save: bool) -> None:
        """Say once which arguments change nothing."""
        said: dict[str, str] = {}
        if self.keep_checkpoint_per_n_minutes and self.keep_checkpoint_max:
            said[f"keep_checkpoint_per_n_minutes={self.keep_checkpoint_per_n_minutes}"] = (
                "it counts where keep_checkpoint_max is 0"
            )
        if exception_save:
            said["exception_save=True"] = "the last complete checkpoint stays, whatever ends the run"
        if self.crc_check and self.format == "safetensors":
            said["crc_check=True"] = "every tensor of a safetensors file has a checksum always"
        for given, why in said.items():
            name = given.partition("=")[0]
            say_once(f"CheckpointConfig {name}", f"CheckpointConfig({given}) changes nothing here: {why}")


def _check_choices(async_save: Any, format: Any, on_failure: Any, network: Any, others: dict[str, Any]) -> None:
    if async_save not in (True, False, "thread", "process"):
        raise ApiValueError(f"CheckpointConfig: async_save {async_save!r} is not True, False, 'thread' or 'process'")
    if format not in (None, "ckpt", "safetensors"):
        raise ApiValueError(f"CheckpointConfig: format {format!r} is not one of 'ckpt', 'safetensors'")
    if on_failure not in ("stop", "continue"):
        raise ApiValueError(f"CheckpointConfig: on_failure {on_failure!r} is not one of 'stop', 'continue'")
    if network is not None and not isinstance(network, Cell):
        raise ApiTypeError(f"CheckpointConfig: saved_network must be a Cell, not {type(network).__name__}")
    for name in others:
        raise ApiTypeError(f"CheckpointConfig has no argument {name!r}")


def _checked_info(info: Any) -> list[Any]:
    if info is None:
        return []
    if not isinstance(info, list):
        raise ApiTypeError(f"CheckpointConfig: append_info must be a list, not {type(info).__name__}")
    for entry in info:
        if not (isinstance(entry, dict) or entry in _KNOWN):
            raise ApiTypeError(f"CheckpointConfig: append_info takes 'epoch_num', 'step_num' and dicts, not {entry!r}")
    return info
