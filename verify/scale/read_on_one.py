"""Says of an update whether it reads what that of one device reads."""

from __future__ import annotations

from collections.abc import Mapping

from mspc.ir.graph import Graph, Node, Value
from mspc.verify.scale.identities import Identities
from mspc.verify.scale.places_of_script import keyed
from mspc.verify.scale.readers import Readers
from mspc.verify.scale.relations import Relation
from mspc.verify.scale.writers import written


class ReadOnOne:
    """What updates read on one device, by the parameters that they write."""

    def __init__(self, one: Graph, identities: Identities) -> None:
        self._identities = identities
        self._readers = Readers(one)
        self._known = {node for _, node, _ in keyed(one)}
        self._updates = written(one)

    def another(self, name: str, value: Value, readers: Readers, told: Mapping[Node, Relation]) -> str:
        """What is said of an operand of an update of a parameter of ranks that comes of other values than that of one
        device; "" where it does not, or where that is not known."""
        expected = {
            source
            for update, names in self._updates.items()
            if name in names
            for source in self._readers.sources(update, self._known, moved=True)
        }
        near = [value] if isinstance(value, Node) and value in told else readers.sources(value, told, moved=True)
        for node in near:
            found = {maker for maker, _ in self._identities.of(node)} if node in told else set()
            if found and expected and found.isdisjoint(expected):
                return f"it reads what {node.label} gives for {name}, and one device reads another value"
        return ""
