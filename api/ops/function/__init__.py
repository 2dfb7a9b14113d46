"""Functions over operators, one definition each: `ops.split(x, 3)`, and where `@tensor_method` stands also
`x.split(3)`, in a compiled function and on a Tensor outside of one.

They are read when a compiled function calls them, so they keep to the part of Python that mspc compiles. Functions that
are one operator with its inputs and fields in their order stand at the operator: `Op.function`, `Op.method`.
"""

from __future__ import annotations

from mspc.api.members import Members

_members = Members(__name__)
__getattr__ = _members.find
__dir__ = _members.names
