"""What a proof has compared, and what it has found."""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.graph import Node
from mspc.ir.late_dataclass import dataclass
from mspc.verify.scale.blame import FirstWrong
from mspc.verify.scale.compared import Compared
from mspc.verify.scale.kinds import RankKind
from mspc.verify.scale.memory_of_kinds import MemoryFound
from mspc.verify.scale.odd_ranks import Odd


@dataclass
class ScaleProof:
    """What was compared, and what was found.

    ranks, kinds: how many there are. rows: every value of every kind and step that was compared. sizes: how the sizes
    of parameters became smaller: (as it was, as it is). first: the first value that is wrong. stuck: the nodes at which
    ranks wait for each other; failed: a node that cannot be computed on some ranks, and why. others: nodes at which
    ranks are that should meet them there. odd: what a few ranks run otherwise than others, where that is one change.
    """

    ranks: int
    kinds: int
    rows: list[Compared]
    sizes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]
    first: FirstWrong | None = None
    stuck: tuple[tuple[RankKind, Node], ...] = ()
    failed: tuple[RankKind, Node, str] | None = None
    others: tuple[Node, ...] = ()
    odd: Odd | None = None
    memory: MemoryFound | None = None
    """What is found of the memory that values share, at real sizes."""
    whole: bool = False
    """Whether all values have their own sizes: small ones would have said that something differs."""

    @property
    def same(self) -> bool:
        if self.memory is not None and self.memory.misuses:
            return False
        return not self.stuck and self.failed is None and all(row.same for row in self.rows)

    def may_be_of(self, odd: Odd, kinds: Sequence[RankKind]) -> bool:
        """Whether what a few ranks run otherwise may be what is wrong: ranks may do so in what is right, too."""
        if self.stuck or self.failed is not None:
            waiting = [kind for kind, _ in self.stuck] + [kind for kind in kinds if kind.runs_any(self.others)]
            return odd.may_stop([] if self.failed is None else [self.failed[0]], waiting)
        return not odd.even and (self.first is None or not {*self.first.ranks}.isdisjoint(odd.ranks))
