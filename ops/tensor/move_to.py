"""MoveTo puts a tensor into the memory that a script wants for it."""

from __future__ import annotations

from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ops.math.elementwise import Identity
from mspc.ops.op import Op
from mspc.ops.operator_arguments import describe, split_call


class MoveTo(Identity):
    """x itself: where values lie is planned. Called as `MoveTo()(x, to, blocking)`; to: the memory that is wanted, a
    text. blocking: whether what follows waits for the move, True where it is left out."""

    operand_names = ("input", "to", "blocking")
    samples = Identity.samples

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("to", "blocking"), optional=1)
        for name, kind in (("to", str), ("blocking", bool)):
            value = found.get(name, kind())
            if not isinstance(value, kind):
                raise MspcError(f"{self.name}: {name} must be {kind.__name__}, not {describe(value)}", kind=TypeError)
        return self, tensors
