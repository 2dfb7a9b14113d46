"""Writes operators on images in PyTorch for `counterparts`: convolutions, pooling, sampling and rearranging."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

Tensor = Any
Counterpart = Callable[..., Any]


def images(torch: Any) -> dict[str, Counterpart]:
    """Counterparts by the operators' names."""
    families = (_convolutions, _pools, _places, _normalisations, _sampled, _rearranged)
    return {name: function for family in families for name, function in family(torch).items()}


def _sides(along: Sequence[Any]) -> list[int]:
    """The windows' padding as PyTorch takes it: the last dimension first."""
    return [n for window in reversed(along) for n in (window.before, window.after)]


def _moves(along: Sequence[Any]) -> tuple[list[int], list[int], list[int]]:
    """(sizes, strides, dilations)."""
    return [w.size for w in along], [w.stride for w in along], [w.dilation for w in along]


def _convolutions(torch: Any) -> dict[str, Counterpart]:
    f = torch.nn.functional

    def forward(op: Any, x: Tensor, weight: Tensor) -> Tensor:
        along = op.along(x.shape[2:])
        _, strides, dilations = _moves(along)
        run = f.conv3d if op.dims == 3 else f.conv2d
        return run(f.pad(x, _sides(along)), weight, None, strides, 0, dilations, op.group)

    def transposed(op: Any, x: Tensor, weight: Tensor) -> Tensor:
        lengths = op.input_size[2:]
        along = op.along(lengths)
        _, strides, dilations = _moves(along)
        run = f.conv_transpose3d if op.dims == 3 else f.conv_transpose2d
        unpadded = run(x, weight, None, strides, 0, 0, op.group, dilations)
        pairs = zip(reversed(along), reversed(lengths), reversed(unpadded.shape[2:]), strict=True)
        return f.pad(unpadded, [n for w, length, made in pairs for n in (-w.before, length + w.before - made)])

    return {"Conv2D": forward, "Conv3D": forward, "Conv2DTranspose": transposed, "Conv3DTranspose": transposed}


def _pools(torch: Any) -> dict[str, Counterpart]:
    f = torch.nn.functional

    def greatest(op: Any, x: Tensor) -> Tensor:
        along = op.exact(x.shape[2:])
        sizes, strides, dilations = _moves(along)
        run = f.max_pool3d if op.dims == 3 else f.max_pool2d
        return run(f.pad(x, _sides(along), value=-math.inf), sizes, strides, 0, dilations)

    def mean(op: Any, x: Tensor) -> Tensor:
        exact, given = op.exact(x.shape[2:]), op.along(x.shape[2:])
        sizes, strides, dilations = _moves(exact)
        if any(n != 1 for n in dilations):
            return None
        run = f.avg_pool3d if op.dims == 3 else f.avg_pool2d
        places = math.prod(sizes)
        total = run(f.pad(x, _sides(exact)), sizes, strides) * places
        if op.divisor_override is not None:
            return total / op.divisor_override
        counted = torch.ones_like(x)
        if op.count_include_pad:
            counted = f.pad(counted, _sides(given), value=1.0)
            rest = [a - b for a, b in zip(_sides(exact), _sides(given), strict=True)]
        else:
            rest = _sides(exact)
        return total / (run(f.pad(counted, rest), sizes, strides) * places).clamp_min(1)

    def adaptive(op: Any, x: Tensor) -> Tensor:
        run = f.adaptive_avg_pool3d if op.dims == 3 else f.adaptive_avg_pool2d
        return run(x, op.lengths(tuple(x.shape[2:])))

    return {
        "MaxPool": greatest, "MaxPool3D": greatest, "AvgPool": mean, "AvgPool3D": mean, "AdaptiveAvgPool2D": adaptive,
        "AdaptiveAvgPool3D": adaptive,
    }  # fmt: skip


def _places(torch: Any) -> dict[str, Counterpart]:
    f = torch.nn.functional

    def pooled(op: Any, x: Tensor) -> Any:
        pool = op.pool()
        along = pool.along(x.shape[2:])
        sizes, strides, dilations = _moves(along)
        if any(w.before != w.after for w in along):
            return None
        run = f.max_pool3d if op.dims == 3 else f.max_pool2d
        pads = [w.before for w in along]
        values, places = run(x, sizes, strides, pads, dilations, pool.ceil_mode, True)
        return values, None if op.with_channels else places.to(torch.int64)

    def adaptive(op: Any, x: Tensor) -> Any:
        run = f.adaptive_max_pool3d if op.dims == 3 else f.adaptive_max_pool2d
        return run(x, op.counts(tuple(x.shape[2:])), return_indices=True)

    def unpooled(op: Any, x: Tensor, places: Tensor) -> Tensor:
        lengths = op.lengths(tuple(x.shape))
        flat = x.new_zeros((*x.shape[:2], math.prod(lengths)))
        found = flat.scatter(2, places.to(torch.int64).flatten(2), x.flatten(2))
        return found.reshape(*x.shape[:2], *lengths)

    return {
        "MaxPoolWithArgmax": pooled, "MaxPoolWithArgmaxV2": pooled, "MaxPool3DWithArgmax": pooled,
        "AdaptiveMaxPool2D": adaptive, "AdaptiveMaxPool3D": adaptive, "MaxUnpool2D": unpooled, "MaxUnpool3D": unpooled,
    }  # fmt: skip


def _normalisations(torch: Any) -> dict[str, Counterpart]:
    f = torch.nn.functional

    def batch(op: Any, x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor) -> Any:
        given = (None, None) if op.is_training else (mean, variance)
        found = f.batch_norm(x, *given, gamma, beta, op.is_training, 0.0, op.epsilon)
        return found, None, None, None, None

    def response(op: Any, x: Tensor) -> Tensor:
        size = 2 * op.depth_radius + 1
        rows = x.reshape(*x.shape[:2], -1)
        return f.local_response_norm(rows, size, op.alpha * size, op.beta, op.bias).reshape(x.shape)

    return {"BatchNorm": batch, "LRN": response}


def _sampled(torch: Any) -> dict[str, Counterpart]:
    f = torch.nn.functional

    def linear(op: Any, x: Tensor) -> Any:
        if op.align_corners or op.half_pixel_centers:
            mode = "trilinear" if op.dims == 3 else "bilinear"
            return f.interpolate(x, list(op.size), None, mode, op.align_corners)
        return None

    def nearest(op: Any, x: Tensor) -> Any:
        if op.align_corners:
            return None
        return f.interpolate(x, list(op.size), mode="nearest-exact" if op.half_pixel_centers else "nearest")

    def cubic(op: Any, x: Tensor) -> Any:
        if op.align_corners:
            return f.interpolate(x, list(op.size), None, "bicubic", True)
        grows = all(n >= m for n, m in zip(op.size, x.shape[2:], strict=True))
        if not (op.half_pixel_centers and grows):
            return None
        return f.interpolate(x, list(op.size), None, "bicubic", False, antialias=True)

    def grid(op: Any, x: Tensor, places: Tensor) -> Tensor:
        return f.grid_sample(x, places, op.interpolation_mode, op.padding_mode, op.align_corners)

    return {
        "ResizeBilinear": linear, "ResizeBilinearV2": linear, "ResizeTrilinear": linear,
        "ResizeNearestNeighbor": nearest, "ResizeNearest3D": nearest, "ResizeBicubic": cubic, "GridSampler2D": grid,
        "GridSampler3D": grid,
    }  # fmt: skip


def _rearranged(torch: Any) -> dict[str, Counterpart]:
    f = torch.nn.functional

    def columns(op: Any, x: Tensor) -> Tensor:
        along = op.along()
        sizes, strides, dilations = _moves(along)
        found = f.unfold(f.pad(x, _sides(along)), sizes, dilations, 0, strides)
        return found.reshape(*x.shape[:2], math.prod(sizes), -1)

    def mirrored(op: Any, x: Tensor) -> Tensor:
        modes = {"reflect": "reflect", "symmetric": "symmetric", "edge": "replicate", "circular": "circular"}
        for d, (before, after) in enumerate(op.pairs(tuple(x.shape))):
            if before or after:
                x = _margin(torch, x, d, before, after, modes[op.kind])
        return x

    def to_space(op: Any, x: Tensor) -> Tensor:
        n, channels, h, w = x.shape
        parts = x.reshape(n, op.block_size**2, channels // op.block_size**2, h, w).transpose(1, 2)
        return f.pixel_shuffle(parts.reshape(x.shape), op.block_size)

    def to_depth(op: Any, x: Tensor) -> Tensor:
        found = f.pixel_unshuffle(x, op.block_size)
        n, _, h, w = found.shape
        return found.reshape(n, x.shape[1], op.block_size**2, h, w).transpose(1, 2).reshape(found.shape)

    return {"Im2Col": columns, "MirrorPad": mirrored, "DepthToSpace": to_space, "SpaceToDepth": to_depth}


def _margin(torch: Any, x: Tensor, d: int, before: int, after: int, mode: str) -> Tensor:
    """x with a margin along one dimension."""
    if mode == "symmetric":
        ends = x.narrow(d, 0, before).flip(d), x, x.narrow(d, x.shape[d] - after, after).flip(d)
        return torch.cat(ends, d)
    rows = x.movedim(d, -1)
    flat = torch.nn.functional.pad(rows.reshape(1, -1, x.shape[d]), (before, after), mode)
    return flat.reshape(*rows.shape[:-1], -1).movedim(-1, d)
