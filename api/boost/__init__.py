"""Gradients of several steps together, as `mindspore.boost`."""

from mspc.api.boost.grad_accumulation import GradientAccumulation

__all__ = ["GradientAccumulation"]
