"""Recurrent layers and their cells."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from mspc.ir.types import FLOAT32
from mspc.mindspore_api import ops
from mspc.mindspore_api.common.initializers import Uniform
from mspc.mindspore_api.common.parameter import ParameterTuple
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.nn.basic import Dropout
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.cell_arguments import MAX_CELLS, flag, number, parameter, positive


def project(x: Any, weight: Any, bias: Any) -> Any:
    """x @ weight.T + bias; bias may be None."""
    out = ops.MatMul(transpose_b=True)(x, weight)
    return out if bias is None else ops.BiasAdd()(out, bias)


def simple_step(given: Any, state: Any, weight: Any, bias: Any, nonlinearity: str) -> Any:
    """Return the next state, a tuple of one."""
    total = given + project(state[0], weight, bias)
    return (ops.relu(total) if nonlinearity == "relu" else ops.tanh(total),)


def lstm_step(given: Any, state: Any, weight: Any, bias: Any, nonlinearity: str) -> Any:
    """Return (output, memory) after one step. Gates are in the order input, forget, memory, output. nonlinearity, used
    by other steps, is ignored."""
    enter, forget, fresh, leave = ops.Split(1, 4)(given + project(state[0], weight, bias))
    memory = ops.sigmoid(forget) * state[1] + ops.sigmoid(enter) * ops.tanh(fresh)
    return ops.sigmoid(leave) * ops.tanh(memory), memory


def gru_step(given: Any, state: Any, weight: Any, bias: Any, nonlinearity: str) -> Any:
    """Return the next state, a tuple of one. Gates are in the order reset, update, new. nonlinearity, used by other
    steps, is ignored."""
    reset, update, fresh = ops.Split(1, 3)(given)
    own_reset, own_update, own_fresh = ops.Split(1, 3)(project(state[0], weight, bias))
    fresh = ops.tanh(fresh + ops.sigmoid(reset + own_reset) * own_fresh)
    return (fresh + ops.sigmoid(update + own_update) * (state[0] - fresh),)


class _OneStep(Cell):
    """weight_ih [gates * hidden, input], weight_hh [gates * hidden, hidden] and their biases."""

    gates: ClassVar[int] = 1
    nonlinearity = "tanh"

    def __init__(self, input_size: int, hidden_size: int, has_bias: bool = True, dtype: Any = FLOAT32) -> None:
        super().__init__()
        name = type(self).__name__
        self.input_size, self.hidden_size = (
            positive(name, "input_size", input_size), positive(name, "hidden_size", hidden_size)
        )  # fmt: skip
        self.has_bias = flag(name, "has_bias", has_bias)
        rows, init = self.gates * hidden_size, Uniform(1 / math.sqrt(hidden_size))
        self.weight_ih = parameter(init, (rows, input_size), dtype, "weight_ih")
        self.weight_hh = parameter(init, (rows, hidden_size), dtype, "weight_hh")
        self.bias_ih = parameter(init, (rows,), dtype, "bias_ih") if has_bias else None
        self.bias_hh = parameter(init, (rows,), dtype, "bias_hh") if has_bias else None

    def given(self, x: Any) -> Any:
        """Return the projection of the input for all gates."""
        return project(x, self.weight_ih, self.bias_ih)


class RNNCellBase(_OneStep):
    """Base of cells in scripts: the parameters of num_chunks gates."""

    def __init__(
        self, input_size: int, hidden_size: int, has_bias: bool, num_chunks: int, dtype: Any = FLOAT32
    ) -> None:
        self.gates = positive(type(self).__name__, "num_chunks", num_chunks)  # type: ignore[misc]  # of this object
        super().__init__(input_size, hidden_size, has_bias, dtype)


class RNNCell(_OneStep):
    """One step: tanh (or relu) of weight_ih x + bias_ih + weight_hh h + bias_hh."""

    def __init__(
        self, input_size: int, hidden_size: int, has_bias: bool = True, nonlinearity: str = "tanh", dtype: Any = FLOAT32
    ) -> None:
        super().__init__(input_size, hidden_size, has_bias, dtype)
        self.nonlinearity = _known("RNNCell", nonlinearity)

    def construct(self, x: Any, hx: Any) -> Any:
        return simple_step(self.given(x), (hx,), self.weight_hh, self.bias_hh, self.nonlinearity)[0]


class LSTMCell(_OneStep):
    """One step of `LSTM`: the new (h, c) from x and hx, the previous (h, c)."""

    gates = 4

    def construct(self, x: Any, hx: Any) -> Any:
        return lstm_step(self.given(x), hx, self.weight_hh, self.bias_hh, "")


class GRUCell(_OneStep):
    """One step of `GRU`: h of x and h before."""

    gates = 3

    def construct(self, x: Any, hx: Any) -> Any:
        return gru_step(self.given(x), (hx,), self.weight_hh, self.bias_hh, "")[0]


class _Recurrent(Cell):
    """Stacked layers, in one or in both directions.

    Called with x [length, batch, input] ([batch, length, input] with batch_first), the first states [layers *
    directions, batch, hidden] (by default zeros) and lengths of the rows [batch] or None. After the end of a row its
    outputs are 0 and its state is constant. Returns the outputs [length, batch, directions * hidden] and the last
    states, of the element type of x. Parameters have PyTorch's names, `weight_ih_l0`, `bias_hh_l1_reverse`.
    """

    gates: ClassVar[int] = 1
    states: ClassVar[int] = 1
    nonlinearity = "tanh"
    step: Any = staticmethod(simple_step)

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, has_bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        super().__init__()
        name = type(self).__name__
        self.hidden_size, self.num_layers = (
            positive(name, "hidden_size", hidden_size), positive(name, "num_layers", num_layers, MAX_CELLS)
        )  # fmt: skip
        self.has_bias, self.batch_first = flag(name, "has_bias", has_bias), flag(name, "batch_first", batch_first)
        self.directions = 2 if flag(name, "bidirectional", bidirectional) else 1
        if not 0 <= number(name, "dropout", dropout) < 1:
            raise ApiValueError(f"{name}: dropout {dropout} must be at least 0 and below 1")
        self.dropout = Dropout(p=float(dropout))
        self.drops = dropout > 0
        found: dict[str, list[Any]] = {"weight_ih": [], "weight_hh": [], "bias_ih": [], "bias_hh": []}
        rows, init = self.gates * hidden_size, Uniform(1 / math.sqrt(hidden_size))
        for layer in range(num_layers):
            columns = positive(name, "input_size", input_size) if layer == 0 else hidden_size * self.directions
            shapes = {"weight_ih": (rows, columns), "weight_hh": (rows, hidden_size), "bias_ih": (rows,),
                      "bias_hh": (rows,)}  # fmt: skip
            for direction in ("", "_reverse")[: self.directions]:
                for kind, shape in shapes.items():
                    if has_bias or kind.startswith("weight"):
                        found[kind].append(parameter(init, shape, dtype, f"{kind}_l{layer}{direction}"))
        self.w_ih_list, self.w_hh_list = ParameterTuple(found["weight_ih"]), ParameterTuple(found["weight_hh"])
        self.b_ih_list, self.b_hh_list = ParameterTuple(found["bias_ih"]), ParameterTuple(found["bias_hh"])

    def construct(self, x: Any, hx: Any = None, seq_length: Any = None) -> Any:
        dtype = x.dtype
        if self.batch_first:
            x = x.transpose(1, 0, 2)
        if hx is None:
            shape = (self.num_layers * self.directions, x.shape[1], self.hidden_size)
            firsts = (ops.zeros(shape, x.dtype),) * self.states
        else:
            firsts = hx if self.states > 1 else (hx,)
        lasts = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(self.directions):
                place = layer * self.directions + direction
                output, last = self.along(x, [first[place] for first in firsts], place, direction == 1, seq_length)
                outputs.append(output)
                lasts.append(last)
            x = outputs[0] if self.directions == 1 else ops.concat(outputs, -1)
            if self.drops and layer < self.num_layers - 1:
                x = self.dropout(x)
        ends = tuple([ops.cast(ops.stack([last[i] for last in lasts], 0), dtype) for i in range(self.states)])
        if self.batch_first:
            x = x.transpose(1, 0, 2)
        return ops.cast(x, dtype), (ends if self.states > 1 else ends[0])

    def along(self, x: Any, state: Any, place: int, is_reverse: bool, seq_length: Any) -> Any:
        """Return (outputs of all steps, last state) of one layer in one direction."""
        length, batch, columns = x.shape
        bias_ih = self.b_ih_list[place] if self.has_bias else None
        bias_hh = self.b_hh_list[place] if self.has_bias else None
        given = project(ops.reshape(x, (length * batch, columns)), self.w_ih_list[place], bias_ih)
        given = ops.reshape(given, (length, batch, self.gates * self.hidden_size))
        outputs = []
        for i in range(length):
            t = length - 1 - i if is_reverse else i
            after = self.step(given[t], state, self.w_hh_list[place], bias_hh, self.nonlinearity)
            output = after[0]
            if seq_length is not None:
                counts = ops.expand_dims(seq_length > t, 1)
                output = ops.select(counts, output, ops.zeros_like(output))
                after = [ops.select(counts, new, old) for new, old in zip(after, state, strict=True)]
            state = after
            outputs.append(output)
        if is_reverse:
            outputs = [outputs[length - 1 - i] for i in range(length)]
        return ops.stack(outputs, 0), state


class RNN(_Recurrent):
    """Elman's network: h = tanh (or relu) of weight_ih x + bias_ih + weight_hh h + bias_hh; see `_Recurrent`."""

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh", has_bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        super().__init__(input_size, hidden_size, num_layers, has_bias, batch_first, dropout, bidirectional, dtype)
        self.nonlinearity = _known("RNN", nonlinearity)


class LSTM(_Recurrent):
    """Hochreiter and Schmidhuber 1997 with a forget gate: the states are (h, c); see `_Recurrent`."""

    gates = 4
    states = 2
    step = staticmethod(lstm_step)


class GRU(_Recurrent):
    """Cho et al. 2014, with the reset gate applied after the matmul with the state; see `_Recurrent`."""

    gates = 3
    step = staticmethod(gru_step)


def _known(name: str, nonlinearity: Any) -> str:
    if not isinstance(nonlinearity, str):
        raise ApiTypeError(f"{name}: nonlinearity must be 'tanh' or 'relu', not {nonlinearity!r}")
    if nonlinearity not in ("tanh", "relu"):
        raise ApiValueError(f"{name}: nonlinearity {nonlinearity!r} is neither 'tanh' nor 'relu'")
    return nonlinearity
