"""This module finds windows over signals, the places that they cover, and frequencies, when a network is compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.api.common.tensor import Tensor
from mspc.api.errors import ApiValueError
from mspc.api.ops.function_arguments import least


def _cosines(places: np.ndarray, *numbers: float) -> np.ndarray:
    """The first number less the second times the cosine, and so on with twice the angle and other signs."""
    return sum((-1) ** i * number * np.cos(2 * np.pi * i * places) for i, number in enumerate(numbers))  # type: ignore[return-value]  # never 0


_WINDOWS: dict[str, Callable[..., np.ndarray]] = {
    "bartlett": lambda places: 1 - np.abs(2 * places - 1),
    "blackman": lambda places: _cosines(places, 0.42, 0.5, 0.08),
    "hamming": _cosines,
    "hann": lambda places: _cosines(places, 0.5, 0.5),
    "kaiser": lambda places, beta: np.i0(beta * np.sqrt(np.maximum(0, 1 - (2 * places - 1) ** 2))) / np.i0(beta),
}
"""Windows by their kind, of places from 0 to 1."""


def window(kind: str, length: Any, periodic: Any, numbers: Sequence[float]) -> Tensor:
    """A window of so many numbers, Float64. Raises ValueError where `length` is no integer from 0 on."""
    if isinstance(length, Tensor) and length.size == 1:
        length = length.item()
    count = least(f"{kind}_window", "window_length", length, 0)
    if count < 2:
        return Tensor.from_array(np.ones(count))
    places = np.arange(count) / (count if periodic else count - 1)
    return Tensor.from_array(_WINDOWS[kind](places, *numbers))


def frequencies(name: str, count: Any, apart: Any, halved: bool) -> Tensor:
    """Of a transform of so many values, Float64. Raises ValueError where there are none."""
    size = least(name, "n", count, 1)
    return Tensor.from_array(np.fft.rfftfreq(size, apart) if halved else np.fft.fftfreq(size, apart))


def frame_places(name: str, size: int, length: int, hop: int) -> Tensor:
    """[parts, length]: where the parts of a signal lie. Raises ValueError where it is shorter than one."""
    if size < length:
        raise ApiValueError(f"{name}(): the signal has {size} values, and a part needs n_fft = {length}")
    starts = np.arange(0, size - length + 1, hop)
    return Tensor.from_array(starts[:, None] + np.arange(length))
