"""`device_context.gpu` has `gpu_config` of `set_context`, entry by entry."""

from __future__ import annotations

from typing import Any

from mspc.mindspore_api import runtime
from mspc.mindspore_api.context import get_context, set_context

__all__ = [
    "conv_allow_tf32", "conv_dgrad_algo", "conv_fprop_algo", "conv_wgrad_algo", "device_count", "is_available",
    "matmul_allow_tf32",
]  # fmt: skip


def device_count() -> int:
    """How many GPUs there are."""
    return runtime.device_count("GPU")


def is_available() -> bool:
    """Return whether there is a GPU."""
    return runtime.is_available("GPU")


def _set(name: str, value: Any) -> None:
    set_context(gpu_config={**get_context("gpu_config"), name: value})


def matmul_allow_tf32(value: bool) -> None:
    """Return whether products of Float32 round operands to TF32. Raises TypeError for no bool."""
    _set("matmul_allow_tf32", value)


def conv_allow_tf32(value: bool) -> None:
    """Return whether convolutions round operands to TF32; says that `matmul_allow_tf32` decides. Raises TypeError for
    no bool."""
    _set("conv_allow_tf32", value)


def conv_fprop_algo(mode: str) -> None:
    """How convolutions are computed; says that it changes nothing. Raises TypeError for no string."""
    _set("conv_fprop_algo", mode)


def conv_dgrad_algo(mode: str) -> None:
    """How gradients of convolutions' images are computed; says that it changes nothing. Raises TypeError for no
    string."""
    _set("conv_dgrad_algo", mode)


def conv_wgrad_algo(mode: str) -> None:
    """How gradients of convolutions' weights are computed; says that it changes nothing. Raises TypeError for no
    string."""
    _set("conv_wgrad_algo", mode)
