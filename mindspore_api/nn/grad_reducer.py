"""Reductions of gradients over the ranks of data parallel training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.ir.types import FLOAT32
from mspc.mindspore_api import context, ops
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.communication.group import GlobalComm, get_group_size
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.nn.cell import Cell


class DistributedGradReducer(Cell):
    """A tuple of gradients, each the sum over the ranks of a group, computed in Float32.

    Gradients of parameters with `layerwise_parallel=True` stay local to each rank. In data parallel mode the compiler
    does not reduce gradients that pass through here. In semi-automatic and automatic mode gradients are global already,
    and as in MindSpore this cell must not be called.

    Args:
        parameters: those of the gradients, in their order. mean: whether sums are divided by `degree`; by default the
            value of `gradients_mean`. degree: by default the size of the group. fusion_type: changes nothing; mspc
            decides which gradients are reduced together. group: by default all ranks.

    Raises RuntimeError before `init()`, or if called in semi-automatic or automatic mode; TypeError or ValueError if an
    argument is something else.
    """

    def __init__(
        self, parameters: Sequence[Any], mean: bool | None = None, degree: int | None = None, fusion_type: int = 1,
        group: str = GlobalComm.WORLD_COMM_GROUP,
    ) -> None:  # fmt: skip
        super().__init__(auto_prefix=False)
        if mean not in (None, True, False):
            raise ApiTypeError(f"DistributedGradReducer: mean must be True or False, not {mean!r}")
        size = get_group_size(group)
        if degree is not None and (isinstance(degree, bool) or not isinstance(degree, int) or degree < 1):
            raise ApiValueError(f"DistributedGradReducer: degree must be a number from 1 on, not {degree!r}")
        self.mean = context.get_auto_parallel_context("gradients_mean") if mean is None else mean
        self.degree = size if degree is None else degree
        self.summed = tuple(not parameter.layerwise_parallel for parameter in parameters)
        self.all_reduce = ops.AllReduce(ops.ReduceOp.SUM, group)
        mode = context.get_auto_parallel_context("parallel_mode")
        self.are_global = mode in ("semi_auto_parallel", "auto_parallel")

    def construct(self, grads: Any) -> Any:
        """Return the gradients, reduced; also accepts a single gradient."""
        if self.are_global:
            raise RuntimeError("DistributedGradReducer: gradients are those of all ranks already in this parallel mode")
        if not isinstance(grads, (tuple, list)):
            return self.reduced(grads)
        if len(grads) != len(self.summed):
            raise ValueError("DistributedGradReducer: there must be one gradient for each parameter")
        return tuple([self.reduced(grad) if summed else grad for grad, summed in zip(grads, self.summed, strict=True)])

    def reduced(self, grad: Any) -> Any:
        """Return one gradient, reduced."""
        total = self.all_reduce(ops.cast(grad, "float32"))
        if self.mean:
            total = total * (1.0 / self.degree)
        return ops.cast(total, grad.dtype)


class PipelineGradReducer(Cell):
    """The given gradients, divided by `scale_sense`.

    MindSpore accumulates gradients of micro-batches here, and reduces them over the ranks after the last micro-batch.
    Here the gradients of a `PipelineCell` are sums over its micro-batches and all ranks already, reduced once.

    Args:
        parameters: those of the gradients, in their order. scale_sense: a number by which losses were multiplied.
            opt_shard: changes nothing; optimizer parallel shards gradients as its setting says.

    Raises TypeError or ValueError if an argument is something else, scale_sense is 0, or the number of gradients is not
    that of the parameters.
    """

    def __init__(self, parameters: Sequence[Any], scale_sense: float = 1.0, opt_shard: bool | None = None) -> None:
        super().__init__(auto_prefix=False)
        if not all(isinstance(each, Parameter) for each in parameters):
            raise ApiTypeError("PipelineGradReducer: parameters must be Parameters")
        if scale_sense == 0:
            raise ApiValueError("PipelineGradReducer: scale_sense must not be 0, by which gradients are divided")
        self.count = len(parameters)
        self.scale_sense = Parameter(Tensor(scale_sense, FLOAT32), name="scale_sense", requires_grad=False)
        self.scales = scale_sense != 1

    def construct(self, grads: Any) -> Any:
        """Return the gradients, divided."""
        if len(grads) != self.count:
            raise ValueError("PipelineGradReducer: there must be one gradient for each parameter")
        if not self.scales:
            return grads
        return tuple([grad / ops.cast(self.scale_sense, grad.dtype) for grad in grads])
