"""Kinds that autograd calls: gradients of other kinds, which recorded steps and traced joint graphs contain."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.mindspore_api import mint, ops
from mspc.mindspore_api.mint.nn import functional
from mspc.readers.pytorch.kinds.indexing import bags, embedding, filled_in_order
from mspc.readers.pytorch.kinds.kind import row
from mspc.readers.pytorch.kinds.linear import distances, grouped_product
from mspc.readers.pytorch.kinds.nn_layers import lstm_layer, weight_norm
from mspc.readers.pytorch.kinds.pointwise import log_odds
from mspc.readers.pytorch.kinds.reductions import of_target, of_truths, reduced
from mspc.readers.pytorch.kinds.shapes import part_replaced, selected_replaced, windows
from mspc.readers.pytorch.kinds.spatial import (
    RESIZED,
    SCALES,
    any_convolution,
    averaged,
    averaged_adaptively,
    averaged_in_space,
    sampled,
)


def gradients(function: Any, count: Any = 1) -> Any:
    """Return a function of (dout, *arguments of `function`) that returns its gradients in the first `count` arguments,
    None in an argument that is None. Formulas of other kinds in this file need less: a result instead of an operand."""

    def of(dout: Any, *args: Any) -> Any:
        # In all operands: from the others it would go on to the operators before, and send a received message back.
        there = [i for i, each in enumerate(args) if hasattr(each, "shape") and each.dtype.has_gradient]

        def own(*values: Any) -> Any:
            return function(*[values[there.index(i)] if i in there else args[i] for i in range(len(args))])

        found = ops.GradOperation(get_all=True, sens_param=True)(own)(*[args[i] for i in there], dout)
        return found[0] if count == 1 else tuple([found[there.index(i)] if i in there else None for i in range(count)])

    return of


def broadcast(function: Any) -> Any:
    """Return a function that gives its first two operands one shape: those of `torch.vmap` differ."""

    def of(dout: Any, other: Any, *others: Any) -> Any:
        shape = np.broadcast_shapes(dout.shape, other.shape)
        alike = [each if each.shape == shape else ops.broadcast_to(each, shape) for each in (dout, other)]
        return function(*alike, *others)

    return of


def of_size(function: Any) -> Any:
    """Return a function of (dout, sizes, *others): the gradient of `function` in a tensor of these sizes."""
    gradient = gradients(function)
    return lambda dout, sizes, *others: gradient(dout, ops.zeros(tuple(sizes), dout.dtype), *others)


def softmax_gradient(dout: Any, output: Any, dim: Any, input_dtype: Any) -> Any:
    product = dout * output
    return ops.cast(product - output * ops.ReduceSum(True)(product, dim), input_dtype)


def elu_gradient(dout: Any, alpha: Any, scale: Any, input_scale: Any, is_result: Any, self_or_result: Any) -> Any:
    """Return the gradient of scale * (x, or alpha * (exp(x * input_scale) - 1) below 0)."""
    power = self_or_result + alpha * scale if is_result else ops.Exp()(self_or_result * input_scale) * (alpha * scale)
    below = ops.LessEqual()(self_or_result, 0)
    return ops.where(below, dout * power * input_scale, dout * scale)


def layer_norm_gradients(
    dout: Any, input: Any, normalized_shape: Any, mean: Any, rstd: Any, weight: Any, bias: Any
) -> Any:  # fmt: skip
    """Return the gradients in the input, the weight and the bias of a layer norm, None for missing ones. Without a mean
    they are those of `x * rstd * weight`.

    With n = (x - mean) * rstd and d = dout * weight the first is rstd * (d - mean(d) - n * mean(d * n)), means over the
    normalised dimensions; the others are the sums of dout * n and of dout over all others.
    """
    rank = len(input.shape)
    own = tuple(range(rank - len(normalized_shape), rank))
    others = tuple(range(rank - len(normalized_shape)))
    normal = (input if mean is None else input - mean) * rstd
    dx = centred(dout if weight is None else dout * weight, normal, own, mean is not None) * rstd
    dweight = None if weight is None else ops.ReduceSum()(dout * normal, others)
    return dx, dweight, None if bias is None else ops.ReduceSum()(dout, others)


def centred(dout: Any, normal: Any, dims: Any, has_mean: Any = True) -> Any:
    """Return dout - mean(dout) - normal * mean(dout * normal), means over `dims`, the first if it `has_mean`."""
    average = ops.ReduceMean(True)
    return (dout - average(dout, dims) if has_mean else dout) - normal * average(dout * normal, dims)


def group_norm_gradients(
    dout: Any, input: Any, mean: Any, rstd: Any, weight: Any, n: Any, channels: Any, group: Any
) -> Any:  # fmt: skip
    """Return the gradients in the input, the weight and the bias of a group norm."""
    shape = (n, group, channels // group, -1)
    x, d = ops.Reshape()(input, shape), ops.Reshape()(dout, shape)
    one = (n, group, 1, 1)
    scale = ops.Reshape()(rstd, one)
    normal = (x - ops.Reshape()(mean, one)) * scale
    scaled = d if weight is None else d * ops.Reshape()(weight, (1, group, channels // group, 1))
    dx = ops.Reshape()(centred(scaled, normal, (2, 3)) * scale, input.shape)
    dweight = ops.Reshape()(ops.ReduceSum()(d * normal, (0, 3)), (channels,))
    return dx, dweight, ops.Reshape()(ops.ReduceSum()(d, (0, 3)), (channels,))


def batch_norm_gradients(
    dout: Any, input: Any, weight: Any, running_mean: Any, running_var: Any, save_mean: Any, save_invstd: Any,
    train: Any, eps: Any,
) -> Any:  # fmt: skip
    """Return the gradients in the input, the weight and the bias of a batch norm."""
    dims = tuple([d for d in range(len(input.shape)) if d != 1])
    channels = (1, -1) + (1,) * (len(input.shape) - 2)
    scale = ops.Reshape()(save_invstd if train else ops.Rsqrt()(running_var + eps), channels)
    normal = (input - ops.Reshape()(save_mean if train else running_mean, channels)) * scale
    scaled = dout if weight is None else dout * ops.Reshape()(weight, channels)
    dx = (centred(scaled, normal, dims) if train else scaled) * scale
    return dx, ops.ReduceSum()(dout * normal, dims), ops.ReduceSum()(dout, dims)


def embedding_gradient(dout: Any, indices: Any, num_weights: Any, padding_idx: Any) -> Any:
    """Return the sums of the rows of dout for every row of a table; the one at padding_idx, from 0, gets none."""
    table = ops.zeros((num_weights, dout.shape[-1]), dout.dtype)
    return gradients(lambda weight: embedding(weight, indices, padding_idx))(dout, table)


def bags_gradient(
    dout: Any, indices: Any, offsets: Any, num_weights: Any, scaled: Any, mode: Any, per_sample_weights: Any,
    padding_idx: Any,
) -> Any:  # fmt: skip
    """Return the gradient of bags in their table."""
    firsts, padding = offsets[: dout.shape[0]], None if padding_idx < 0 else padding_idx
    return gradients(lambda weight: bags(
        weight, indices, firsts, scaled, mode, per_sample_weights, False, padding)[0])(
            dout, ops.zeros((num_weights, dout.shape[1]), dout.dtype))


def nll_gradient(
    dout: Any, self: Any, target: Any, weight: Any, reduction: Any, ignore_index: Any, total_weight: Any
) -> Any:  # fmt: skip
    """Return the gradient of a negative log likelihood, whose mean is divided by total_weight."""
    place = 0 if len(self.shape) == 1 else 1
    seen = ops.NotEqual()(target, ignore_index)
    labels = ops.where(seen, target, ops.zeros_like(target))
    each = ops.ones(target.shape, self.dtype) if weight is None else ops.Gather()(weight, labels, 0)
    each = ops.where(seen, each, ops.zeros_like(each)) * dout
    each = ops.Neg()(each / total_weight if reduction == 1 else each)
    # A selection instead of a scatter: it is fused with the gradient of the softmax.
    hit = ops.OneHot(place)(labels, self.shape[place], 1.0, 0.0) > 0.0
    return ops.Select()(hit, ops.broadcast_to(ops.ExpandDims()(each, place), self.shape), ops.zeros_like(self))


def convolution_gradients(
    dout: Any, input: Any, weight: Any, bias_sizes: Any, stride: Any, padding: Any, dilation: Any, transposed: Any,
    output_padding: Any, groups: Any,
) -> Any:  # fmt: skip
    """Return the gradients in the input, the weight and the bias of a convolution."""
    dx, dweight = gradients(any_convolution, 2)(
        dout, input, weight, None, stride, padding, dilation, transposed, output_padding, groups)
    return dx, dweight, ops.ReduceSum()(dout, tuple([d for d in range(len(dout.shape)) if d != 1]))


def lstm_gradients(*given: Any) -> Any:
    """Return the gradients of a layer of an LSTM in its input, weights, biases and states."""
    output, hidden, cell = given[7], given[5], given[6]
    douts = [ops.zeros_like(like) if dout is None else dout
             for dout, like in zip(given[8:11], (output, hidden, cell), strict=True)]  # fmt: skip
    return gradients(lstm_layer, 7)(tuple(douts), *given[:7], *given[11:])


def to_places(dout: Any, self: Any, indices: Any, dims: Any) -> Any:
    """Return the gradient of maxima at `indices` of the last `dims` dimensions, which count as one."""
    front = self.shape[: len(self.shape) - dims]
    zeros = ops.Reshape()(ops.zeros_like(self), (*front, -1))
    flat = mint.scatter_add(zeros, -1, ops.Reshape()(indices, (*front, -1)), ops.Reshape()(dout, (*front, -1)))
    return ops.Reshape()(flat, self.shape)




GRADIENTS = (
    row("sigmoid_backward.default", "grad_output, output",
        broadcast(lambda dout, output: ops.SigmoidGrad()(output, dout))),
    row("tanh_backward.default", "grad_output, output",
        broadcast(lambda dout, output: ops.TanhGrad()(output, dout))),
    row("silu_backward.default", "grad_output, self", broadcast(lambda dout, self: ops.SiLUGrad()(dout, self))),
    row("gelu_backward.default", "grad_output, self, approximate='none'", broadcast(gradients(ops.gelu))),
    row("elu_backward.default", "grad_output, alpha, scale, input_scale, is_result, self_or_result", elu_gradient),
    row("leaky_relu_backward.default", "grad_output, self, negative_slope, -self_is_result",
        lambda dout, self, slope: ops.where(ops.Greater()(self, 0), dout, dout * slope)),
    row("rrelu_with_noise_backward.default",
        "grad_output, self, noise, lower, upper, training, -self_is_result",
        lambda dout, self, noise, lower, upper, training: dout * noise if training else ops.where(
            ops.Greater()(self, 0), dout, dout * ((lower + upper) / 2))),
    row("hardswish_backward.default", "grad_output, self", broadcast(gradients(ops.hardswish))),
    row("hardsigmoid_backward.default", "grad_output, self", broadcast(gradients(ops.hardsigmoid))),
    row("mish_backward.default", "grad_output, self", broadcast(gradients(ops.mish))),
    row("hardtanh_backward.default", "grad_output, self, min_val, max_val", broadcast(gradients(ops.hardtanh))),
    row("softplus_backward.default", "grad_output, self, beta, threshold", broadcast(gradients(ops.softplus))),
    row("softshrink_backward.default", "grad_output, self, lambd", gradients(ops.softshrink)),
    row("hardshrink_backward.default", "grad_out, self, lambd", gradients(ops.hardshrink)),
    row("glu_backward.default", "grad_output, self, dim", gradients(ops.glu)),
    row("logit_backward.default", "grad_output, self, eps=None", gradients(log_odds)),
    row("log_sigmoid_forward.default", "self", lambda self: (functional.logsigmoid(self), None)),
    row("log_sigmoid_backward.default", "grad_output, self, -buffer", gradients(functional.logsigmoid)),
    row("_prelu_kernel.default", "self, weight",
        lambda self, weight: ops.where(ops.Greater()(self, 0), self, self * weight)),
    row("_prelu_kernel_backward.default", "grad_output, self, weight", lambda dout, self, weight: (
        ops.where(self > 0, dout, dout * weight), ops.where(self > 0, ops.zeros_like(dout), dout * self))),
    row("native_dropout_backward.default", "grad_output, mask, scale",
        lambda dout, mask, scale: dout * ops.cast(mask, dout.dtype) * scale),
    row("_softmax_backward_data.default", "grad_output, output, dim, input_dtype", softmax_gradient),
    row("_log_softmax_backward_data.default", "grad_output, output, dim, input_dtype",
        lambda dout, output, dim, input_dtype: ops.cast(ops.LogSoftmaxGrad(dim)(output, dout), input_dtype)),
    row("native_layer_norm_backward.default",
        "grad_out, input, normalized_shape, mean, rstd, weight, bias, -output_mask", layer_norm_gradients),
    row("_fused_rms_norm_backward.default", "grad_out, input, normalized_shape, rstd, weight, -output_mask",
        lambda dout, x, sizes, rstd, weight: layer_norm_gradients(dout, x, sizes, None, rstd, weight, None)[:2]),
    row("native_group_norm_backward.default", "grad_out, input, mean, rstd, weight, N, C, -HxW, group, -output_mask",
        group_norm_gradients),
    row("native_batch_norm_backward.default", "grad_out, input, weight, running_mean, running_var, save_mean, "
        "save_invstd, train, eps, -output_mask", batch_norm_gradients),
    row("cudnn_batch_norm_backward.default", "input, grad_output, weight, running_mean, running_var, save_mean, "
        "save_var, epsilon, -reserveSpace", lambda input, dout, weight, mean, variance, save_mean, save_invstd, epsilon:
            batch_norm_gradients(dout, input, weight, mean, variance, save_mean, save_invstd, True, epsilon)),
    row("_weight_norm_interface.default", "v, g, dim=0", lambda v, g, dim: (weight_norm(v, g, dim), None)),
    row("_weight_norm_interface_backward.default", "grad_w, saved_v, saved_g, -saved_norms, dim",
        gradients(weight_norm, 2)),
    row("embedding_dense_backward.default", "grad_output, indices, num_weights, padding_idx, !scale_grad_by_freq=False",
        embedding_gradient),
    row("masked_scatter_backward.default", "grad_output, mask, sizes", lambda dout, mask, sizes: gradients(
        lambda source: filled_in_order(ops.zeros_like(dout), mask, source))(dout, ops.zeros(tuple(sizes), dout.dtype))),
    row("nll_loss_backward.default nll_loss2d_backward.default",
        "grad_output, self, target, weight, reduction, ignore_index, total_weight", nll_gradient),
    row("mse_loss_backward.default", "grad_output, self, target, reduction",
        gradients(of_target(functional.mse_loss))),
    row("smooth_l1_loss_backward.default", "grad_output, self, target, reduction, beta",
        gradients(lambda self, target, reduction, beta: functional.smooth_l1_loss(
            self, target, reduced(reduction), beta))),
    row("huber_loss_backward.default", "grad_output, self, target, reduction, delta",
        gradients(lambda self, target, reduction, delta: ops.huber_loss(self, target, reduced(reduction), delta))),
    row("soft_margin_loss_backward.default", "grad_output, self, target, reduction",
        gradients(of_target(functional.soft_margin_loss))),
    row("multi_margin_loss_backward.default", "grad_output, self, target, p, margin, weight=None, reduction=1",
        gradients(lambda self, target, p, margin, weight, reduction: ops.multi_margin_loss(
            self, target, p, margin, weight, reduced(reduction)))),
    row("multilabel_margin_loss_forward.default", "self, target, reduction", lambda self, target, reduction: (
        ops.multilabel_margin_loss(self, target, reduced(reduction)), None)),
    row("multilabel_margin_loss_backward.default", "grad_output, self, target, reduction, -is_target",
        gradients(of_target(ops.multilabel_margin_loss))),
    row("binary_cross_entropy_backward.default", "grad_output, self, target, weight=None, reduction=1",
        gradients(of_truths)),
    row("slice_backward.default", "grad_output, input_sizes, dim, start, end, step",
        lambda dout, sizes, *part: part_replaced(ops.zeros(tuple(sizes), dout.dtype), dout, *part)),
    row("select_backward.default", "grad_output, input_sizes, dim, index",
        lambda dout, sizes, dim, index: selected_replaced(ops.zeros(tuple(sizes), dout.dtype), dout, dim, index)),
    row("diagonal_backward.default", "grad_output, input_sizes, offset, dim1, dim2",
        lambda dout, sizes, *along: ops.diagonal_scatter(ops.zeros(tuple(sizes), dout.dtype), dout, *along)),
    row("unfold_backward.default", "grad_in, input_sizes, dim, size, step", of_size(windows)),
    *(row(f"{name}_pad{dims}d_backward.default", "grad_output, self, padding",
          gradients(lambda self, padding, mode=mode: ops.pad(self, tuple(padding), mode)))
      for name, mode in (("reflection", "reflect"), ("replication", "replicate")) for dims in (1, 2, 3)),
    row("convolution_backward.default", "grad_output, input, weight, bias_sizes, stride, padding, dilation, "
        "transposed, output_padding, groups, -output_mask", convolution_gradients),
    *(row(f"{name}.default", f"grad_output, self, {rest}", lambda dout, self, indices, dims=dims: to_places(
        dout, self, indices, dims))
      for name, rest, dims in (
          ("max_pool2d_with_indices_backward",
           "-kernel_size, -stride, -padding, -dilation, -ceil_mode, indices", 2),
          ("max_pool3d_with_indices_backward",
           "-kernel_size, -stride, -padding, -dilation, -ceil_mode, indices", 3),
          ("adaptive_max_pool2d_backward", "indices", 2), ("adaptive_max_pool3d_backward", "indices", 3))),
    row("avg_pool2d_backward.default", "grad_output, self, kernel_size, stride, padding, ceil_mode, "
        "count_include_pad, divisor_override", gradients(averaged)),
    row("avg_pool3d_backward.default", "grad_output, self, kernel_size, stride, padding, ceil_mode, "
        "count_include_pad, divisor_override",
        gradients(averaged_in_space)),
    row("_adaptive_avg_pool2d_backward.default", "grad_output, self",
        lambda dout, self: gradients(averaged_adaptively)(dout, self, dout.shape[-2:])),
    row("_adaptive_avg_pool3d_backward.default", "grad_output, self", lambda dout, self: gradients(
        functional.adaptive_avg_pool3d)(dout, self, dout.shape[-3:])),
    *(row(f"{name}_backward.default", f"grad_output, -output_size, input_size{corners}, {SCALES[dims]}",
          lambda dout, sizes, *rest, function=function, plain=corners != "": of_size(function)(
              dout, sizes, dout.shape[2:], *rest[:plain], rest[plain:]))
      for name, dims, corners, function in RESIZED),
    row("_pdist_backward.default", "grad, self, p, -pdist", gradients(lambda self, p: ops.pdist(self, float(p)))),
    row("_embedding_bag_backward.default", "grad, indices, offsets, -offset2bag, -bag_size, -maximum_indices, "
        "num_weights, scale_grad_by_freq, mode, -sparse, per_sample_weights, padding_idx=-1", bags_gradient),
    row("grid_sampler_2d_backward.default grid_sampler_3d_backward.default",
        "grad_output, input, grid, interpolation_mode, padding_mode, align_corners, -output_mask",
        gradients(sampled, 2)),
    row("mkldnn_rnn_layer_backward.default", "input, weight1, weight2, weight3, weight4, hx_, cx_tmp, output, -hy_, "
        "-cy_, grad_output, grad_hy, grad_cy, reverse, !mode=2, -hidden_size, -num_layers, has_biases, -train, "
        "-bidirectional, !batch_sizes=(), !batch_first=False, -workspace", lstm_gradients),
    row("_cdist_backward.default", "grad, x1, x2, p, -cdist", gradients(distances)),
    row("transformers.grouped_mm_fallback_backward.default", "input, weight, offs, grad_output",
        lambda input, weight, offs, dout: gradients(grouped_product, 2)(dout, input, weight, offs)),
)  # fmt: skip
"""Kinds of gradients."""
