"""Kinds of recurrent layers: every step of the sequence is nodes of its own."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.nn.recurrent import gru_step, lstm_step, project, simple_step
from mspc.readers.pytorch.kinds.kind import row

_ARGUMENTS = "params, has_biases, num_layers, dropout, train, bidirectional, batch_first"
_CELL = "w_ih, w_hh, b_ih=None, b_hh=None"


def sequence(
    step: Any, kind: Any, input: Any, firsts: Any, params: Any, has_biases: Any, num_layers: Any, dropout: Any,
    train: Any, bidirectional: Any, batch_first: Any,
) -> Any:  # fmt: skip
    """(outputs of all steps of the last layer, the last value of every state [layers * directions, batch, hidden]).

    step: one step of a layer. kind: "tanh" or "relu" of a simple one. firsts: the first value of every state.
    """
    x = ops.Transpose()(input, (1, 0, 2)) if batch_first else input
    directions = 2 if bidirectional else 1
    count = len(params) // (num_layers * directions)
    lasts = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            own = params[place * count : (place + 1) * count]
            states = [first[place] for first in firsts]
            output, last = along(step, kind, x, states, own, has_biases, direction == 1)
            outputs.append(output)
            lasts.append(last)
        x = outputs[0] if directions == 1 else ops.Concat(-1)(outputs)
        if train and dropout > 0 and layer < num_layers - 1:
            x = ops.dropout(x, dropout, True)
    ends = [ops.Stack(0)([last[i] for last in lasts]) for i in range(len(firsts))]
    return (ops.Transpose()(x, (1, 0, 2)) if batch_first else x), *ends


def along(step: Any, kind: Any, x: Any, states: Any, own: Any, has_biases: Any, is_reverse: Any) -> Any:
    """(outputs of all steps, the last states) of one layer in one direction.

    own: weights of the input and of the state, their biases, and what makes a smaller state of one, if anything does.
    """
    length, batch, columns = x.shape
    given = project(ops.Reshape()(x, (length * batch, columns)), own[0], own[2] if has_biases else None)
    given = ops.Reshape()(given, (length, batch, own[0].shape[0]))
    bias = own[3] if has_biases else None
    smaller = own[-1] if len(own) % 2 else None
    outputs = []
    for i in range(length):
        states = step(given[length - 1 - i if is_reverse else i], states, own[1], bias, kind)
        if smaller is not None:
            states = (project(states[0], smaller, None), *states[1:])
        outputs.append(states[0])
    if is_reverse:
        outputs = [outputs[length - 1 - i] for i in range(length)]
    return ops.Stack(0)(outputs), states


def one_step(step: Any, kind: Any, input: Any, states: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any) -> Any:
    """The states after one step."""
    return step(project(input, w_ih, b_ih), states, w_hh, b_hh, kind)


RECURRENT = (
    row("lstm.input", f"input, hx, {_ARGUMENTS}",
        lambda input, hx, *others: sequence(lstm_step, "", input, hx, *others)),
    row("gru.input", f"input, hx, {_ARGUMENTS}",
        lambda input, hx, *others: sequence(gru_step, "", input, (hx,), *others)),
    row("rnn_tanh.input", f"input, hx, {_ARGUMENTS}",
        lambda input, hx, *others: sequence(simple_step, "tanh", input, (hx,), *others)),
    row("rnn_relu.input", f"input, hx, {_ARGUMENTS}",
        lambda input, hx, *others: sequence(simple_step, "relu", input, (hx,), *others)),
    row("lstm_cell.default", f"input, hx, {_CELL}",
        lambda input, hx, *others: one_step(lstm_step, "", input, hx, *others)),
    row("gru_cell.default", f"input, hx, {_CELL}",
        lambda input, hx, *others: one_step(gru_step, "", input, (hx,), *others)),
    row("rnn_tanh_cell.default", f"input, hx, {_CELL}",
        lambda input, hx, *others: one_step(simple_step, "tanh", input, (hx,), *others)),
    row("rnn_relu_cell.default", f"input, hx, {_CELL}",
        lambda input, hx, *others: one_step(simple_step, "relu", input, (hx,), *others)),
)
"""Kinds of recurrent layers."""
