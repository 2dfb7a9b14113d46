"""Checkpoints while a network is trained."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.train.listening import Callback, CallbackParam, RunContext
from mspc.api.train.serialization import save_checkpoint
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.beside import remove
from mspc.ir.files.whole import check_folder

__all__ = ["CheckpointConfig", "ModelCheckpoint"]


class CheckpointConfig:
    """When ModelCheckpoint saves.

    Args:
        save_checkpoint_steps: every so many steps. save_checkpoint_seconds: or so many seconds, when
            steps is 0.
        keep_checkpoint_max: older files are removed beyond that number, 0 keeps all.
        integrated_save: full parameters; the only kind there is.
        saved_network: its parameters are saved instead of the training network's.
        append_info: further entries, "epoch_num", "step_num" or {name: number}.
    """

    def __init__(
        self, save_checkpoint_steps: int = 1, save_checkpoint_seconds: int = 0, keep_checkpoint_max: int = 5,
        keep_checkpoint_per_n_minutes: int = 0, integrated_save: bool = True, async_save: Any = False,
        saved_network: Any = None, append_info: Any = None, enc_key: Any = None, enc_mode: str = "AES-GCM",
        exception_save: bool = False, crc_check: bool = False, remove_redundancy: bool = False,
        format: str = "ckpt",
        **_: Any,
    ) -> None:  # fmt: skip
        numbers = {
            "save_checkpoint_steps": save_checkpoint_steps,
            "save_checkpoint_seconds": save_checkpoint_seconds,
            "keep_checkpoint_max": keep_checkpoint_max,
            "keep_checkpoint_per_n_minutes": keep_checkpoint_per_n_minutes,
        }
        for name, value in numbers.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise ApiValueError(f"CheckpointConfig: {name} {value!r} must be an integer, 0 or more")
        if not save_checkpoint_steps and not save_checkpoint_seconds:
            raise ApiValueError(
                "CheckpointConfig: save_checkpoint_steps or save_checkpoint_seconds must be given"
            )
        if enc_key is not None:
            raise ApiValueError("CheckpointConfig: encryption is not supported")
        self.save_checkpoint_steps = save_checkpoint_steps or 0
        self.save_checkpoint_seconds = save_checkpoint_seconds or 0
        self.keep_checkpoint_max = keep_checkpoint_max or 0
        self.keep_checkpoint_per_n_minutes = keep_checkpoint_per_n_minutes or 0
        self.integrated_save = integrated_save
        self.saved_network = saved_network
        self.append_info = append_info or []


class ModelCheckpoint(Callback):
    """Saves parameters to `<directory>/<prefix>-<epoch>_<step>.safetensors`.

    A sharded parameter is gathered first, so every rank writes full parameters, and all ranks must use
    this callback.
    """

    def __init__(
        self, prefix: str | Callable[..., str] = "CKP", directory: Any = None, config: Any = None
    ) -> None:
        if not callable(prefix):
            _check_prefix(prefix)
        if config is not None and not isinstance(config, CheckpointConfig):
            raise ApiTypeError(
                f"ModelCheckpoint: config must be a CheckpointConfig, not {type(config).__name__}"
            )
        self._prefix = prefix
        self._directory = Path(str(directory) if directory is not None else ".")
        self._config = config or CheckpointConfig()
        self._saved: list[Path] = []
        self._last_step = 0
        self._last_time = time.monotonic()

    @property
    def latest_ckpt_file_name(self) -> str:
        return str(self._saved[-1]) if self._saved else ""

    def begin(self, run_context: RunContext) -> None:
        """Find out before the first step whether files can be written. Raises MspcError where they cannot."""
        param = run_context.original_args()
        prefix = "" if callable(self._prefix) else self._prefix
        last = f"{prefix}-{param.get('epoch_num', 1)}_{param.get('batch_num', 1)}.safetensors"
        try:
            check_folder(self._directory, last)
        except MspcError as error:
            raise MspcError(f"ModelCheckpoint: {error.message}") from None

    def step_end(self, run_context: RunContext) -> None:
        param = run_context.original_args()
        if self._due(param.cur_step_num):
            self._save(run_context)

    def end(self, run_context: RunContext) -> None:
        if run_context.original_args().cur_step_num != self._last_step:
            self._save(run_context)

    def on_eval_begin(self, run_context: RunContext) -> None:
        """An evaluation changes no parameter, so nothing is saved."""

    on_eval_step_end = on_eval_end = on_eval_begin

    def _due(self, step: int) -> bool:
        config = self._config
        if config.save_checkpoint_steps:
            return step >= self._last_step + config.save_checkpoint_steps
        return time.monotonic() - self._last_time >= config.save_checkpoint_seconds

    def _save(self, run_context: RunContext) -> None:
        param = run_context.original_args()
        step = (param.cur_step_num - 1) % param.batch_num + 1
        prefix = _check_prefix(self._prefix(param)) if callable(self._prefix) else self._prefix
        path = self._directory / f"{prefix}-{param.cur_epoch_num}_{step}.safetensors"
        network = self._config.saved_network or param.train_network
        save_checkpoint(network, str(path), append_dict=self._extra(param))
        self._last_step = param.cur_step_num
        self._last_time = time.monotonic()
        if path in self._saved:
            self._saved.remove(path)
        self._saved.append(path)
        while self._config.keep_checkpoint_max and len(self._saved) > self._config.keep_checkpoint_max:
            remove(self._saved.pop(0))

    def _extra(self, param: CallbackParam) -> dict[str, Any]:
        known = {"epoch_num": param.cur_epoch_num, "step_num": param.cur_step_num}
        found: dict[str, Any] = {}
        for entry in self._config.append_info:
            found |= entry if isinstance(entry, dict) else {entry: known[entry]} if entry in known else {}
        return found


def _check_prefix(prefix: Any) -> str:
    if not isinstance(prefix, str) or not prefix or "/" in prefix or "\0" in prefix:
        raise ApiValueError(f"ModelCheckpoint: prefix {prefix!r} must be a string without '/'")
    return prefix
