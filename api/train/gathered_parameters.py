"""Slices become global parameters here, as MindSpore's own checkpoint callbacks ask for them."""

from __future__ import annotations

from mspc.api.common.tensor import Tensor
from mspc.api.errors import ApiKeyError, ApiTypeError
from mspc.api.nn.cell import Cell

__all__: tuple[str, ...] = ()


def _get_merged_param_data(net: Cell, param_name: str, param_data: Tensor, integrated_save: bool) -> Tensor:
    """The value of a parameter for a file: as it is given, since a script reads the global tensor, however it
    is sharded. integrated_save: changes nothing for that reason; `save_checkpoint` saves slices where it is False.

    Raises:
        TypeError: param_data is no tensor. KeyError: the network has no such parameter.
    """
    if not isinstance(param_data, Tensor):
        raise ApiTypeError(f"_get_merged_param_data: param_data must be a Tensor, not {type(param_data).__name__}")
    if param_name not in net.parameters_dict() and param_name not in getattr(net, "parameter_layout_dict", ()):
        raise ApiKeyError(f"_get_merged_param_data: the network has no parameter {param_name!r}")
    return param_data
