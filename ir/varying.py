"""Some values may differ between ranks whose graphs are otherwise equal; this module notes what passes ask of them.

A pass that handles such a value in the dark treats all these ranks alike. So passes get a stand-in, which answers as
one rank's value would and writes down every question. For another rank the passes would do the same if its values
answer these questions in the same way. A stand-in hides its class, so that `isinstance` sees the value's, and what is
computed with it is one rank's value, in which ranks must agree then. It cannot be hashed: equal hashes would be an
answer that nobody wrote down, and a table that outlives the questions must not hold it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Never, cast

from mspc.ir.graph import Constant, OpLike, Value
from mspc.ir.late_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class RankField:
    """The place of a rank's value: field `field` of operator `number` of what place `place` of the graph is on
    that rank; `ascending`: that value, sorted."""

    place: int
    number: int
    field: str
    ascending: bool = False


Look = tuple[str, RankField, Any]
"""A question: "value" or "length" of a slot (the third is None), whether it "equals" a value, or is "like" a slot."""


class Looks:
    """The questions that were asked and one rank's answers, until they are closed; then none may be asked."""

    def __init__(self) -> None:
        self.answers: dict[Look, Any] = {}
        self.sorted: dict[RankField, Varying] = {}
        self._slots: list[RankField] = []
        self._asked: list[tuple[str, int, Any, Any]] | None = None

    def note(self, kind: str, slot: RankField, other: Any, answer: Any) -> Any:
        """Write down an answer and give it back."""
        assert self._asked is None, f"{slot} is looked at when ranks are told apart already"
        self.answers[kind, slot, other] = answer
        return answer

    def close(self) -> None:
        """Number the slots, so that many ranks can be asked."""
        numbers: dict[RankField, int] = {}
        self._asked = []
        for (kind, slot, other), answer in self.answers.items():
            if kind == "like":
                other = numbers.setdefault(other, len(numbers))
            self._asked.append((kind, numbers.setdefault(slot, len(numbers)), other, answer))
        self._slots = list(numbers)

    def hold_for(self, value_at: Callable[[RankField], Any]) -> bool:
        """Whether another rank's values answer every question in the same way."""
        assert self._asked is not None, "the questions are not closed yet"
        values = list(map(value_at, self._slots))
        for kind, number, other, answer in self._asked:
            value = values[number]
            if kind == "like":
                same = (value == values[other]) is answer
            elif kind == "equals":
                same = (value == other) is answer
            else:
                same = _same(len(value) if kind == "length" else value, answer)
            if not same:
                return False
        return True


def _same(left: Any, right: Any) -> bool:
    """Whether nothing tells two values apart; equal numbers of two classes are told apart."""
    if type(left) is not type(right):
        return False
    if isinstance(left, tuple):
        members, others = cast("tuple[Any, ...]", left), cast("tuple[Any, ...]", right)
        return len(members) == len(others) and all(map(_same, members, others))
    return repr(left) == repr(right) if isinstance(left, float) else left == right


def _computed(function: Callable[..., Any]) -> Callable[..., Any]:
    """An operator as a method of stand-ins: what it gives for one rank's value."""
    return lambda self, *others: function(self.looked(), *map(_of_one_rank, others))


def _computed_behind(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a stand-in on the right."""
    return lambda self, left: function(left, self.looked())


def _of_one_rank(value: Any) -> Any:
    return value.looked() if type(value) is Varying else value


class Varying:
    """Stands for a tuple, a number or a string that may differ between ranks.

    Its class is part of what the ranks have in common, and so it tells it freely.
    """

    __slots__ = ("_looks", "_value", "slot")

    def __init__(self, slot: RankField, value: Any, looks: Looks) -> None:
        self.slot = slot
        self._value = value
        self._looks = looks

    @property
    def __class__(self) -> Any:
        return cast("Any", type(self._value))

    def looked(self) -> Any:
        """One rank's value; from now on ranks must agree in it."""
        return self._looks.note("value", self.slot, None, self._value)

    def ascending(self) -> Varying:
        """What stands for the sorted members."""
        found = self._looks.sorted.get(self.slot)
        if found is None:
            slot = RankField(self.slot.place, self.slot.number, self.slot.field, ascending=True)
            found = self._looks.sorted[self.slot] = Varying(slot, tuple(sorted(self._value)), self._looks)
        return found

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        if type(other) is Varying:
            if other.slot == self.slot:
                return True
            return self._looks.note("like", self.slot, other.slot, self._value == other._value)
        return self._looks.note("equals", self.slot, other, self._value == other)

    def __hash__(self) -> Never:
        raise TypeError("what may differ between ranks cannot be hashed")

    def __bool__(self) -> bool:
        return len(self) > 0 if isinstance(self._value, Sequence) else bool(self.looked())

    def __len__(self) -> int:
        return self._looks.note("length", self.slot, None, len(self._value))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.looked())

    def __getitem__(self, index: Any) -> Any:
        return self.looked()[index]

    def __index__(self) -> int:
        return self.looked().__index__()

    def __str__(self) -> str:
        return str(self.looked())

    def __repr__(self) -> str:
        return repr(self.looked())

    def __format__(self, how: str) -> str:
        return format(self.looked(), how)

    def __getattr__(self, name: str) -> Any:
        # Methods, as `index` of a tuple and `split` of a string. Nobody has asked who looks for Python's own hooks.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.looked(), name)

    __lt__, __le__ = _computed(operator.lt), _computed(operator.le)
    __gt__, __ge__ = _computed(operator.gt), _computed(operator.ge)
    __neg__, __pos__, __abs__ = _computed(operator.neg), _computed(operator.pos), _computed(operator.abs)
    __int__, __float__ = _computed(int), _computed(float)
    __add__, __radd__ = _computed(operator.add), _computed_behind(operator.add)
    __sub__, __rsub__ = _computed(operator.sub), _computed_behind(operator.sub)
    __mul__, __rmul__ = _computed(operator.mul), _computed_behind(operator.mul)
    __truediv__, __rtruediv__ = _computed(operator.truediv), _computed_behind(operator.truediv)
    __floordiv__, __rfloordiv__ = _computed(operator.floordiv), _computed_behind(operator.floordiv)
    __mod__, __rmod__ = _computed(operator.mod), _computed_behind(operator.mod)
    __divmod__, __rdivmod__ = _computed(divmod), _computed_behind(divmod)
    __pow__, __rpow__ = _computed(operator.pow), _computed_behind(operator.pow)


def ascending(ranks: Sequence[int]) -> Sequence[int]:
    """The ranks sorted; equal for two lists of the same ranks. Of a stand-in a stand-in."""
    given = cast("Any", ranks)
    return cast("Sequence[int]", given.ascending()) if type(given) is Varying else tuple(sorted(ranks))


class OpKey:
    """An operator in the key of a table that no question outlives: found by its class and compared, since an operator
    with a stand-in cannot be hashed."""

    __slots__ = ("_op",)

    def __init__(self, op: OpLike) -> None:
        self._op = op

    def __hash__(self) -> int:
        return hash(type(self._op))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpKey) and self._op == other._op


class VaryingConstant(Constant):
    """Stands for a constant that is sharded, so that every rank has its own slice; all slices have one type."""

    __slots__ = ("_looks", "_own", "slot")

    def __init__(self, slot: RankField, own: Constant, looks: Looks) -> None:
        Value.__init__(self, own.type)
        self.slot = slot
        self._own = own
        self._looks = looks

    @property
    def value(self) -> Any:  # type: ignore[override]  # a question instead of a field
        """One rank's array; from now on ranks must agree in it."""
        self._looks.note("value", self.slot, None, constant_bytes(self._own))
        return self._own.value

    def same_as(self, other: Constant) -> bool:
        """Whether another constant of this type has the same bytes."""
        own = constant_bytes(self._own)
        if isinstance(other, VaryingConstant):
            if other.slot == self.slot:
                return True
            return self._looks.note("like", self.slot, other.slot, own == constant_bytes(other._own))
        return self._looks.note("equals", self.slot, constant_bytes(other), own == constant_bytes(other))

    def __repr__(self) -> str:
        return "VaryingConstant()"


def constant_bytes(constant: Constant) -> bytes:
    """The bytes by which constants of one type differ."""
    return constant.value.tobytes()
