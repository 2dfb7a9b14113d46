"""Managers of loss scales for `Model`: fixed scales, or scales adapted during training."""

from __future__ import annotations

from typing import Any

from mspc.mindspore_api.errors import ApiTypeError
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.cell_arguments import number, positive
from mspc.mindspore_api.nn.loss_scale import DynamicLossScaleUpdateCell, FixedLossScaleUpdateCell

__all__ = ["DynamicLossScaleManager", "FixedLossScaleManager", "LossScaleManager"]


class LossScaleManager:
    """The interface of loss scales."""

    def get_loss_scale(self) -> float:
        """Return the current scale."""
        raise NotImplementedError

    def update_loss_scale(self, overflow: bool) -> None:
        """Count a step with or without overflow; for loops that scale outside of the graph."""
        raise NotImplementedError

    def get_update_cell(self) -> Cell | None:
        """Return the cell that updates the scale in the graph; None if gradients are not checked."""
        raise NotImplementedError


class FixedLossScaleManager(LossScaleManager):
    """One scale for all steps; steps with overflow are skipped with `drop_overflow_update`. Without it the optimizer
    must get the same `loss_scale`, because only it then divides the gradients, as in MindSpore."""

    def __init__(self, loss_scale: float = 128.0, drop_overflow_update: bool = True) -> None:
        self._loss_scale = number("FixedLossScaleManager", "loss_scale", loss_scale, least=1.0)
        self._drop_overflow_update = drop_overflow_update

    def get_loss_scale(self) -> float:
        return self._loss_scale

    def get_drop_overflow_update(self) -> bool:
        """Return whether steps with overflow are left out."""
        return self._drop_overflow_update

    def update_loss_scale(self, overflow: bool) -> None:
        return None

    def get_update_cell(self) -> Cell | None:
        return FixedLossScaleUpdateCell(self._loss_scale) if self._drop_overflow_update else None


class DynamicLossScaleManager(LossScaleManager):
    """A scale that is divided by `scale_factor` at an overflow and multiplied by it after `scale_window` steps
    without one."""

    def __init__(self, init_loss_scale: float = 2.0**24, scale_factor: int = 2, scale_window: int = 2000) -> None:
        name = "DynamicLossScaleManager"
        self.loss_scale = number(name, "init_loss_scale", init_loss_scale, least=1.0)
        self.scale_factor = positive(name, "scale_factor", scale_factor)
        self.scale_window = positive(name, "scale_window", scale_window)
        self._quiet_steps = 0

    def get_loss_scale(self) -> float:
        return self.loss_scale

    def get_drop_overflow_update(self) -> bool:
        """Return True: steps with overflow are skipped."""
        return True

    def update_loss_scale(self, overflow: bool) -> None:
        self._quiet_steps = 0 if overflow else self._quiet_steps + 1
        if overflow:
            self.loss_scale = max(self.loss_scale / self.scale_factor, 1.0)
        elif self._quiet_steps >= self.scale_window:
            self.loss_scale *= self.scale_factor
            self._quiet_steps = 0

    def get_update_cell(self) -> Cell | None:
        return DynamicLossScaleUpdateCell(self.loss_scale, self.scale_factor, self.scale_window)


def check_manager(name: str, manager: Any) -> LossScaleManager | None:
    """Return `manager`. Raise TypeError if it is neither a LossScaleManager nor None."""
    if manager is not None and not isinstance(manager, LossScaleManager):
        raise ApiTypeError(f"{name}: loss_scale_manager must be a LossScaleManager, not {type(manager).__name__}")
    return manager
