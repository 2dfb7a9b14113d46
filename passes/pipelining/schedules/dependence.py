"""Which values an action reads and makes: the one statement of what has to come before what.

A forward reads the activation of the chunk before; a backward, or a gradient for inputs, what its own forward has kept
and the gradient of the chunk behind, if there is one; a gradient for weights the gradient for inputs.
"""

from __future__ import annotations

from mspc.passes.pipelining.schedules.action import (
    BACKWARD,
    FORWARD,
    GRADIENTS,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Action,
)  # fmt: skip

Made = tuple[str, int, int]
"""A value by the kind of the action that makes it, its chunk and its micro-batch; of a backward, which makes both
gradients, the kinds are INPUT_GRADIENT and WEIGHT_GRADIENT."""


def reads(action: Action, chunks: int) -> tuple[Made, ...]:
    """The values that there must be before an action. chunks: of the whole pipeline."""
    kind, chunk, number = action.kind, action.chunk, action.micro_batch
    if kind == FORWARD:
        return ((FORWARD, chunk - 1, number),) if chunk else ()
    if kind == WEIGHT_GRADIENT:
        return ((INPUT_GRADIENT, chunk, number),)
    own = (FORWARD, chunk, number)
    return (own, (INPUT_GRADIENT, chunk + 1, number)) if chunk + 1 < chunks else (own,)


def makes(action: Action) -> tuple[Made, ...]:
    """The values that there are behind an action."""
    if action.kind == BACKWARD:
        return tuple((kind, action.chunk, action.micro_batch) for kind in (INPUT_GRADIENT, WEIGHT_GRADIENT))
    return ((action.kind, action.chunk, action.micro_batch),)


def handed_on(action: Action, chunks: int) -> tuple[Made, int] | None:
    """What an action makes that another chunk reads, and that chunk; None where no other does."""
    if action.kind == FORWARD and action.chunk + 1 < chunks:
        return (FORWARD, action.chunk, action.micro_batch), action.chunk + 1
    if action.kind in GRADIENTS and action.chunk:
        return (INPUT_GRADIENT, action.chunk, action.micro_batch), action.chunk - 1
    return None
