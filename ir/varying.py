"""Stand-ins for values that differ between ranks with otherwise equal graphs; they record the questions of passes.

A pass that never inspects such a value treats all these ranks alike. So passes get a stand-in, which answers like
one rank's value and records every question. For another rank the passes would do the same if its values
give the same answers. A stand-in hides its own class, so that `isinstance` sees the value's class. Computing with it
uses one rank's value, in which all ranks must then agree. It cannot be hashed: equal hashes would be an
unrecorded answer, and a table that outlives the questions must not hold a stand-in.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Never, cast

from mspc.ir.graph import Constant, OpLike, Value
from mspc.ir.late_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class RankField:
    """Key of a rank's value: field `field` of operator `number` at position `place` of that rank's graph. ascending:
    the value is sorted."""

    place: int
    number: int
    field: str
    ascending: bool = False


Look = tuple[str, RankField, Any]
"""A question: the "value" or "length" of a slot (third entry None), whether it "equals" a value, or is "like" one."""


class Looks:
    """The questions so far and one rank's answers. After `close` no further question is allowed."""

    def __init__(self) -> None:
        self.answers: dict[Look, Any] = {}
        self.sorted: dict[RankField, Varying] = {}
        self._slots: list[RankField] = []
        self._asked: list[tuple[str, int, Any, Any]] | None = None

    def note(self, kind: str, slot: RankField, other: Any, answer: Any) -> Any:
        """Record an answer and return it."""
        assert self._asked is None, f"{slot} is read after ranks were distinguished"
        self.answers[kind, slot, other] = answer
        return answer

    def close(self) -> None:
        """End the questions and number the slots, so that many ranks can be compared."""
        numbers: dict[RankField, int] = {}
        self._asked = []
        for (kind, slot, other), answer in self.answers.items():
            if kind == "like":
                other = numbers.setdefault(other, len(numbers))
            self._asked.append((kind, numbers.setdefault(slot, len(numbers)), other, answer))
        self._slots = list(numbers)

    def hold_for(self, value_at: Callable[[RankField], Any]) -> bool:
        """Return whether another rank's values give the same answers. value_at: returns that rank's value of a slot."""
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
    """Return whether two values are indistinguishable; equal numbers of different classes are not."""
    if type(left) is not type(right):
        return False
    if isinstance(left, tuple):
        members, others = cast("tuple[Any, ...]", left), cast("tuple[Any, ...]", right)
        return len(members) == len(others) and all(map(_same, members, others))
    return repr(left) == repr(right) if isinstance(left, float) else left == right


def _computed(function: Callable[..., Any], behind: bool = False) -> Callable[..., Any]:
    """Return an operator as a method of stand-ins: it is applied to one rank's value. behind: that is its right
    operand."""

    def method(self: Varying, *others: Any) -> Any:
        values = [value.looked() if type(value) is Varying else value for value in others]
        return function(*values, self.looked()) if behind else function(self.looked(), *values)

    return method


class Varying:
    """Stand-in for a tuple, a number or a string that may differ between ranks.

    All ranks' values have the same class, so `__class__` is answered without a record.
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
        """Return one rank's value; from now on ranks must agree in it."""
        return self._looks.note("value", self.slot, None, self._value)

    def ascending(self) -> Varying:
        """Return the stand-in for the sorted members."""
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
        raise TypeError("a value that may differ between ranks cannot be hashed")

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
        # Methods, as `index` of a tuple and `split` of a string. A lookup of Python's own hooks is no question.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.looked(), name)

    __lt__, __le__ = _computed(operator.lt), _computed(operator.le)
    __gt__, __ge__ = _computed(operator.gt), _computed(operator.ge)
    __neg__, __pos__, __abs__ = _computed(operator.neg), _computed(operator.pos), _computed(operator.abs)
    __int__, __float__ = _computed(int), _computed(float)
    __add__, __radd__ = _computed(operator.add), _computed(operator.add, True)
    __sub__, __rsub__ = _computed(operator.sub), _computed(operator.sub, True)
    __mul__, __rmul__ = _computed(operator.mul), _computed(operator.mul, True)
    __truediv__, __rtruediv__ = _computed(operator.truediv), _computed(operator.truediv, True)
    __floordiv__, __rfloordiv__ = _computed(operator.floordiv), _computed(operator.floordiv, True)
    __mod__, __rmod__ = _computed(operator.mod), _computed(operator.mod, True)
    __divmod__, __rdivmod__ = _computed(divmod), _computed(divmod, True)
    __pow__, __rpow__ = _computed(operator.pow), _computed(operator.pow, True)


def ascending(ranks: Sequence[int]) -> Sequence[int]:
    """Return the ranks sorted, so that two lists of the same ranks are equal. For a stand-in, return a stand-in."""
    given = cast("Any", ranks)
    return cast("Sequence[int]", given.ascending()) if type(given) is Varying else tuple(sorted(ranks))


class OpKey:
    """An operator in the key of a table that lives no longer than the questions: hashed by its class and then compared,
    since an operator with a stand-in cannot be hashed."""

    __slots__ = ("_op",)

    def __init__(self, op: OpLike) -> None:
        self._op = op

    def __hash__(self) -> int:
        return hash(type(self._op))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpKey) and self._op == other._op


class VaryingConstant(Constant):
    """Stand-in for a sharded constant, of which every rank has its own slice; all slices have one type."""

    __slots__ = ("_looks", "_own", "slot")

    def __init__(self, slot: RankField, own: Constant, looks: Looks) -> None:
        Value.__init__(self, own.type)
        self.slot = slot
        self._own = own
        self._looks = looks

    @property
    def value(self) -> Any:  # type: ignore[override]  # a question instead of a field
        """The array of one rank; from now on ranks must agree in it."""
        self._looks.note("value", self.slot, None, constant_bytes(self._own))
        return self._own.value

    def same_as(self, other: Constant) -> bool:
        """Return whether another constant of this type has the same bytes."""
        own = constant_bytes(self._own)
        if isinstance(other, VaryingConstant):
            if other.slot == self.slot:
                return True
            return self._looks.note("like", self.slot, other.slot, own == constant_bytes(other._own))
        return self._looks.note("equals", self.slot, constant_bytes(other), own == constant_bytes(other))

    def __repr__(self) -> str:
        return "VaryingConstant()"


def constant_bytes(constant: Constant) -> bytes:
    """Return the bytes that identify a constant among constants of one type."""
    return constant.value.tobytes()
