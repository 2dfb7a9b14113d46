"""`device_context.gpu`: the entries of `gpu_config` of `set_context`."""

from __future__ import annotations

from typing import Any

from mspc.mindspore_api import runtime
from mspc.mindspore_api.context import get_context, set_context

__all__ = [
    "conv_allow_tf32", "conv_dgrad_algo", "conv_fprop_algo", "conv_wgrad_algo", "device_count", "is_available",
    "matmul_allow_tf32",
]  # fmt: skip


def device_count() -> int:
    """Return the number of GPUs."""
    return runtime.device_count("GPU")


def is_available() -> bool:
    """Return whether there is a GPU."""
    return runtime.is_available("GPU")


def _set(name: str, value: Any) -> None:
    set_context(gpu_config={**get_context("gpu_config"), name: value})


def matmul_allow_tf32(value: bool) -> None:
    """Set whether Float32 matmuls round operands to TF32. Raise TypeError for no bool."""
    _set("matmul_allow_tf32", value)


def conv_allow_tf32(value: bool) -> None:
    """Set whether convolutions round operands to TF32; a warning says that `matmul_allow_tf32` decides. Raise TypeError
    for no bool."""
    _set("conv_allow_tf32", value)


def conv_fprop_algo(mode: str) -> None:
    """Set the algorithm of convolutions; a warning says that it changes nothing. Raise TypeError for no string."""
    _set("conv_fprop_algo", mode)


def conv_dgrad_algo(mode: str) -> None:
    """Set the algorithm of gradients of convolution inputs; a warning says that it changes nothing. Raise TypeError for
    no string."""
    _set("conv_dgrad_algo", mode)


def conv_wgrad_algo(mode: str) -> None:
    """Set the algorithm of gradients of convolution weights; a warning says that it changes nothing. Raise TypeError
    for no string."""
    _set("conv_wgrad_algo", mode)
