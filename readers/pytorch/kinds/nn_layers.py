"""Kinds of ATen that are layers: normalizations and recurrent networks."""

from __future__ import annotations

import math
from typing import Any

from mspc.ir.types import FLOAT32, UINT8, real_of
from mspc.mindspore_api import ops
from mspc.mindspore_api.mint.functions import as_dtype
from mspc.mindspore_api.mint.nn import functional
from mspc.mindspore_api.nn.recurrent import gru_step, lstm_step, project, simple_step
from mspc.readers.pytorch.kinds.complex_numbers import of_either
from mspc.readers.pytorch.kinds.kind import row
from mspc.readers.pytorch.kinds.reductions import mean


def softmax(self: Any, dim: Any, dtype: Any = None) -> Any:
    """exp(x) over its sum along a dimension."""
    return ops.Softmax(dim)(as_dtype(self, dtype))


def safe_softmax(self: Any, dim: Any, dtype: Any) -> Any:
    """Return the softmax; slices of minus infinity alone give zeros, with zero gradients."""
    rows = ops.ReduceAll(True)(ops.Equal()(self, -math.inf), dim)
    weights = softmax(ops.masked_fill(self, rows, ops.cast(0.0, self.dtype)), dim, dtype)
    return ops.masked_fill(weights, rows, ops.cast(0.0, weights.dtype))


def log_softmax(self: Any, dim: Any, dtype: Any = None) -> Any:
    """Return the logarithm of the softmax."""
    return ops.LogSoftmax(dim)(as_dtype(self, dtype))


def layer_norm_with_statistics(input: Any, normalized_shape: Any, weight: Any, bias: Any, eps: Any) -> Any:
    """Return (the normalised tensor, mean, 1 / standard deviation)."""
    sizes = tuple(normalized_shape)
    axis = len(input.shape) - len(sizes)
    scale = ops.ones(sizes, input.dtype) if weight is None else weight
    shift = ops.zeros(sizes, input.dtype) if bias is None else bias
    out, mean, variance = ops.LayerNorm(axis, axis, eps)(input, scale, shift)
    return out, mean, ops.Rsqrt()(variance + eps)


def rms_norm(input: Any, normalized_shape: Any, weight: Any, eps: Any) -> Any:
    """x over the root of the mean of its squares along the last dimensions, times a weight."""
    sizes = tuple(normalized_shape)
    scale = ops.ones(sizes, input.dtype) if weight is None else weight
    if len(sizes) == 1 and not input.dtype.is_complex:
        out, _ = ops.RmsNorm(_least_step(input.dtype) if eps is None else eps)(input, scale)
        return out
    return input * inverse_root(input, sizes, eps) * scale


def inverse_root(input: Any, sizes: Any, eps: Any) -> Any:
    """Return 1 over the root of the mean of squares along the last dimensions."""
    dims = tuple(range(len(input.shape) - len(sizes), len(input.shape)))
    small = _least_step(real_of(input.dtype)) if eps is None else eps
    return of_either(ops.Rsqrt(), "rsqrt")(mean(of_either(ops.Square(), "square")(input), dims, True) + small)


def _least_step(dtype: Any) -> Any:
    """Return the distance from 1 to the next number, of halves as of Float32, in which they are normalised."""
    return 2.0**-52 if dtype.itemsize == 8 else 2.0**-23


def batch_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: Any, momentum: Any, eps: Any
) -> Any:
    """Return (every channel normalised, the new running mean, the new running variance); by the batch's statistics in
    training, else by the running ones, which then stay."""
    momentum = momentum if training else 0.0  # PyTorch takes any number then
    out = functional.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    return out, None, None


def batch_norm_new(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: Any, momentum: Any, eps: Any
) -> Any:
    """Return (every channel normalised, the mean and 1 / standard deviation that were used, new running mean and
    variance), without a change of anything."""
    if not training:
        found = batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)
        return found[0], running_mean, ops.Rsqrt()(running_var + eps), running_mean, running_var
    dims = tuple([d for d in range(len(input.shape)) if d != 1])
    channels = (1, input.shape[1]) + (1,) * (len(input.shape) - 2)
    mean = ops.ReduceMean()(input, dims)
    centred = input - ops.Reshape()(mean, channels)
    variance = ops.ReduceMean()(ops.Square()(centred), dims)
    scale = ops.Rsqrt()(variance + eps)
    out = centred * ops.Reshape()(scale, channels)
    if weight is not None:
        out = out * ops.Reshape()(weight, channels)
    if bias is not None:
        out = out + ops.Reshape()(bias, channels)
    count = input.size // input.shape[1]
    unbiased = variance * (count / max(1, count - 1))
    if running_mean is None:
        return out, mean, scale, None, None
    return (
        out, mean, scale, running_mean * (1 - momentum) + ops.stop_gradient(mean) * momentum,
        running_var * (1 - momentum) + ops.stop_gradient(unbiased) * momentum,
    )


def batch_norm_with_statistics(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: Any, momentum: Any, eps: Any
) -> Any:
    """Return (every channel normalised, the mean and 1 / standard deviation that were used, the new running ones)."""
    found = batch_norm_new(input, weight, bias, running_mean, running_var, training, momentum, eps)
    none = ops.zeros((0,), found[0].dtype)
    return found if training else (found[0], none, none, None, None)


def with_reserve(found: Any, reserve: Any = ()) -> Any:
    """Return results with the memory after the third one that PyTorch's gradient reads: none. On a CPU it is empty."""
    return (*found[:3], reserve if reserve is None else ops.zeros((0,), UINT8), *found[3:])


def group_norm_with_statistics(input: Any, weight: Any, bias: Any, group: Any, eps: Any) -> Any:
    """Return (groups of channels normalised, their means, 1 / their standard deviations)."""
    rows = ops.Reshape()(input, (input.shape[0], group, math.prod(input.shape[1:]) // group))
    mean = ops.ReduceMean()(rows, -1)
    variance = ops.ReduceMean()(ops.Square()(rows - ops.ExpandDims()(mean, -1)), -1)
    return functional.group_norm(input, group, weight, bias, eps), mean, ops.Rsqrt()(variance + eps)


def weight_norm(v: Any, g: Any, dim: Any) -> Any:
    """Return the direction of v, slice by slice along a dimension, or of all of v for -1, with the length g."""
    others = tuple([d for d in range(len(v.shape)) if d != dim])
    return v * (g / ops.Sqrt()(ops.ReduceSum(True)(ops.Square()(v), others)))


def instance_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, use_input_stats: Any, momentum: Any,
    eps: Any,
) -> Any:  # fmt: skip
    """Return (every channel of every image normalised by itself, new running statistics, the means of those of the
    images); by the running ones if the input's are not used."""
    if not use_input_stats:
        return batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)
    out = functional.group_norm(input, input.shape[1], weight, bias, eps)
    if running_mean is None:
        return out, None, None
    rows = ops.stop_gradient(ops.Reshape()(input, (*input.shape[:2], -1)))
    mean = ops.ReduceMean(True)(rows, -1)
    count = rows.shape[-1]
    variance = ops.ReduceSum()(ops.Square()(rows - mean), -1) / max(1, count - 1)
    new_mean = running_mean * (1 - momentum) + ops.ReduceMean()(ops.Squeeze(-1)(mean), 0) * momentum
    return out, new_mean, running_var * (1 - momentum) + ops.ReduceMean()(variance, 0) * momentum


NORMS = (
    row("softmax.int", "self, dim, dtype=None", softmax),
    row("_softmax.default", "self, dim, half_to_float",
        lambda self, dim, half_to_float: softmax(self, dim, FLOAT32 if half_to_float else None)),
    row("_safe_softmax.default", "self, dim, dtype=None", safe_softmax),
    row("log_softmax.int", "self, dim, dtype=None", log_softmax),
    row("_log_softmax.default", "self, dim, half_to_float",
        lambda self, dim, half_to_float: log_softmax(self, dim, FLOAT32 if half_to_float else None)),
    row("layer_norm.default", "input, normalized_shape, weight=None, bias=None, eps=1e-05, -cudnn_enable=True",
        functional.layer_norm),
    row("native_layer_norm.default", "input, normalized_shape, weight, bias, eps", layer_norm_with_statistics),
    row("rms_norm.default", "input, normalized_shape, weight=None, eps=None", rms_norm),
    row("_fused_rms_norm.default", "input, normalized_shape, weight, eps", lambda input, sizes, weight, eps: (
        rms_norm(input, sizes, weight, eps), inverse_root(input, sizes, eps))),
    row("group_norm.default", "input, num_groups, weight=None, bias=None, eps=1e-05, -cudnn_enabled=True",
        functional.group_norm),
    row("batch_norm.default",
        "input, weight, bias, running_mean, running_var, training, momentum, eps, -cudnn_enabled=True", batch_norm,
        writes="running_mean running_var"),
    row("_native_batch_norm_legit.default native_batch_norm.default",
        "input, weight, bias, running_mean, running_var, training, momentum, eps", batch_norm_with_statistics,
        writes="running_mean running_var"),
    *(row(f"_batch_norm_with_update{name}.default", "input, weight, bias, running_mean, running_var, momentum, eps",
          lambda input, weight, bias, mean, variance, momentum, eps: with_reserve(batch_norm_new(
              input, weight, bias, mean, variance, True, momentum, eps)), writes=writes)
      for name, writes in (("", "running_mean running_var"), ("_functional", ""))),
    row("cudnn_batch_norm.default",
        "input, weight, bias, running_mean, running_var, training, exponential_average_factor, epsilon",
        lambda *given: with_reserve(batch_norm_new(*given), None), writes="running_mean running_var"),
    row("_batch_norm_no_update.default", "input, weight, bias, running_mean, running_var, momentum, eps",
        lambda input, weight, bias, mean, variance, momentum, eps: with_reserve(batch_norm_with_statistics(
            input, weight, bias, mean, variance, False, momentum, eps)[:3])),
    row("_native_batch_norm_legit.no_stats", "input, weight, bias, training, momentum, eps",
        lambda input, weight, bias, *settings: batch_norm_new(input, weight, bias, None, None, *settings)[:3]),
    row("_native_batch_norm_legit_functional.default",
        "input, weight, bias, running_mean, running_var, training, momentum, eps", batch_norm_new),
    row("_native_batch_norm_legit_no_training.default",
        "input, weight, bias, running_mean, running_var, momentum, eps",
        lambda input, weight, bias, mean, variance, momentum, eps: (
            *batch_norm(input, weight, bias, mean, variance, False, momentum, eps)[:1], None, None)),
    row("native_group_norm.default", "input, weight, bias, -N, -C, -HxW, group, eps", group_norm_with_statistics),
    row("cosine_similarity.default", "x1, x2, dim=1, eps=1e-08", ops.cosine_similarity),
    row("_weight_norm.default", "v, g, dim=0", weight_norm),
    row("instance_norm.default",
        "input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, -cudnn_enabled",
        instance_norm, writes="running_mean running_var"),
)  # fmt: skip
"""Kinds of normalisations."""


# Every step of a recurrent layer's sequence is nodes of its own.


_ARGUMENTS = "params, has_biases, num_layers, dropout, train, bidirectional, batch_first"
_CELL = "w_ih, w_hh, b_ih=None, b_hh=None"


def sequence(
    step: Any, kind: Any, input: Any, firsts: Any, params: Any, has_biases: Any, num_layers: Any, dropout: Any,
    train: Any, bidirectional: Any, batch_first: Any,
) -> Any:  # fmt: skip
    """Return (outputs of all steps of the last layer, the last value of every state [layers * directions, batch,
    hidden]).

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
    """Return (outputs of all steps, the last states) of one layer in one direction. own: weights of the input and of
    the state, their biases, and the weight that makes a smaller state of one, if any."""
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
    """Return the states after one step."""
    return step(project(input, w_ih, b_ih), states, w_hh, b_hh, kind)


def of_states(function: Any, step: Any, kind: Any, has_several: Any) -> Any:
    """Return a function of `input, hx, ...`, if hx is one state or has several, as that of an LSTM."""
    return lambda input, hx, *others: function(step, kind, input, hx if has_several else (hx,), *others)


def lstm_layer(
    input: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, hidden: Any, cell: Any, reverse: Any, has_biases: Any
) -> Any:
    """Return (outputs of all steps, the last state, the last cell) of a layer of an LSTM in one direction."""
    outputs, states = along(lstm_step, "", input, (hidden, cell), (w_ih, w_hh, b_ih, b_hh), has_biases, reverse)
    return outputs, states[0], states[1]


RECURRENT = (
    *(row(f"{name}{end}", f"input, hx, {arguments}", of_states(function, step, kind, name == "lstm"))
      for name, step, kind in (
        ("lstm", lstm_step, ""), ("gru", gru_step, ""), ("rnn_tanh", simple_step, "tanh"),
        ("rnn_relu", simple_step, "relu"),
    )
      for end, arguments, function in ((".input", _ARGUMENTS, sequence), ("_cell.default", _CELL, one_step))),
    row("mkldnn_rnn_layer.default", "input, weight0, weight1, weight2, weight3, hx_, cx_, reverse, !batch_sizes=(), "
        "!mode=2, -hidden_size, -num_layers, has_biases, -bidirectional, !batch_first=False, -train",
        lambda *given: (*lstm_layer(*given), None)),
)  # fmt: skip
"""Kinds of recurrent layers."""
