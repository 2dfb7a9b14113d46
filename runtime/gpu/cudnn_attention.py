"""Graphs of cuDNN, and fused attention by cuDNN for Float16 and BFloat16, forward and backward.

A cuDNN graph is built for every distinct set of shapes, strides and settings and cached; launches of the same kind of
attention share it and its workspace. They are for arrays with fixed addresses. A launch must have run once before it is
captured, because cuDNN loads its kernels then. The device has its attentions in the attribute `fused_attention`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mspc.ir.late_dataclass import dataclass
from mspc.ops.device import Array, Launch

_HALVES = ("float16", "bfloat16")
_ALIGNMENT = 16
"""Bytes that cuDNN's kernels load at once."""

Operands = dict[str, Array]
Key = tuple[Any, ...]


def make_attention(device: Any, query: Array, key: Array, value: Array, out: Array, statistics: Array, *,
                   scale: float, causal: str = "", addend: Array | None = None,
                   gradients: tuple[Array, Array, Array, Array] | None = None) -> Launch | None:  # fmt: skip
    """Return the launch of an attention, see `mspc.ops.device.Device.attention`; None if cuDNN is missing or does not
    support the arrays."""
    if query.dtype.name not in _HALVES:
        return None
    operands = {"q": query, "k": key, "v": value, "o": out, "stats": statistics}
    if addend is not None:
        operands["bias"] = addend
    if gradients is not None:
        operands |= dict(zip(("dO", "dQ", "dK", "dV"), gradients, strict=True))
    if any(array.data.ptr % _ALIGNMENT for array in operands.values()):
        return None
    fused = getattr(device, "fused_attention", None)
    if fused is None:
        fused = device.fused_attention = FusedAttention(device)
    return fused.launch(operands, float(scale), causal)


@dataclass(frozen=True)
class _BuiltGraph:
    """Built cuDNN graph, its tensors by name, and its workspace in bytes."""

    graph: Any
    tensors: dict[str, Any]
    workspace: int


class CudnnGraphs:
    """Graphs of cuDNN on one device. refused: reasons why cuDNN does not support some."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._plans: dict[Key, Any] = {}
        self._handle: Any = None
        self.refused: dict[Key, str] = {}

    def plan(self, key: Key, build: Callable[[Any, Any], Any]) -> Any:
        """Return what `build` has returned for this key, called once with cuDNN's module and a handle; None if cuDNN
        is missing or does not support the graph."""
        if key not in self._plans:
            self._plans[key] = self._planned(key, build)
        return self._plans[key]

    def _planned(self, key: Key, build: Callable[[Any, Any], Any]) -> Any:
        try:
            import cudnn
        except ImportError as error:
            self.refused[key] = str(error)
            return None
        try:
            if self._handle is None:
                self._handle = cudnn.create_handle()
            cudnn.set_stream(self._handle, self._device.xp.cuda.get_current_stream().ptr)
            return build(cudnn, self._handle)
        except (cudnn.cudnnGraphNotSupportedError, RuntimeError, ValueError, NotImplementedError) as error:
            # cuDNN raises this for shapes without a kernel; another implementation is used instead.
            self.refused[key] = str(error)
            return None


class FusedAttention(CudnnGraphs):
    """Attention on one device."""

    def __init__(self, device: Any) -> None:
        super().__init__(device)
        self._workspace: Array = None
        self._retained: list[Array] = []

    def launch(self, operands: Operands, scale: float, causal: str) -> Launch | None:
        """Return the launch of an attention on these arrays, backward if "dO" is among them; None if cuDNN has none."""
        layout = tuple((name, array.shape, element_strides(array)) for name, array in operands.items())
        deterministic = self._device.deterministic
        key = (layout, operands["q"].dtype.name, scale, causal, deterministic)
        plan = self.plan(key, lambda cudnn, handle: _build(cudnn, handle, operands, scale, causal, deterministic))
        return None if plan is None else self._bound(plan, operands)

    def _bound(self, plan: _BuiltGraph, operands: Operands) -> Launch:
        import cudnn

        handle, cuda = self._handle, self._device.xp.cuda
        pointers = {plan.tensors[name]: int(array.data.ptr) for name, array in operands.items()}
        workspace = int(self._memory_of(plan.workspace).data.ptr)
        arrays = tuple(operands.values())  # held as long as the launch exists

        def launch() -> None:
            assert arrays
            cudnn.set_stream(handle, cuda.get_current_stream().ptr)
            plan.graph.execute(pointers, workspace, handle=handle)

        return launch

    def _memory_of(self, nbytes: int) -> Array:
        """Return workspace of at least `nbytes` bytes. Launches run one after the other and share it."""
        held = self._workspace
        if held is None or held.nbytes < nbytes:
            if held is not None:
                self._retained.append(held)  # earlier launches use its address
            held = self._workspace = self._device.empty((max(nbytes, 256),), "uint8")
            known = self._device.workspaces
            known["attention"] = known.get("attention", 0) + held.nbytes
        return held


def _build(cudnn: Any, handle: Any, operands: Operands, scale: float, causal: str, deterministic: bool) -> _BuiltGraph:
    """Build the graph. Raise cudnnGraphNotSupportedError and others if cuDNN cannot."""
    halves = cudnn.data_type.HALF if operands["q"].dtype.name == "float16" else cudnn.data_type.BFLOAT16
    types = {name: cudnn.data_type.FLOAT if name == "stats" else halves for name in operands}
    graph = cudnn.pygraph(
        io_data_type=halves, intermediate_data_type=cudnn.data_type.FLOAT, compute_data_type=cudnn.data_type.FLOAT,
        handle=handle,
    )  # fmt: skip
    backward = "dO" in operands
    outputs = ("dQ", "dK", "dV") if backward else ("o", "stats")
    tensors = {
        name: graph.tensor(name=name, dim=list(array.shape), stride=list(element_strides(array)), data_type=types[name])
        for name, array in operands.items()
        if name not in outputs
    }
    settings: dict[str, Any] = {"attn_scale": scale, **tensors}
    if causal:
        alignment = cudnn.diagonal_alignment
        settings["diagonal_alignment"] = alignment.TOP_LEFT if causal == "top" else alignment.BOTTOM_RIGHT
        settings["diagonal_band_right_bound"] = 0
    if backward:
        results = graph.sdpa_backward(**settings, use_deterministic_algorithm=deterministic)
    else:
        results = graph.sdpa(**settings, generate_stats=True)
    for name, result in zip(outputs, results, strict=True):
        array = operands[name]
        result.set_output(True).set_dim(list(array.shape)).set_stride(list(element_strides(array)))
        result.set_data_type(types[name])
        tensors[name] = result
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    return _BuiltGraph(graph, tensors, int(graph.get_workspace_size()))


def element_strides(array: Array) -> tuple[int, ...]:
    """Return the strides of an array in elements."""
    return tuple(s // array.itemsize for s in array.strides)
