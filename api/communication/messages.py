"""Messages between ranks are plain data here, for `batch_isend_irecv`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.api.communication.group import GlobalComm
from mspc.api.communication.handle import member
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import dtype_of


@dataclass(eq=False)
class P2POp:
    """A tensor to be sent ("isend") or received ("irecv").

    Args:
        op: "isend", "irecv", or the function of that name. tensor: what is sent; of what is received a tensor of its
            shape and element type, or the shape. peer: the other rank. group: its group, that of all ranks by default.
        tag: only 0. recv_dtype: the element type where `tensor` is a shape.

    Raises:
        TypeError, ValueError: an argument is something else.
    """

    op: Any
    tensor: Any
    peer: int
    group: str | None = None
    tag: int = 0
    recv_dtype: Any = None

    def __post_init__(self) -> None:
        op, tensor = self.op, self.tensor
        if not isinstance(op, str) and not callable(op):
            raise ApiTypeError(f"P2POp: op must be 'isend' or 'irecv', or the function of that name, not {op!r}")
        name = op if isinstance(op, str) else getattr(op, "__name__", "")
        if name not in ("isend", "irecv"):
            raise ApiValueError(f"P2POp: op must be 'isend' or 'irecv', not {name!r}")
        if isinstance(self.peer, bool) or not isinstance(self.peer, int):
            raise ApiTypeError(f"P2POp: peer must be an integer, not {self.peer!r}")
        if self.tag != 0:
            raise ApiValueError(f"P2POp: tag must be 0, not {self.tag!r}")
        self.sends = name == "isend"
        if not isinstance(tensor, tuple):
            kind = getattr(tensor, "tensor_type", tensor)  # a value of a graph, or a Tensor
            if not hasattr(kind, "shape") or not hasattr(kind, "dtype"):
                raise ApiTypeError(f"P2POp: tensor must be a tensor or a shape, not {tensor!r}")
            self.shape, self.dtype = tuple(kind.shape), kind.dtype
            return
        if self.sends:
            raise ApiTypeError(f"P2POp: 'isend' takes a tensor, not the shape {tensor!r}")
        if self.recv_dtype is None:
            raise ApiValueError("P2POp: 'irecv' of a shape needs recv_dtype, the element type")
        self.shape, self.dtype = tensor, dtype_of(self.recv_dtype)


def checked_messages(messages: Sequence[Any]) -> str:
    """The group of messages that travel together.

    Raises:
        TypeError, ValueError: they are none, of different groups, or name a rank that is not in the group.
    """
    if not messages:
        raise ApiTypeError("batch_isend_irecv: p2p_op_list must have at least one P2POp")
    wrong = next((each for each in messages if not isinstance(each, P2POp)), None)
    if wrong is not None:
        raise ApiTypeError(f"batch_isend_irecv: p2p_op_list must be a list of P2POp, not of {wrong!r}")
    groups = {each.group for each in messages}
    if len(groups) > 1:
        raise ApiValueError(f"batch_isend_irecv: all must be of one group, not of {', '.join(map(str, groups))}")
    group = messages[0].group or GlobalComm.WORLD_COMM_GROUP
    for each in messages:
        member("batch_isend_irecv", "peer", each.peer, group)
    return group


def kinds_of(messages: Sequence[P2POp]) -> list[Any]:
    """The element types of messages, in an order that all ranks share."""
    return [kind for _, kind in sorted({str(each.dtype): each.dtype for each in messages}.items())]
