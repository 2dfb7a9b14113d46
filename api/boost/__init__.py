"""`mindspore.boost`: training steps that put the gradients of several steps together."""

from mspc.api.boost.grad_accumulation import GradientAccumulation

__all__ = ["GradientAccumulation"]
