"""Mixed precision, as `mindspore.amp`: the choice of the parts of a network that compute in half precision, and loss
scaling.

Weights stay in Float32 (master weights). The compiler casts them, the inputs and the constants of the cells that
compute in half precision; gradients are cast back to Float32. The lists are MindSpore's.
"""

from __future__ import annotations

from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import FLOAT16, FLOAT32, HALVES, DType, dtype_of
from mspc.mindspore_api import ops
from mspc.mindspore_api.context import get_context
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.cell_state import Precision
from mspc.mindspore_api.nn.loss_scale import (
    DynamicLossScaler,
    LossScaler,
    StaticLossScaler,
    TrainOneStepWithLossScaleCell,
    all_finite,
    init_status,
)
from mspc.mindspore_api.nn.wrap import TrainOneStepCell, WithLossCell, WithWideLossCell
from mspc.mindspore_api.setting_kind import say_once
from mspc.mindspore_api.train.loss_scale_manager import (
    DynamicLossScaleManager,
    FixedLossScaleManager,
    LossScaleManager,
    check_manager,
)

__all__ = [
    "DynamicLossScaleManager", "DynamicLossScaler", "FixedLossScaleManager", "LossScaleManager", "LossScaler",
    "StaticLossScaler", "all_finite", "auto_mixed_precision", "build_train_network", "custom_mixed_precision",
    "get_black_list", "get_white_list", "init_status",
]  # fmt: skip

LEVELS = ("O0", "O1", "O2", "O3", "auto")
WHITE_CELLS = (
    "Conv1d", "Conv2d", "Conv3d", "Conv1dTranspose", "Conv2dTranspose", "Conv3dTranspose", "Dense", "LSTMCell",
    "RNNCell", "GRUCell",
)  # fmt: skip
"""Cells of `nn` that compute in half precision under O1."""
WHITE_OPERATORS = (
    "Conv2D", "Conv3D", "Conv2DTranspose", "Conv3DTranspose", "MatMul", "BatchMatMul", "PReLU", "ReLU", "Ger",
)  # fmt: skip
"""Operators that do so outside of those cells."""
BLACK_CELLS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "LayerNorm")
"""Cells that stay in Float32 under O2."""
AUTO_WHITE = (
    "Conv2D", "Conv3D", "Conv2DTranspose", "Conv3DTranspose", "MatMul", "BatchMatMul", "PReLU", "Einsum", "Dense",
    "Addmm", "FlashAttentionScore",
)  # fmt: skip
"""Operators in half precision under "auto"."""
AUTO_BLACK = (
    "Pow", "ACos", "Asin", "Cosh", "Erfinv", "Exp", "Expm1", "Log", "Log1p", "Reciprocal", "Rsqrt", "Sinh", "Tan",
    "Softplus", "LayerNorm", "BatchNorm", "GroupNorm", "KLDivLoss", "SmoothL1Loss", "BCEWithLogitsLoss", "Pdist",
    "Cdist", "Renorm", "ReduceProd", "Softmax", "LogSoftmax", "CumProd", "CumSum", "CumulativeLogsumexp",
    "SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits", "NLLLoss", "ReduceSum",
)  # fmt: skip
"""Operators in Float32 under "auto"; the others take the widest of their operands' element types."""


def get_white_list() -> list[Any]:
    """Return a new list of the classes of cells and operators that O1 computes in half precision."""
    from mspc.ops.op import REGISTRY  # late: it imports NumPy

    return [*_cells(WHITE_CELLS), *(getattr(ops, name) for name in WHITE_OPERATORS if name in REGISTRY)]


def get_black_list() -> list[Any]:
    """Return a new list of the classes of cells that O2 leaves in Float32."""
    return _cells(BLACK_CELLS)


def auto_mixed_precision(network: Cell, amp_level: str = "O0", dtype: Any = FLOAT16) -> Cell:
    """Return `network`, computing in `dtype` (float16 or bfloat16) according to the level; its results are Float32.

    O0 changes nothing. O1: the cells and operators of the white list compute in `dtype`. O2: all but the cells of the
    black list. O3: everything. "auto": operators of `AUTO_WHITE` in `dtype`, those of `AUTO_BLACK` in Float32. Raise
    TypeError if `network` is no Cell; ValueError for an unknown level or element type.
    """
    name = "auto_mixed_precision"
    if not isinstance(network, Cell):
        raise ApiTypeError(f"{name}: network must be a Cell, not {type(network).__name__}")
    _check_level(name, amp_level)
    half = _half(name, dtype)
    if amp_level == "O0":
        return network
    if amp_level == "O1":
        _narrow(network, half, tuple(_cells(WHITE_CELLS)), frozenset(WHITE_OPERATORS))
    elif amp_level == "auto":
        policy = Precision(half, frozenset(AUTO_WHITE), frozenset(AUTO_BLACK))
        network.add_flags_recursive(precision=policy)
    else:
        network.to_float(half)
        if amp_level == "O2":
            _keep_wide(network, half, tuple(_cells(BLACK_CELLS)))
    return network.add_flags(result_float=FLOAT32)


def custom_mixed_precision(
    network: Cell, *, white_list: Any = None, black_list: Any = None, dtype: Any = FLOAT16
) -> Cell:
    """Return `network` with the cells and operators of the white list in `dtype`, or all but those of the black list.
    Raise TypeError if `network` is no Cell, an entry no Cell or Primitive class; ValueError unless exactly one list is
    given."""
    name = "custom_mixed_precision"
    if not isinstance(network, Cell):
        raise ApiTypeError(f"{name}: network must be a Cell, not {type(network).__name__}")
    if (white_list is None) == (black_list is None):
        raise ApiValueError(f"{name} takes a white_list or a black_list, and not both")
    half = _half(name, dtype)
    given = white_list if white_list is not None else black_list
    for entry in given:
        if not isinstance(entry, type):
            raise ApiTypeError(f"{name}: the list holds {entry!r}, which is no class of cells or operators")
    cells = tuple(entry for entry in given if issubclass(entry, Cell))
    operators = frozenset(entry.__name__ for entry in given if not issubclass(entry, Cell))
    if white_list is not None:
        _narrow(network, half, cells, operators)
    else:
        network.to_float(half)
        network.add_flags_recursive(precision=Precision(half, wide=operators))
        _keep_wide(network, half, cells)
    return network.add_flags(result_float=FLOAT32)


def _narrow(network: Cell, half: DType, cells: tuple[type, ...], operators: frozenset[str]) -> None:
    network.add_flags_recursive(precision=Precision(half, operators, widens=True))
    for _, cell in network.cells_and_names():
        if isinstance(cell, cells):
            cell.to_float(half)
            for _, below in cell.cells_and_names():
                below.get_flags().pop("precision", None)
            cell.add_flags(result_float=FLOAT32)


def _keep_wide(network: Cell, half: DType, cells: tuple[type, ...]) -> None:
    for _, cell in network.cells_and_names():
        if isinstance(cell, cells):
            cell.to_float(FLOAT32)
            cell.add_flags(result_float=half)


def build_train_network(
    network: Cell, optimizer: Cell, loss_fn: Any = None, level: str = "O0", boost_level: str = "O0",
    dtype: Any = FLOAT16, **kwargs: Any,
) -> Cell:  # fmt: skip
    """Return the cell of one training step in mixed precision.

    Args:
        level: "O0" and "O1" leave cells as they are ("O1" with the white list in half precision); "O2" computes in half
            precision except normalizations, with a dynamic loss scale; "O3" in half precision throughout, without loss
            scale; "auto" is "O2" on a GPU, "O3" on an Ascend and "O0" on a CPU.
        boost_level: changes nothing, as a warning says.
        dtype: float16 or bfloat16.
        kwargs: keep_batchnorm_fp32 and loss_scale_manager replace the level's; cast_model_type replaces dtype (float32:
            as O0).

    Raises TypeError or ValueError if an argument is of the wrong kind.
    """
    name = "build_train_network"
    check_boost(name, boost_level)
    if not isinstance(network, Cell):
        raise ApiTypeError(f"{name}: network must be a Cell, not {type(network).__name__}")
    if not isinstance(optimizer, Cell):
        raise ApiTypeError(f"{name}: optimizer must be an optimizer, not {type(optimizer).__name__}")
    if loss_fn is not None and not callable(loss_fn):
        raise ApiTypeError(f"{name}: loss_fn must be a Cell or a function, not {type(loss_fn).__name__}")
    level = resolved(name, level)
    settings = _settings(name, level, kwargs)
    half = _half(name, dtype)
    if "cast_model_type" in kwargs:
        cast = _element_type(name, kwargs["cast_model_type"])
        half, level = (half, "O0") if cast == FLOAT32 else (_half(name, cast), level if level != "O0" else "O3")
    if level == "O1":
        auto_mixed_precision(network, "O1", half)
    elif level in ("O2", "O3"):
        network.to_float(half)
        if settings["keep_batchnorm_fp32"]:
            _keep_wide(network, half, tuple(_cells(BLACK_CELLS)))
    if loss_fn is not None:
        network = (WithWideLossCell if level in ("O2", "O3") else WithLossCell)(network, loss_fn)
    manager = settings["loss_scale_manager"]
    if manager is None:
        return TrainOneStepCell(network, optimizer).set_train()
    update = manager.get_update_cell()
    if update is None:
        return TrainOneStepCell(network, optimizer, manager.get_loss_scale()).set_train()
    return TrainOneStepWithLossScaleCell(network, optimizer, update).set_train()


def check_boost(name: str, level: Any) -> None:
    """Warn once that steps are not approximated. Raise ValueError for a level that MindSpore does not have."""
    if level not in ("O0", "O1", "O2", "auto"):
        raise ApiValueError(f"{name}: boost_level {level!r} is not one of 'O0', 'O1', 'O2', 'auto'")
    if level != "O0":
        say_once(f"{name} boost", f"{name}(boost_level={level!r}) changes nothing here: no step is approximated")


def resolved(name: str, level: str) -> str:
    """Return the level, with "auto" replaced by the level for this device. Raise ValueError for unknown levels."""
    _check_level(name, level)
    if level != "auto":
        return level
    return {"GPU": "O2", "Ascend": "O3"}.get(get_context("device_target"), "O0")


def _settings(name: str, level: str, given: dict[str, Any]) -> dict[str, Any]:
    for key in given:
        if key not in ("keep_batchnorm_fp32", "loss_scale_manager", "cast_model_type"):
            raise ApiValueError(
                f"{name} has no argument {key!r}; it takes cast_model_type, keep_batchnorm_fp32, loss_scale_manager"
            )
    keep = given.get("keep_batchnorm_fp32", level == "O2")
    if not isinstance(keep, bool):
        raise ApiTypeError(f"{name}: keep_batchnorm_fp32 must be True or False, not {keep!r}")
    if "loss_scale_manager" in given:
        manager = check_manager(name, given["loss_scale_manager"])
    else:
        manager = DynamicLossScaleManager() if level == "O2" else None
    return {"keep_batchnorm_fp32": keep, "loss_scale_manager": manager}


def _check_level(name: str, level: Any) -> None:
    if level not in LEVELS:
        raise ApiValueError(f"{name}: level {level!r} is not one of {', '.join(map(repr, LEVELS))}")


def _element_type(name: str, dtype: Any) -> DType:
    try:
        return dtype_of(dtype)
    except (MspcError, TypeError):
        raise ApiValueError(f"{name}: {dtype!r} is no element type", ["use float16 or bfloat16"]) from None


def _half(name: str, dtype: Any) -> DType:
    found = _element_type(name, dtype)
    if found not in HALVES:
        raise ApiValueError(f"{name}: {found} is neither Float16 nor BFloat16")
    return found


def _cells(names: tuple[str, ...]) -> list[Any]:
    from mspc.mindspore_api import nn  # late: only existing names are looked up in it

    return [getattr(nn, name) for name in names if name in nn.__all__]
