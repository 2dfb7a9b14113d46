"""Operators by the names of their classes, whichever modules hold them: `from tests.operators import Add, MatMul`."""

from mspc.ops.op import REGISTRY, Op, load_operators

load_operators()
_CLASSES = {kind.__name__: kind for kind in REGISTRY.values()}


def __getattr__(name: str) -> type[Op]:
    if name not in _CLASSES:
        raise AttributeError(f"there is no operator {name}")
    return _CLASSES[name]
