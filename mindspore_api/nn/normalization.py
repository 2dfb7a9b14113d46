"""Layers that normalise channels: by the batch, by groups of channels, by each image."""

from __future__ import annotations

from typing import Any

from mspc.ir.types import FLOAT32
from mspc.mindspore_api import ops, state
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.context import get_auto_parallel_context
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.cell_arguments import check_format, flag, number, parameter, positive

Groups = tuple[tuple[int, ...], ...]
SHARDED = ("semi_auto_parallel", "auto_parallel")
"""Modes in which the compiler shards the batch, so that statistics are always those of the global batch."""


class _BatchNorm(Cell):
    """Parameters gamma, beta, moving_mean and moving_variance, one number a channel."""

    ranks: tuple[int, ...] = ()
    called = ""
    """The public cell's name in messages, if it differs."""

    def __init__(
        self, num_features: Any, eps: Any, momentum: Any, affine: Any, gamma_init: Any, beta_init: Any,
        moving_mean_init: Any, moving_var_init: Any, use_batch_statistics: Any, dtype: Any, groups: Groups = (),
    ) -> None:  # fmt: skip
        super().__init__()
        name = self.called or type(self).__name__
        self.num_features = positive(name, "num_features", num_features)
        self.eps = number(name, "eps", eps, above=0.0)
        if number(name, "momentum", momentum) > 1:
            raise ApiValueError(f"{name}: momentum {momentum} must be at most 1")
        self.momentum = 1.0 - momentum
        if use_batch_statistics not in (None, True, False):
            raise ApiTypeError(
                f"{name}: use_batch_statistics must be True, False or None, not {use_batch_statistics!r}"
            )
        self.use_batch_statistics = use_batch_statistics
        shape = (num_features,)
        self.moving_mean = parameter(moving_mean_init, shape, dtype, "moving_mean")
        self.moving_variance = parameter(moving_var_init, shape, dtype, "moving_variance")
        self.gamma = parameter(gamma_init, shape, dtype, "gamma")
        self.beta = parameter(beta_init, shape, dtype, "beta")
        self.moving_mean.requires_grad = self.moving_variance.requires_grad = False
        self.gamma.requires_grad = self.beta.requires_grad = flag(name, "affine", affine)
        self.bn_train = ops.BatchNorm(True, self.eps, self.momentum, groups=groups)
        self.bn_infer = ops.BatchNorm(False, self.eps)

    def construct(self, x: Any) -> Tensor:
        if len(x.shape) not in self.ranks:
            raise ApiValueError(
                f"{self.called or self.cls_name}: the input must have {' or '.join(map(str, self.ranks))} dimensions, "
                f"but its shape is {x.shape}"
            )
        batch = self.training if self.use_batch_statistics is None else self.use_batch_statistics
        if batch:
            return self.bn_train(x, self.gamma, self.beta, self.moving_mean, self.moving_variance)[0]
        return self.bn_infer(x, self.gamma, self.beta, self.moving_mean, self.moving_variance)[0]

    def extend_repr(self) -> str:
        return f"num_features={self.num_features}, eps={self.eps}, momentum={1.0 - self.momentum}"


class _PlaneNorm(_BatchNorm):
    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.9, affine: bool = True,
        gamma_init: Any = "ones", beta_init: Any = "zeros", moving_mean_init: Any = "zeros",
        moving_var_init: Any = "ones", use_batch_statistics: bool | None = None, data_format: str = "NCHW",
        dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        check_format(type(self).__name__, data_format, "NCHW")
        super().__init__(num_features, eps, momentum, affine, gamma_init, beta_init, moving_mean_init, moving_var_init,
                         use_batch_statistics, dtype)  # fmt: skip


class BatchNorm1d(_PlaneNorm):
    """Batch normalisation of [n, num_features] or [n, num_features, l]; arguments as BatchNorm2d's."""

    ranks = (2, 3)


class BatchNorm2d(_PlaneNorm):
    """Batch normalisation of images [n, num_features, h, w].

    In training every channel is normalised by the mean and variance of the global batch, over all ranks that share it,
    and the moving statistics are updated; else by the moving statistics.

    Args:
        eps: added to the variance.
        momentum: the share of the old moving statistics in the new ones.
        affine: gamma and beta are trained.
        use_batch_statistics: True or False to make it independent of training.
    """

    ranks = (4,)


class _VolumeNorm(_BatchNorm):
    """Inner layer of a BatchNorm3d."""

    ranks = (5,)
    called = "BatchNorm3d"


class BatchNorm3d(Cell):
    """Batch normalisation of [n, num_features, d, h, w]; arguments as BatchNorm2d's.

    The parameters are those of the cell `bn2d`, as in MindSpore's checkpoints.
    """

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.9, affine: bool = True,
        gamma_init: Any = "ones", beta_init: Any = "zeros", moving_mean_init: Any = "zeros",
        moving_var_init: Any = "ones", use_batch_statistics: bool | None = None, dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        super().__init__()
        self.bn2d = _VolumeNorm(
            num_features, eps, momentum, affine, gamma_init, beta_init, moving_mean_init, moving_var_init,
            use_batch_statistics, dtype,
        )  # fmt: skip

    def construct(self, x: Any) -> Tensor:
        return self.bn2d(x)


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation with the statistics of groups of ranks, for graphs that each rank runs on its own.

    In data parallel mode the statistics are those of all ranks anyway, unless `process_groups` says otherwise; if the
    compiler shards the batch they are always those of the global batch.

    Args:
        process_groups: lists of ranks that share their statistics; None: all ranks.
    """

    ranks = (2, 3, 4, 5)

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.9, affine: bool = True,
        gamma_init: Any = "ones", beta_init: Any = "zeros", moving_mean_init: Any = "zeros",
        moving_var_init: Any = "ones", use_batch_statistics: bool | None = None, process_groups: Any = None,
        dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        groups = _groups(process_groups)
        if get_auto_parallel_context("parallel_mode") in SHARDED:
            if process_groups is not None:
                raise ApiValueError(
                    "SyncBatchNorm: process_groups has no meaning if the compiler shards the batch: statistics "
                    "are those of the global batch"
                )
            groups = ()
        super().__init__(num_features, eps, momentum, affine, gamma_init, beta_init, moving_mean_init, moving_var_init,
                         use_batch_statistics, dtype, groups)  # fmt: skip


def _ranks() -> int:
    """Return the number of ranks of the script, as far as known: from `init` or `device_num`."""
    session = state.current()
    return get_auto_parallel_context("device_num") if session.initialized else session.parallel.get("device_num", 1)


def _groups(given: Any) -> Groups:
    """Return groups of ranks after a check that each rank occurs once."""
    size = _ranks()
    if given is None:
        return (tuple(range(size)),) if size > 1 else ()
    if not isinstance(given, list | tuple) or not all(isinstance(group, list | tuple) for group in given):
        raise ApiTypeError(f"SyncBatchNorm: process_groups must be a list of lists of ranks, not {given!r}")
    found = tuple(tuple(group) for group in given)
    if sorted(rank for group in found for rank in group) != list(range(size)):
        raise ApiValueError(f"SyncBatchNorm: process_groups must hold each of {size} ranks once, not {given!r}")
    return found if size > 1 else ()


class GroupNorm(Cell):
    """An image's channels in `num_groups` groups, each normalised to mean 0 and variance 1, times gamma, plus beta."""

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, gamma_init: Any = "ones",
        beta_init: Any = "zeros", dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_groups = positive("GroupNorm", "num_groups", num_groups)
        self.num_channels = positive("GroupNorm", "num_channels", num_channels)
        if num_channels % num_groups:
            raise ApiValueError(f"GroupNorm: num_channels {num_channels} must be a multiple of num_groups {num_groups}")
        self.eps = number("GroupNorm", "eps", eps, above=0.0)
        self.gamma = parameter(gamma_init, (num_channels,), dtype, "gamma")
        self.beta = parameter(beta_init, (num_channels,), dtype, "beta")
        self.gamma.requires_grad = self.beta.requires_grad = flag("GroupNorm", "affine", affine)

    def construct(self, x: Any) -> Tensor:
        return ops.group_norm(x, self.num_groups, self.gamma, self.beta, self.eps)

    def extend_repr(self) -> str:
        return f"num_groups={self.num_groups}, num_channels={self.num_channels}"


class _InstanceNorm(Cell):
    """Every channel of every image normalised to mean 0 and variance 1, times gamma, plus beta."""

    ranks: tuple[int, ...] = ()

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True,
        gamma_init: Any = "ones", beta_init: Any = "zeros", dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        super().__init__()
        name = type(self).__name__
        self.num_features = positive(name, "num_features", num_features)
        self.eps = number(name, "eps", eps, above=0.0)
        self.momentum = number(name, "momentum", momentum)
        self.gamma = parameter(gamma_init, (num_features,), dtype, "gamma")
        self.beta = parameter(beta_init, (num_features,), dtype, "beta")
        self.gamma.requires_grad = self.beta.requires_grad = flag(name, "affine", affine)

    def construct(self, x: Any) -> Tensor:
        if len(x.shape) not in self.ranks:
            raise ApiValueError(f"{self.cls_name}: the input of shape {x.shape} must have {self.ranks[0]} dimensions")
        return ops.group_norm(x, self.num_features, self.gamma, self.beta, self.eps)


class InstanceNorm1d(_InstanceNorm):
    """Instance normalisation of [n, num_features, l]."""

    ranks = (3,)


class InstanceNorm2d(_InstanceNorm):
    """Instance normalisation of [n, num_features, h, w]."""

    ranks = (4,)


class InstanceNorm3d(_InstanceNorm):
    """Instance normalisation of [n, num_features, d, h, w]."""

    ranks = (5,)
