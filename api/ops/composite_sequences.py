"""These classes of MindSpore's operators on sequences are made of others: labels along them, recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiValueError


def _refuse(name: str, given: Sequence[Any], known: dict[str, tuple[Any, ...]]) -> None:
    """Raise ValueError for what recurrent operators are not made for."""
    for value, (field, values) in zip(given, known.items(), strict=True):
        if value not in values:
            listed = " or ".join(map(repr, values))
            raise ApiValueError(f"{name}: {field} must be {listed}, not {value!r}")


_PLAIN: dict[str, tuple[Any, ...]] = {
    "direction": ("UNIDIRECTIONAL",), "cell_depth": (1,), "keep_prob": (1.0,), "cell_clip": (-1.0,), "num_proj": (0,),
    "time_major": (True,), "activation": ("tanh",),
}  # fmt: skip


class DynamicRNN:
    """An LSTM over x [time, batch, inputs], whose weights [inputs + hidden, 4 hidden] have the gates input, memory,
    forget, output. Called as `DynamicRNN()(x, w, b, seq_length, init_h, init_c)`, states [1, batch, hidden]: a tuple of
    (outputs, outputs, memories, the gates in this order, the tanh of the memories), each [time, batch, hidden].

    forget_bias: added to the gate. The numbers of time steps are known at compile time. is_training changes nothing:
    what gradients need is saved where there are any.

    Raises:
        ValueError: another argument is not its default, or seq_length is given.
    """

    def __init__(
        self, cell_type: str = "LSTM", direction: str = "UNIDIRECTIONAL", cell_depth: int = 1,
        use_peephole: bool = False, keep_prob: float = 1.0, cell_clip: float = -1.0, num_proj: int = 0,
        time_major: bool = True, activation: str = "tanh", forget_bias: float = 0.0, is_training: bool = True,
    ) -> None:  # fmt: skip
        given = (cell_type, use_peephole, direction, cell_depth, keep_prob, cell_clip, num_proj, time_major, activation)
        _refuse("DynamicRNN", given, {"cell_type": ("LSTM",), "use_peephole": (False,), **_PLAIN})
        self.forget_bias = forget_bias

    def __call__(self, x: Any, w: Any, b: Any, seq_length: Any, init_h: Any, init_c: Any) -> Any:
        if seq_length is not None:
            raise ApiValueError("DynamicRNN: seq_length must be None")
        inputs = x.shape[2]
        given = ops.MatMul()(ops.reshape(x, (-1, inputs)), w[:inputs]) + b
        given = ops.reshape(given, (x.shape[0], x.shape[1], w.shape[1]))
        output, memory = init_h[0], init_c[0]
        saved = []
        for t in range(x.shape[0]):
            enter, fresh, forget, leave = ops.Split(1, 4)(given[t] + ops.MatMul()(output, w[inputs:]))
            enter, fresh, leave = ops.sigmoid(enter), ops.tanh(fresh), ops.sigmoid(leave)
            forget = ops.sigmoid(forget + self.forget_bias)
            memory = forget * memory + enter * fresh
            shown = ops.tanh(memory)
            output = leave * shown
            saved.append((output, output, memory, enter, fresh, forget, leave, shown))
        return _stacked(saved)


class DynamicGRUV2:
    """A GRU over x [time, batch, inputs], with weights [inputs, 3 hidden] and [hidden, 3 hidden] whose gates are in the
    order reset, update, new ("rzh") or update, reset, new ("zrh"). Called as `DynamicGRUV2()(x, weight_input,
    weight_hidden, bias_input, bias_hidden, seq_length, init_h)`, the biases or None, init_h [batch, hidden]: a tuple of
    (outputs, outputs, update, reset, new, what the state says to new), each [time, batch, hidden].

    The numbers of time steps are known at compile time. is_training changes nothing: what gradients need is saved where
    there are any.

    Raises:
        ValueError: another argument is not its default, or seq_length is given.
    """

    def __init__(
        self, direction: str = "UNIDIRECTIONAL", cell_depth: int = 1, keep_prob: float = 1.0, cell_clip: float = -1.0,
        num_proj: int = 0, time_major: bool = True, activation: str = "tanh", gate_order: str = "rzh",
        reset_after: bool = True, is_training: bool = True,
    ) -> None:  # fmt: skip
        given = (
            gate_order, reset_after, direction, cell_depth, keep_prob, cell_clip, num_proj, time_major, activation
        )  # fmt: skip
        _refuse("DynamicGRUV2", given, {"gate_order": ("rzh", "zrh"), "reset_after": (True,), **_PLAIN})
        self.reset_first = gate_order == "rzh"

    def __call__(
        self, x: Any, weight_input: Any, weight_hidden: Any, bias_input: Any, bias_hidden: Any, seq_length: Any,
        init_h: Any,
    ) -> Any:  # fmt: skip
        if seq_length is not None:
            raise ApiValueError("DynamicGRUV2: seq_length must be None")
        given = ops.MatMul()(ops.reshape(x, (-1, x.shape[2])), weight_input)
        if bias_input is not None:
            given = given + bias_input
        given = ops.reshape(given, (x.shape[0], x.shape[1], weight_input.shape[1]))
        state = init_h
        saved = []
        for t in range(x.shape[0]):
            own = ops.MatMul()(state, weight_hidden)
            if bias_hidden is not None:
                own = own + bias_hidden
            first, second, fresh = ops.Split(1, 3)(given[t])
            own_first, own_second, own_fresh = ops.Split(1, 3)(own)
            first, second = ops.sigmoid(first + own_first), ops.sigmoid(second + own_second)
            reset, update = (first, second) if self.reset_first else (second, first)
            fresh = ops.tanh(fresh + reset * own_fresh)
            state = (1.0 - update) * fresh + update * state
            saved.append((state, state, update, reset, fresh, own_fresh))
        return _stacked(saved)


def _stacked(steps: Any) -> Any:
    """Results by step as results over all steps."""
    found = []
    for i in range(len(steps[0])):
        found.append(ops.Stack()([step[i] for step in steps]))
    return tuple(found)
