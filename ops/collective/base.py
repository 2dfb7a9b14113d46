"""The base of collectives, and ranks' values that are known to be zero."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeGuard, cast

from mspc.ir.diagnostics import MspcError, ranks_listed
from mspc.ir.graph import Constant, Node, Value
from mspc.ir.layout import group_of
from mspc.ir.text.facts import fields_of
from mspc.ir.types import TensorType, Type
from mspc.ir.varying import VaryingConstant
from mspc.ops.control.structural import Depend
from mspc.ops.op import ArrayBackend, Op, RankPlacement
from mspc.ops.operator_arguments import describe
from mspc.sharding.groups import group_name

Ranks = tuple[int, ...]
_REDUCE_OPS = ("sum", "max", "min", "prod")
SUMMED = "summed_by_reader"
"""The attribute of a reduction that a GPU leaves to the kernel that reads it (`sum_in_readers`): its one reader may add
up the ranks' parts. The results of a graph do not depend on it."""


class Rendezvous(NamedTuple):
    """Participation in a collective. ranks: the participants. label: distinguishes collectives of the same ranks that
    need no common order. said: facts in which all participants must agree."""

    ranks: Ranks
    label: str
    said: str


_FIELDS = {
    "send_rank_ids": "a list of ranks", "recv_rank_ids": "a list of ranks", "recv_shapes": "a tuple of shapes",
    "send_shapes": "a tuple of shapes", "recv_type": "an element type", "send_lens": "a list of integers",
    "recv_lens": "a list of integers", "data_format": "a string", "group": "the name of a group",
}  # fmt: skip
"""Descriptions of the valid values of fields, for messages."""


def check_fields(op: Op) -> None:
    """Raise MspcError if a field of an operator that `checks_where_called` is not of its type."""
    for name, field in fields_of(type(op)).items():
        value = getattr(op, name)
        if name != "rank_list" and not field.fits(value):  # that is the compiler's, and may have thousands of ranks
            message = f"{op.name}: {name} must be {_FIELDS.get(name, field.annotation)}, not {describe(value)}"
            raise MspcError(message, kind=TypeError)


def check_reduction(op: Op, how: str) -> None:
    """Raise MspcError if a collective cannot combine tensors by `how`."""
    if how not in _REDUCE_OPS:
        raise MspcError(f"{op.name}: op is {how!r}", notes=[f"it must be one of {', '.join(_REDUCE_OPS)}"])


def message(source: int, target: int, type: Type, tag: int | None = None) -> Rendezvous:
    """Return a message between two ranks, the same for both."""
    label = f"messages from rank {source} to {target}"
    return Rendezvous((source, target), label if tag is None else f"{label} under tag {tag}", str(type))


class Collective(Op, abstract=True):
    """Base class of all collectives. A subclass has the fields `group` and `rank_list`; those that the compiler inserts
    have `mesh` and `axes`. A collective must run even if nothing on a rank reads its result, because other ranks wait
    for it."""

    takes_complex = True
    has_side_effect = True
    is_collective = True
    instead: ClassVar[tuple[str, ...]] = ()
    """Notes on replacements, in a network of global tensors, for its uses in scripts."""
    widens = False
    ordered: ClassVar[bool] = True
    """Whether the order of the ranks matters to the result."""
    agrees: ClassVar[bool] = False
    """Whether all ranks have the same result, or each its slice of a result that is the same for all."""
    omitted = ("group", "mesh", "axes", "rank_list")
    """The text of one form leaves out the fields of the other."""
    answers: ClassVar[bool] = False
    """Whether another rank waits for the gradient of its result, whatever is differentiated on this one."""
    differs_by_rank: ClassVar[bool] = False
    """Whether `on_rank` gives another operator."""
    named: ClassVar[tuple[str, ...]] = ()
    """Fields that name ranks of the group, by their numbers in the job; below 0 they name none."""

    @property
    def _mesh(self) -> tuple[int, ...]:
        return getattr(self, "mesh", ())

    @property
    def over_mesh(self) -> bool:
        """Whether this is the form in the graph of all ranks, whose group is named by mesh axes."""
        return bool(self._mesh)

    @property
    def members(self) -> Ranks:
        """Ranks of the group in the order of their slices; () if they are not known: over mesh axes, or for a group of
        which only the name is known."""
        return getattr(self, "rank_list", ())

    @property
    def may_alias(self) -> bool:  # type: ignore[override]  # only the form that runs on a rank makes arrays
        return bool(self._mesh)

    @property
    def ranks(self) -> Ranks:
        """Ranks of the group, in the order of their slices. Raise MspcError if the group is known by name only."""
        found = self.members
        if not found:
            raise MspcError(
                f"{self.name}: the ranks of group {getattr(self, 'group', '')!r} are not known here",
                notes=["call init() before the network is built, and create_group() for a group of your own"],
            )
        return found

    @property
    def group_size(self) -> int:
        return len(self.ranks)

    def mistake_in_group(self) -> str:
        """Return why nobody can call this, or "" if one can: a rank that it names is not in the group."""
        members = self.members
        for name in self.named if members else ():
            given = getattr(self, name)
            for one in cast("tuple[object, ...]", given if isinstance(given, tuple) else (given,)):
                if isinstance(one, int) and one not in members and (one >= 0 or not isinstance(given, tuple)):
                    return f"{self.name}: {name} {one} is not in {self._shown_group}"
        return ""

    def mistake_on(self, rank: int) -> str:
        """Return why `rank` cannot call this, or "" if it can: it is not in the group."""
        is_outside = bool(self.members) and rank not in self.members
        return f"{self.name}: rank {rank} is not in {self._shown_group}" if is_outside else ""

    @property
    def _shown_group(self) -> str:
        return f"group {getattr(self, 'group', '')!r}, which has {ranks_listed(self.members)}"

    @property
    def rank_size(self) -> int:
        """The number of ranks of the group, by the name that scripts know."""
        return self.group_size

    def with_ranks(self, ranks: Sequence[int], group: str = "") -> Self:
        """Return the form that runs on a rank, with its group."""
        listed = tuple(ranks)
        given = self.attributes() | {"rank_list": listed, "group": group or group_name(listed)}
        return type(self)(**{name: value for name, value in given.items() if name not in ("mesh", "axes")})

    def moved(self, by: int) -> Self:
        """Return the operator of another stage: the same among the ranks that are `by` further on."""
        given = dict(self.attributes())
        for name in {*self.named, "rank_list"} & given.keys():
            ranks = given[name]
            moved = [rank + by if rank >= 0 else rank for rank in (ranks if isinstance(ranks, tuple) else [ranks])]
            given[name] = tuple(moved) if isinstance(ranks, tuple) else moved[0]
        if self.members:
            given["group"] = group_name(given["rank_list"])
        return type(self)(**given)

    def rule(self, *types: TensorType) -> str:
        raise MspcError(
            f"{self.name} moves data between ranks by hand and cannot be sharded",
            kind=RuntimeError,
            notes=["remove it in semi_auto_parallel mode: mspc inserts the collectives there", *self.instead],
        )

    def localize(self, placement: RankPlacement) -> Op:
        if not self._mesh:
            return self
        axes: tuple[int, ...] = getattr(self, "axes", ())
        order = axes if self.ordered else tuple(sorted(axes))  # along ascending axes ranks ascend
        return self.with_ranks(group_of(self._mesh, order, placement.rank))

    def local_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the result on a rank. Raise MspcError if the operand does not fit."""
        return shape

    def infer(self, *types: Type) -> Type:
        x = one_tensor(self, types)
        if self._mesh:
            return x
        check_reduction(self, getattr(self, "op", "sum"))
        return x.with_shape(self.local_shape(x.shape))

    def partners(self, rank: int) -> Ranks:
        """Return the other ranks that `rank` sends to or receives from, ascending."""
        return tuple(sorted({*self.members} - {rank}))

    def channel(self, rank: int) -> tuple[Ranks, int]:
        """Return the channel of the messages of `rank`: (ranks, tag). Collectives of one channel have the same order on
        all of its ranks. tag: -1 for a group, that of the message between two ranks; ranks: in the order of their
        slices if the result depends on it."""
        return (self.members if self.ordered else tuple(sorted(self.members))), -1

    def rendezvous(self, rank: int, types: Sequence[Type]) -> list[Rendezvous]:
        """Return this rank's participations: for each set of ranks, the text on which all of them must agree. rank:
        this rank. types: of the operands."""
        own = {name: value for name, value in self.attributes().items() if name not in self.omitted}
        settings = ", ".join(f"{name}: {value}" for name, value in own.items())
        operands = ", ".join(map(str, types))
        return [Rendezvous(self.members, "", f"{self.name}{{{settings}}} of {operands or 'nothing'}")]

    def travelling(self, operands: Sequence[float], result: float) -> float:
        """Return the bytes from which `sent_bytes` computes the bytes that a rank sends, given those of its operands
        and result."""
        return sum(operands)

    def scratch_bytes(self, operands: Sequence[TensorType], result: Type) -> int:
        """Return the bytes that its launch on a GPU takes in addition to operands and result; a few bytes are not
        counted."""
        return 0

    @classmethod
    def sent_bytes(cls, operand: float, group: float) -> float:
        """Return the bytes that a rank sends, in the mean of the group and by ring algorithms. operand: bytes of a
        rank's operands. group: number of ranks."""
        return operand * (group - 1) / group

    @property
    def communicates(self) -> bool:
        """Whether anything travels to or from another rank: not in a group of one."""
        return len(self.members) > 1

    def on_rank(self, rank: int) -> Self:
        """Return the operator for the rank that calls it, if its result depends on the rank."""
        return self

    def bind(self, comm: Any) -> Callable[..., Any]:
        """Return the kernel on one rank."""
        raise NotImplementedError(self.name)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        return same if self._mesh else self.bind(be.comm)


def same(x: Any) -> Any:
    """Return the tensor, the kernel of the form over mesh axes: the global tensor is the same before and after."""
    return x


def is_summed_by_reader(value: Value) -> TypeGuard[Node]:
    """Whether a value is the result of a reduction that is left to its reader."""
    return isinstance(value, Node) and SUMMED in value.attrs


def one_tensor(op: Op, types: Sequence[Type]) -> TensorType:
    if len(types) != 1 or not isinstance(types[0], TensorType):
        raise MspcError(f"{op.name} takes one tensor, not {', '.join(map(str, types)) or 'none'}", code="E0301")
    return types[0]


def is_all_zero(value: Value) -> bool:
    """Whether every element is zero, as far as the operators show: a value made of zeros, or the result of linear
    operators with one operand (Reshape, Cast, sums) on such a value."""
    while isinstance(value, Node):
        if isinstance(value.op, Op) and value.op.uniform() == 0:
            return True
        is_linear = isinstance(value.op, Op) and len(value.inputs) == 1 and 0 in value.op.linear_in
        if not (is_linear or isinstance(value.op, Depend)):
            return False
        value = value.inputs[0]
    return isinstance(value, Constant) and not isinstance(value, VaryingConstant) and not value.value.any()
