"""Remembers which values of one device those of ranks are, and finds ranks' that are those of another place."""

from __future__ import annotations

from mspc.ir.graph import Node
from mspc.verify.scale.places_of_script import ReferenceCandidates, Whole

ANOTHER = "it is the value that {} has at the same place of the script"


class Identities:
    """Which values of one device those of ranks are. Where several operators stand at one place of the script, each of
    ranks should be the one of its turn: what is another's is taken from there, unless they are all in another order."""

    def __init__(self) -> None:
        self._found: dict[Node, dict[int, set[Whole]]] = {}
        self._own: dict[Node, dict[int, Whole]] = {}
        self._makers: dict[Whole, list[tuple[Node, int]]] = {}

    def note(self, node: Node, candidates: ReferenceCandidates, whole: Whole) -> None:
        """A tensor of a node is this value of one device, in one turn of the loops around."""
        found = self._found.setdefault(node, {}).setdefault(candidates.number, set())
        if candidates.own is not None and not found:
            self._own.setdefault(node, {})[candidates.number] = candidates.own
            self._makers.setdefault(candidates.own, []).append((node, candidates.number))
        found.add(whole)

    def of(self, node: Node) -> set[Whole]:
        """The values of one device that those of a node are."""
        return {whole for found in self._found.get(node, {}).values() for whole in found}

    def taken_from(self, node: Node) -> str:
        """Where the value of a node is that of another, what is said of it, "" else."""
        for number, own in self._own.get(node, {}).items():
            for whole in self._found[node][number] - {own}:
                for maker, place in self._makers.get(whole, ()):
                    if self._found[maker][place] == {whole}:
                        return ANOTHER.format(maker.label)
        return ""
