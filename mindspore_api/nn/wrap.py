"""Cells around a network: its loss, its training step, its data set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mspc.ir.diagnostics import Location, did_you_mean
from mspc.ir.types import FLOAT32, HALVES
from mspc.mindspore_api import context, ops, state
from mspc.mindspore_api.common.parameter import ParameterTuple
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiKeyError, ApiTypeError, ApiValueError, caller_location
from mspc.mindspore_api.index.module import beside
from mspc.mindspore_api.nn.activation import Identity
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.cell_arguments import MAX_CELLS, positive
from mspc.mindspore_api.nn.container import CellList
from mspc.mindspore_api.nn.grad_reducer import DistributedGradReducer as _Reducer
from mspc.mindspore_api.setting_kind import checked
from mspc.mindspore_api.settings import PIPELINE_CELL

__all__ = [
    "ForwardValueAndGrad", "GradAccumulationCell", "MicroBatchInterleaved", "PipelineCell",
    "TrainOneStepCell", "WithEvalCell", "WithLossCell", "WithWideLossCell",
]  # fmt: skip


class WithLossCell(Cell):
    """The loss of a network's output: `loss_fn(backbone(data), label)`."""

    def __init__(self, backbone: Cell, loss_fn: Any) -> None:
        super().__init__(auto_prefix=False)
        if not isinstance(backbone, Cell):
            raise ApiTypeError(f"{type(self).__name__}: backbone must be a Cell, not {type(backbone).__name__}")
        self._backbone = backbone
        self._loss_fn = loss_fn

    @property
    def backbone_network(self) -> Cell:
        return self._backbone

    def construct(self, data: Any, label: Any) -> Any:
        out = self._backbone(data)
        return self._loss_fn(out, label)


class WithWideLossCell(WithLossCell):
    """`loss_fn(backbone(data), label)` with the loss computed in Float32."""

    def construct(self, data: Any, label: Any) -> Any:
        return self._loss_fn(_wide(self._backbone(data)), _wide(label))


class WithEvalCell(Cell):
    """(loss, output, label), for metrics; with `add_cast_fp32` computed from Float32 outputs and labels."""

    def __init__(self, network: Cell, loss_fn: Any, add_cast_fp32: bool = False) -> None:
        super().__init__(auto_prefix=False)
        self._network = network
        self._loss_fn = loss_fn
        self.add_cast_fp32 = add_cast_fp32

    def construct(self, data: Any, label: Any) -> Any:
        outputs = self._network(data)
        if self.add_cast_fp32:
            outputs, label = _wide(outputs), _wide(label)
        loss = self._loss_fn(outputs, label)
        return loss, outputs, label


class TrainOneStepCell(Cell):
    """One training step: the loss of `network(*inputs)`, after the optimizer has changed the weights.

    Args:
        network: returns the loss. optimizer: its parameters are the weights that are trained.
        sens: the gradient of the loss, a number, or a Tensor of the shape of the loss; not 0.
        return_grad: the step also returns the gradients, a dict by parameter name.

    Attributes for subclasses: `network`, `optimizer`, `weights`, `sens` (by default 1.0), `grad`, which takes the
    gradient of the loss after the inputs, `grad_no_sens`, which does not, `parallel_mode`, `mean`, `degree`, and
    `reducer_flag`: whether ranks reduce gradients, which `grad_reducer` then does: in data parallel and in hybrid mode,
    as in MindSpore; `use_graceful_exit`, which is False: an interrupted run ends, and resumes from its last checkpoint.
    In data parallel mode the compiler reduces gradients, unless `grad_reducer` was replaced.
    """

    use_graceful_exit = False

    def __init__(self, network: Cell, optimizer: Any, sens: Any = None, return_grad: bool = False) -> None:
        super().__init__(auto_prefix=False)
        if not isinstance(network, Cell):
            raise ApiTypeError(f"TrainOneStepCell: network must be a Cell, not {type(network).__name__}")
        if not isinstance(optimizer, Cell):
            raise ApiTypeError(f"TrainOneStepCell: optimizer must be a Cell, not {type(optimizer).__name__}")
        self.network = network
        self.network.requires_grad = True
        self.optimizer = optimizer
        self.weights = self.optimizer.parameters
        if not isinstance(sens, Tensor) and sens == 0:
            raise ApiValueError("TrainOneStepCell: sens must not be 0, with which every gradient is 0")
        self.sens, self.sense_flag = (1.0, False) if sens is None else (sens, True)
        self.return_grad = return_grad
        self.grad = ops.GradOperation(get_by_list=True, sens_param=True)
        self.grad_no_sens = ops.GradOperation(get_by_list=True)
        self.parallel_mode = context.get_auto_parallel_context("parallel_mode")
        self.mean = context.get_auto_parallel_context("gradients_mean")
        self.degree = context.get_auto_parallel_context("device_num") or state.current().size
        self.by_optimizer = bool(getattr(optimizer, "adds_up_gradients", False))
        reduces = self.parallel_mode in ("data_parallel", "hybrid_parallel")
        self.reducer_flag = reduces and state.current().initialized
        self.grad_reducer = _Reducer(self.weights, self.mean) if self.reducer_flag else Identity()
        object.__setattr__(self, "own_reducer", self.grad_reducer)  # no second child

    def construct(self, *inputs: Any) -> Any:
        loss = self.network(*inputs)
        if self.sense_flag:
            grads = self.grad(self.network, self.weights)(*inputs, ops.full_like(loss, self.sens))
        else:
            grads = self.grad_no_sens(self.network, self.weights)(*inputs)
        grads = self.reduced(grads)
        loss = ops.depend(loss, self.optimizer(grads))
        if self.return_grad:
            return loss, self.named(grads)
        return loss

    def named(self, grads: Any) -> dict[str, Any]:
        """Return the gradients by parameter name."""
        return {parameter.name: gradient for parameter, gradient in zip(self.weights, grads, strict=True)}

    def reduced(self, grads: Any) -> Any:
        """Return the gradients, passed through `grad_reducer` unless the compiler or the optimizer does its work."""
        elsewhere = self.parallel_mode != "hybrid_parallel" or self.by_optimizer
        return grads if elsewhere and self.grad_reducer is self.own_reducer else self.grad_reducer(grads)


class _TrainGradAccuStepCell(TrainOneStepCell):
    """Training step of a network that accumulates gradients itself, as GradAccumulationCell does."""

    def __init__(self, network: Cell, optimizer: Any, sens: Any = None) -> None:
        super().__init__(network, optimizer, sens)


class ForwardValueAndGrad(Cell):
    """(value of the network, gradients).

    Args:
        weights: ParameterTuple, for `get_by_list`. get_all: gradients of all inputs.
        sens_param: the last argument of a call is the gradient of the value.
    """

    def __init__(
        self, network: Any, weights: Any = None, get_all: bool = False, get_by_list: bool = False,
        sens_param: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(auto_prefix=False)
        self.network = network
        self.weights = ParameterTuple(weights) if weights is not None else ParameterTuple(())
        self.sens_param = sens_param
        self.grad = ops.GradOperation(get_all=get_all, get_by_list=get_by_list, sens_param=sens_param)

    def construct(self, *inputs: Any) -> Any:
        if self.sens_param:
            loss = self.network(*inputs[:-1])
        else:
            loss = self.network(*inputs)
        grads = self.grad(self.network, self.weights)(*inputs)
        return loss, grads


class _SumOfParts:
    """Adds up the results of a network for equal parts of its inputs' rows."""

    cuts_batch = False

    def __call__(self, network: Cell, count: int, *inputs: Any) -> Any:
        for part in inputs:
            if part.shape[0] % count:
                raise ValueError(
                    f"the rows of every input must be a multiple of the number of parts, not {part.shape[0]} of {count}"
                )
        rows = [part.shape[0] // count for part in inputs]
        total = network(*[part[0:n] for part, n in zip(inputs, rows, strict=True)])
        for i in range(1, count):
            found = network(*[part[i * n : (i + 1) * n] for part, n in zip(inputs, rows, strict=True)])
            total = _added(total, found)
        return total


def _added(total: Any, found: Any) -> Any:
    """Return the sum of two values, or the elementwise sums of two tuples."""
    if isinstance(total, (tuple, list)):
        return tuple([_added(mine, more) for mine, more in zip(total, found, strict=True)])
    return total + found


class _MicroBatches(_SumOfParts):
    """`_SumOfParts` for micro-batches: if a network has several stages, the compiler makes a loop of it, which the
    stages share.

    place: the line that created the cell.
    """

    cuts_batch = True

    def __init__(self, place: Location | None) -> None:
        self.place = place


class GradAccumulationCell(Cell):
    """The sum of `network`'s losses over `micro_size` parts of the batch, computed in sequence.

    Only one part is computed at a time (mark the network with `recompute()` if its activations must not be saved for
    the backward graph). The parts' gradients are added on each rank before they are reduced, so the ranks communicate
    gradients once for the global batch. In a network of several stages the parts are micro-batches, as those of a
    `PipelineCell`; parts of parts are micro-batches, too.

    Attributes for scripts: `micro_inputs`, cells with a `strided_slice` that extracts a part; they are not called.
    """

    parts = "micro_size"

    def __init__(self, network: Cell, micro_size: int) -> None:
        super().__init__(auto_prefix=False)
        name = type(self).__name__
        if not isinstance(network, Cell):
            raise ApiTypeError(f"{name}: network must be a Cell, not {type(network).__name__}")
        positive(name, self.parts, micro_size, MAX_CELLS)
        self.network = network
        self.micro_size = micro_size
        self.in_parts: _SumOfParts = _MicroBatches(caller_location())
        self.micro_inputs = CellList([_MicroBatch(micro_size) for _ in range(micro_size)])

    def construct(self, *inputs: Any) -> Any:
        return self.in_parts(self.network, self.micro_size, *inputs)


class PipelineCell(GradAccumulationCell):
    """The sum of `network`'s results over `micro_size` parts of the batch, which pass through the stages of a pipeline.

    Args:
        micro_size: number of micro-batches, at least the number of stages, which a launch checks.
        stage_config: stages by cell name, as `cell.pipeline_stage` sets them for single cells; cells inside of a
            `WithLossCell` are `_backbone.NAME`. segment_config: names are checked, and numbers change nothing.

    Raises TypeError or ValueError if micro_size is no positive int, a stage no number from 0; KeyError if no cell has a
    name.
    """

    def __init__(
        self, network: Cell, micro_size: int, stage_config: dict[str, int] | None = None,
        segment_config: dict[str, int] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(network, micro_size)
        for cell, stage in self._named("stage_config", stage_config):
            cell.pipeline_stage = stage
        self._named("segment_config", segment_config)
        if segment_config:
            checked("PipelineCell", PIPELINE_CELL, {"segment_config": segment_config})

    def _named(self, argument: str, config: Any) -> list[tuple[Cell, int]]:
        """Return the cells named in a dict, with their numbers. Raise TypeError if it is no dict, KeyError for an
        unknown cell."""
        name = type(self).__name__
        if config is not None and not isinstance(config, dict):
            raise ApiTypeError(f"{name}: {argument} must be a dict or None, not {type(config).__name__}")
        cells = {known: cell for known, cell in self.network.cells_and_names() if known} if config else {}
        for each in config or ():
            if each not in cells:
                raise ApiKeyError(
                    f"{name}: {argument} names {each!r}, and {type(self.network).__name__} has no such cell",
                    _alike(str(each), cells),
                )
        return [(cells[each], number) for each, number in (config or {}).items()]


def _alike(name: str, cells: Mapping[str, Cell]) -> list[str]:
    inside = [each for each in cells if each.endswith(f".{name}")]
    found = did_you_mean(name, cells) if not inside else [f"did you mean {' or '.join(map(repr, inside[:3]))}?"]
    return found or [f"it has {', '.join(map(repr, [*cells][:8]))}" if cells else "it has no cells"]


class MicroBatchInterleaved(GradAccumulationCell):
    """The sum of `network`'s results over `interleave_num` parts of the batch, which do not wait for each other: one
    part may compute while another communicates."""

    parts = "interleave_num"

    def __init__(self, network: Cell, interleave_num: int = 2) -> None:
        super().__init__(network, interleave_num)
        self.in_parts = _SumOfParts()
        self.interleave_num = interleave_num


class _MicroBatch(Cell):
    """Part number i of every input, of `micro_size` equal ones along the first dimension."""

    def __init__(self, micro_size: int) -> None:
        super().__init__(auto_prefix=False)
        self.micro_size = micro_size
        self.strided_slice = ops.StridedSlice()

    def construct(self, i: int, *inputs: Any) -> Any:
        parts = ()
        for part in inputs:
            rows = part.shape[0] // self.micro_size
            begin, end = (i * rows,) + (0,) * (part.ndim - 1), ((i + 1) * rows, *part.shape[1:])
            parts = (*parts, self.strided_slice(part, begin, end, (1,) * part.ndim))
        return parts


def _wide(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple([_wide(item) for item in value])
    if value.dtype in HALVES:
        return ops.cast(value, FLOAT32)
    return value


GradAccumulation = GradAccumulationCell
"""Its name in `mindspore.parallel.nn`."""


__getattr__ = beside(__name__)


class VirtualDataset(Cell):
    """Returns tensors as a tuple, each sharded as set by `shard`; unchanged without `shard`."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.parts: tuple[Any, ...] = ()

    def shard(self, in_strategy: Any, *args: Any, **kwargs: Any) -> Any:
        """Shard the tensors, one tuple or Layout for each, and return self."""
        self.parts = tuple(ops.ShardingConstraint().shard((strategy,)) for strategy in in_strategy or ())
        return self

    def add_prim_attr(self, name: str, value: Any) -> Any:
        """Accept an attribute without effect: no operator would show it."""
        return self

    def construct(self, *tensors: Any) -> Any:
        if not self.parts:
            return tensors
        return tuple([part(tensor) for part, tensor in zip(self.parts, tensors, strict=True)])


class VirtualDatasetCell(Cell):
    """A network with a VirtualDataset on its inputs."""

    def __init__(self, backbone: Any) -> None:
        super().__init__(auto_prefix=False)
        self._backbone = backbone
        self._virtual_dataset = VirtualDataset()

    def construct(self, *inputs: Any) -> Any:
        return self._backbone(*self._virtual_dataset(*inputs))


class VirtualDatasetCellTriple(VirtualDatasetCell):
    """A network of three inputs with a VirtualDataset on them."""

    def construct(self, a: Any, b: Any, c: Any) -> Any:
        return self._backbone(*self._virtual_dataset(a, b, c))
