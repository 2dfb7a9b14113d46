"""Convolutions and their gradients by cuDNN, on arrays with fixed addresses and any order of dimensions; for depthwise
convolutions, by mspc's own kernels.

A cuDNN graph is built for every distinct set of shapes, strides and settings and cached in `Convolutions`. The fastest
of the kernels that cuDNN proposes is chosen by timing each once per machine. A launch must have run once before it is
captured, because cuDNN loads its kernels then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mspc.ir.late_dataclass import dataclass
from mspc.ops.convolution.window import first_order, last_order
from mspc.ops.cuda.depthwise import depthwise
from mspc.ops.cuda.windows import fold, unfold
from mspc.ops.device import Array, Launch, Sliding, in_order
from mspc.runtime.gpu.choices import Key, Pairs
from mspc.runtime.gpu.cudnn_attention import CudnnGraphs, element_strides
from mspc.runtime.workspaces import CONVOLUTION

CANDIDATES = 6
"""Number of kernels that are timed for a new shape."""
_ALIGNMENT = 16
"""Bytes that cuDNN's kernels load at once."""
_MAX_FOLDED = 64
"""Maximum number of channels for which the positions within a stride are folded into channels."""
_SCRATCH_ALIGNMENT = 256
"""Alignment in bytes of arrays in scratch memory."""
_TYPES = {"float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT", "float64": "DOUBLE"}

Operands = dict[str, Array]


@dataclass(frozen=True)
class _Plans:
    """cuDNN graph with its tensors by name, kernels as (index, bytes of workspace), and the indices of built
    kernels."""

    graph: Any
    tensors: dict[str, Any]
    kernels: Pairs
    built: set[int]

    def ready(self, index: int) -> None:
        """Build a kernel chosen in an earlier run, at its first use."""
        if index not in self.built:
            self.graph.build_plan_at_index(index)
            self.built.add(index)


class Convolutions(CudnnGraphs):
    """Convolutions on one device."""

    def launch(self, kind: str, operands: Operands, windows: Sequence[Sliding]) -> Launch | None:
        """Return the fastest launch; see `Device.convolution`. A deterministic device prefers mspc's own kernel, which
        accumulates in Float32 in a fixed order."""
        own = depthwise(self._device, kind, **operands, windows=windows)
        if own and (self._device.deterministic or not all(array.size for array in operands.values())):
            return own[0]
        library = self._by_library(kind, operands, windows)
        found = own if library is None else [*own, library]
        if len(found) < 2:
            return found[0] if found else None
        return self._device.fastest((*self.key(kind, operands, windows), "depthwise", len(found)), found)

    def _by_library(self, kind: str, operands: Operands, windows: Sequence[Sliding]) -> Launch | None:
        """Return the fastest launch of cuDNN or of cuBLASLt."""
        image = operands["image"]
        uneven = kind == "weight" and any(window.before != window.after for window in windows)
        if not uneven and all(window.before >= 0 and window.after >= 0 for window in windows):
            return self._fastest(kind, operands, windows)
        # Positions outside all windows are cut off. cuDNN's kernels for weight gradients give wrong sums if the padding
        # differs between the sides (9.19, Float32), so that the image is padded for them.
        inner = image[(slice(None), slice(None), *map(_inside, image.shape[2:], windows))]
        padded = [window._replace(before=max(window.before, 0), after=max(window.after, 0)) for window in windows]
        if not uneven:
            found = self._fastest(kind, operands | {"image": inner}, padded)
            return in_order(_zeroing(image), found) if kind == "image" else found
        padded_sizes = [n + window.before + window.after for n, window in zip(inner.shape[2:], padded, strict=True)]
        copy, place = self._scratch(image, (*image.shape[:2], *padded_sizes))
        places = [slice(w.before, w.before + n) for n, w in zip(inner.shape[2:], padded, strict=True)]
        target = copy[(slice(None), slice(None), *places)]
        even = [window._replace(before=0, after=0) for window in windows]
        return in_order(_zeroing(copy), _copying(inner, target),
                        self._fastest(kind, operands | {"image": copy}, even, place))  # fmt: skip

    def _scratch(self, like: Array, shape: tuple[int, ...], place: int = 0) -> tuple[Array, int]:
        """Return (an array in scratch memory from offset `place` on, with the dimension order of `like`; its end
        offset)."""
        last = _is_channels_last(like)
        order = last_order(len(shape)) if last else tuple(range(len(shape)))
        stored = tuple(shape[d] for d in order)
        end = place - (-math.prod(shape) * like.itemsize // _SCRATCH_ALIGNMENT) * _SCRATCH_ALIGNMENT
        found = self._device.view(self._device.scratch(end), place, stored, like.dtype)
        return (found.transpose(first_order(len(shape))) if last else found), end

    def _fastest(self, kind: str, operands: Operands, windows: Sequence[Sliding], place: int = 0) -> Launch | None:
        """Return the fastest of all launches of a convolution; scratch memory is free from offset `place` on."""
        found = self._launches(kind, operands, windows, place)
        for other in (self._product(kind, operands, windows, place), self._folded(kind, operands, windows, place)):
            if other is not None:
                found.append(other)
        if not found:
            return None
        return self._device.fastest((*self.key(kind, operands, windows), len(found)), found)

    def _folded(self, kind: str, operands: Operands, windows: Sequence[Sliding], place: int) -> Launch | None:
        """Return an equivalent convolution without stride for an image of few channels: positions within a stride
        become channels, padded to packs; not for the image gradient."""
        image, weight, result = (operands[name] for name in ("image", "weight", "result"))
        stride = windows[0].stride
        if kind == "image" or image.ndim != 4 or image.shape[1] != weight.shape[1] or image.dtype.name not in _TYPES:
            return None
        if any(window.stride != stride or window.dilation != 1 for window in windows):
            return None
        pack = _ALIGNMENT // image.itemsize
        channels = -(-image.shape[1] * stride**2 // pack) * pack
        if image.shape[1] % pack == 0 or channels > _MAX_FOLDED or not _is_channels_last(image):
            return None
        sizes = [-(-n // stride) for n in weight.shape[2:]]
        lengths = [count + n - 1 for count, n in zip(result.shape[2:], sizes, strict=True)]
        wide: Operands = {"result": result}
        wide["image"], place = self._scratch(image, (image.shape[0], channels, *lengths), place)
        wide["weight"], place = self._scratch(image, (weight.shape[0], channels, *sizes), place)
        plain = [Sliding(0, 0, 1, 1)] * 2
        launches = self._launches(kind, wide, plain, place)
        if not launches:
            return None
        best = self._device.fastest((*self.key(kind, wide, plain), len(launches)), launches)
        before = (windows[0].before, windows[1].before)
        filled = fold(self._device, image, wide["image"], stride, before)
        if kind == "forward":
            return in_order(filled, fold(self._device, weight, wide["weight"], stride, (0, 0)), best)
        return in_order(filled, best, unfold(self._device, wide["weight"], weight, stride))

    def _product(self, kind: str, operands: Operands, windows: Sequence[Sliding], place: int) -> Launch | None:
        """Return a convolution with a 1 x 1 window and channels last as a matmul of two matrices; with a stride, of the
        compacted positions that it reads."""
        image, weight, result = (operands[name] for name in ("image", "weight", "result"))
        if any(n != 1 for n in weight.shape[2:]) or any(window.before or window.after for window in windows):
            return None
        if image.shape[1] != weight.shape[1] or not all(map(_is_channels_last, (image, result))):
            return None
        seen, apart = image, any(window.stride != 1 for window in windows)
        if apart:
            seen, _ = self._scratch(image, (*image.shape[:2], *result.shape[2:]), place)
        x, y = (array.transpose(last_order(array.ndim)).reshape(-1, array.shape[1]) for array in (seen, result))
        w = weight.reshape(weight.shape[:2])
        if kind == "forward":
            product = self._device.matmul(x, w, y, False, True)
        elif kind == "image":
            product = self._device.matmul(y, w, x, False, False)
        else:
            product = self._device.matmul(y, x, w, True, False)
        if product is None or not apart:
            return product
        places = image[(slice(None), slice(None), *(slice(None, None, window.stride) for window in windows))]
        if kind == "image":
            return in_order(product, _zeroing(image), _copying(seen, places))
        return in_order(_copying(places, seen), product)

    def _launches(self, kind: str, operands: Operands, windows: Sequence[Sliding], place: int) -> list[Launch]:
        """Return launches of a convolution on these arrays, one per kernel of cuDNN."""
        name = operands["image"].dtype.name
        unaligned = any(array.data.ptr % _ALIGNMENT for array in operands.values())
        if name not in _TYPES or unaligned or any(0 in array.shape for array in operands.values()):
            return []
        key = self.key(kind, operands, windows)
        plans: _Plans | None = self.plan(key, partial(self._built, key, kind, operands, windows))
        if plans is None:
            return []
        return [self._bound(plans, index, place, room, operands) for index, room in plans.kernels]

    def key(self, kind: str, operands: Operands, windows: Sequence[Sliding]) -> Key:
        """Return a key that distinguishes convolutions for cuDNN."""
        shapes = tuple((array.shape, element_strides(array)) for array in operands.values())
        return kind, operands["image"].dtype.name, shapes, tuple(windows), self._device.deterministic, self._device.tf32

    def _bound(self, plans: _Plans, index: int, place: int, room: int, operands: Operands) -> Launch:
        import cudnn

        handle, cuda = self._handle, self._device.xp.cuda
        pointers = {plans.tensors[name]: int(array.data.ptr) for name, array in operands.items()}
        workspace = self._device.scratch(place + max(room, _SCRATCH_ALIGNMENT))[place:]
        arrays = (*operands.values(), workspace)  # kept alive by the launch

        def launch() -> None:
            cudnn.set_stream(handle, cuda.get_current_stream().ptr)
            plans.ready(index)
            plans.graph.execute_plan_at_index(pointers, int(arrays[-1].data.ptr), index, handle=handle)

        return launch

    def _built(
        self, key: Key, kind: str, operands: Operands, windows: Sequence[Sliding], cudnn: Any, handle: Any
    ) -> _Plans:  # fmt: skip
        """Return the plans with their kernels, all built unless an earlier run has chosen them."""
        plans = _build(cudnn, handle, kind, operands, windows, self._device)
        kept = self._device.choices.stored
        known = kept.pairs(("kernels", *key))
        if known and all(index < plans.graph.get_execution_plan_count() for index, _ in known):
            return replace(plans, kernels=known)
        kernels = _kernels(cudnn, plans.graph, 1 if self._device.deterministic else CANDIDATES)
        if not kernels:
            raise RuntimeError("no kernel of cuDNN's takes it")
        kept.put_pairs(("kernels", *key), kernels)
        return replace(plans, kernels=kernels, built={index for index, _ in kernels})


def _build(cudnn: Any, handle: Any, kind: str, operands: Operands, windows: Sequence[Sliding], device: Any) -> _Plans:
    """Build the graph, without kernels. Raise cudnnGraphNotSupportedError and others if cuDNN cannot."""
    name = operands["image"].dtype.name
    type = getattr(cudnn.data_type, _TYPES[name])
    wide = type if name == "float64" else cudnn.data_type.FLOAT
    graph = cudnn.pygraph(io_data_type=type, intermediate_data_type=wide, compute_data_type=wide, handle=handle)
    *given, made = _ORDER[kind]
    tensors = {
        each: graph.tensor(name=each, dim=list(operands[each].shape), stride=list(element_strides(operands[each])),
                           data_type=type)
        for each in given
    }  # fmt: skip
    before, after, stride, dilation = (list(values) for values in zip(*windows, strict=True))
    settings = {"pre_padding": before, "post_padding": after, "stride": stride, "dilation": dilation}
    result = _MAKERS[kind](graph, tensors, settings)
    result.set_output(True).set_data_type(type)
    result.set_dim(list(operands[made].shape)).set_stride(list(element_strides(operands[made])))
    tensors[made] = result
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.deselect_workspace_greater_than(CONVOLUTION)
    graph.deselect_numeric_notes(_unwanted(cudnn, name, device))
    graph.check_support()
    return _Plans(graph, tensors, (), set())


def _kernels(cudnn: Any, graph: Any, most: int) -> Pairs:
    found: list[tuple[int, int]] = []
    for index in range(graph.get_execution_plan_count()):
        if len(found) == most:
            break
        try:
            graph.build_plan_at_index(index)
            found.append((index, int(graph.get_workspace_size_plan_at_index(index))))
        except (cudnn.cudnnGraphNotSupportedError, RuntimeError, ValueError):
            continue
    return tuple(kernel for kernel in found if kernel[1] <= CONVOLUTION)


def _unwanted(cudnn: Any, name: str, device: Any) -> list[Any]:
    """Return numerical properties that a kernel must not have."""
    names = ["DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION", "FFT", "WINOGRAD"]
    if name == "float32" and not device.tf32:
        names.append("TENSOR_CORE")
    if device.deterministic:
        names.append("NONDETERMINISTIC")
    return [getattr(cudnn.numerical_note, each) for each in names]


_ORDER = {
    "forward": ("image", "weight", "result"),
    "image": ("result", "weight", "image"),
    "weight": ("result", "image", "weight"),
}
"""Operands and result of each kind of convolution."""

_MAKERS: dict[str, Callable[[Any, dict[str, Any], dict[str, Any]], Any]] = {
    "forward": lambda graph, t, settings: graph.conv_fprop(image=t["image"], weight=t["weight"], **settings),
    "image": lambda graph, t, settings: graph.conv_dgrad(loss=t["result"], filter=t["weight"], **settings),
    "weight": lambda graph, t, settings: graph.conv_wgrad(image=t["image"], loss=t["result"], **settings),
}


def _is_channels_last(array: Array) -> bool:
    return bool(array.transpose(last_order(array.ndim)).flags.c_contiguous)


def _inside(length: int, window: Sliding) -> slice:
    return slice(max(-window.before, 0), length - max(-window.after, 0))


def _zeroing(array: Array) -> Launch:
    return lambda: array.fill(0)


def _copying(source: Array, target: Array) -> Launch:
    def launch() -> None:
        target[...] = source

    return launch
