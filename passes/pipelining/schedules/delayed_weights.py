"""The order of a stage that computes gradients for weights some micro-batches later than those for inputs.

Both handcrafted schedules of arXiv 2401.10241 are of this form: the later a stage is in the pipeline, the longer it
puts gradients for weights off, and hands gradients for inputs back the sooner; what was put off fills the time at the
end in which the stages before it still wait for gradients.
"""

from __future__ import annotations

from mspc.passes.pipelining.schedules.action import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Action, Entry


def with_delayed_weights(chunk: int, micro_batches: int, ahead: int, delay: int) -> tuple[Entry, ...]:
    """The order of a stage.

    chunk: the one that it has. ahead: forwards before the first gradient. delay: micro-batches by which gradients for
    weights come later. It keeps `ahead + delay` micro-batches at most.
    """
    found: list[Entry] = [Action(FORWARD, chunk, number) for number in range(min(ahead, micro_batches))]
    for number in range(micro_batches):
        found.append(Action(INPUT_GRADIENT, chunk, number))
        if number >= delay:
            found.append(Action(WEIGHT_GRADIENT, chunk, number - delay))
        if number + ahead < micro_batches:
            found.append(Action(FORWARD, chunk, number + ahead))
    late = range(max(0, micro_batches - delay), micro_batches)
    return (*found, *(Action(WEIGHT_GRADIENT, chunk, number) for number in late))
