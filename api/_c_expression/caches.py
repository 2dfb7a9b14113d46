"""This module plans blocks of caches that are copied between a host's tensors and a device's."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.api.common.tensor import Tensor
from mspc.api.errors import ApiTypeError, ApiValueError


def swap_cache(host: Tensor, device: Tensor, mapping: Any, swap_type: bool) -> None:
    """Copy blocks (along the first dimension) from one cache to the other.

    Args:
        host, device: tensors of one shape but for the number of blocks, and one element type.
        mapping: [blocks, 2] integers, (block it comes from, block it goes to). swap_type: True takes them from `device`
            to `host`, False from `host` to `device`.

    Raises:
        TypeError: a cache is no tensor, or they differ in their element types. ValueError: shapes, or a number of a
        block that there is not.
    """
    if not isinstance(host, Tensor) or not isinstance(device, Tensor) or host.dtype != device.dtype:
        raise ApiTypeError("swap_cache: host and device must be tensors of one element type")
    given, taken = (device, host) if swap_type else (host, device)
    pairs = np.asarray(mapping.asnumpy() if isinstance(mapping, Tensor) else mapping)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
        raise ApiValueError(f"swap_cache: mapping must be integers of shape [blocks, 2], not {pairs.shape}")
    if not host.shape or host.shape[1:] != device.shape[1:]:
        raise ApiValueError(f"swap_cache: blocks of {host.shape[1:]} on the host are not those of {device.shape[1:]}")
    for column, cache in ((0, given), (1, taken)):
        wrong = [int(each) for each in pairs[:, column] if not 0 <= each < cache.shape[0]]
        if wrong:
            raise ApiValueError(f"swap_cache: there is no block {wrong[0]} among {cache.shape[0]}")
    values = taken.asnumpy().copy()
    values[pairs[:, 1]] = given.asnumpy()[pairs[:, 0]]
    taken.assign_value(Tensor(values, taken.dtype))
