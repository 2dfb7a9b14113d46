"""Kinds of ATen that take lists of tensors, one after the other: `_foreach_*`, and fused optimizers."""

from __future__ import annotations

from typing import Any

from mspc.mindspore_api import ops
from mspc.readers.pytorch.kinds.creation import overwritten
from mspc.readers.pytorch.kinds.kind import Kind, row
from mspc.readers.pytorch.kinds.pointwise import between, clamped, divide, power
from mspc.readers.pytorch.kinds.reductions import vector_norm


def each_of(function: Any) -> Any:
    """Return a function of lists, numbers and tensors: the list of the results for one entry of each list."""

    def of(*args: Any) -> Any:
        count = len(args[0]) if isinstance(args[0], (list, tuple)) else len(args[1])
        return [function(*[x[i] if isinstance(x, (list, tuple)) else x for x in args]) for i in range(count)]

    return of


def in_place(function: Any) -> Any:
    """Return a function that returns the list of `each_of` as the one written value."""
    return lambda *args: (each_of(function)(*args),)


def foreach(name: str, arguments: str, function: Any) -> list[Kind]:
    """Return the rows of `_foreach_NAME` and of its form in place."""
    operator, _, overload = name.partition(".")
    return [
        *row(f"_foreach_{operator}.{overload}", arguments, each_of(function)),
        *row(f"_foreach_{operator}_.{overload}", arguments, in_place(function), writes="self"),
    ]


ONE = {
    "abs": ops.Abs(), "neg": ops.Neg(), "sqrt": ops.Sqrt(), "rsqrt": ops.Rsqrt(), "reciprocal": ops.Reciprocal(),
    "exp": ops.Exp(), "log": ops.Log(), "sign": ops.Sign(), "tanh": ops.Tanh(), "sigmoid": ops.Sigmoid(),
}  # fmt: skip
TWO = {
    "mul": lambda x, y: x * y, "div": divide, "maximum": ops.maximum, "minimum": ops.minimum, "clamp_min": clamped,
    "clamp_max": lambda x, most: clamped(x, None, most), "pow": power,
}  # fmt: skip
"""Functions of one tensor, and of two or of one and a number."""
_OTHERS = {"List": "other", "Scalar": "scalar", "ScalarList": "scalars", "Tensor": "other"}
_EXPONENTS = dict.fromkeys(("List", "Scalar", "ScalarList"), "exponent")
_VALUES = {"Scalar": "value=1", "ScalarList": "scalars"}


def adam(decoupled: Any) -> Any:
    """Return the update of Adam by fused kernels: new parameters, both averages and maxima of the second."""

    def one(
        x: Any, grad: Any, first: Any, second: Any, most: Any, step: Any, lr: Any, beta1: Any, beta2: Any,
        weight_decay: Any, eps: Any, maximize: Any,
    ) -> Any:  # fmt: skip
        grad = ops.Neg()(grad) if maximize else grad
        if weight_decay and decoupled:
            x = x - x * (lr * weight_decay)
        elif weight_decay:
            grad = grad + x * weight_decay
        first = first + (grad - first) * (1 - beta1)
        second = second * beta2 + grad * grad * (1 - beta2)
        most = second if most is None else ops.Maximum()(most, second)
        corrected = ops.Sqrt()(most) / ops.Sqrt()(1 - ops.Pow()(beta2, step)) + eps
        return x - first * (lr / (1 - ops.Pow()(beta1, step))) / corrected, first, second, most

    def of(
        params: Any, grads: Any, firsts: Any, seconds: Any, mosts: Any, steps: Any, lr: Any, beta1: Any, beta2: Any,
        weight_decay: Any, eps: Any, amsgrad: Any, maximize: Any,
    ) -> Any:  # fmt: skip
        settings = (lr, beta1, beta2, weight_decay, eps, maximize)
        found = [one(params[i], grads[i], firsts[i], seconds[i], mosts[i] if amsgrad else None, steps[i], *settings)
                 for i in range(len(params))]  # fmt: skip
        new = [[each[place] for each in found] for place in range(4)]
        return new[0], new[1], new[2], new[3] if amsgrad else []

    return of


def sgd(
    params: Any, grads: Any, buffers: Any, weight_decay: Any, momentum: Any, lr: Any, dampening: Any, nesterov: Any,
    maximize: Any, is_first_step: Any,
) -> Any:  # fmt: skip
    """Return the update of SGD by a fused kernel: new parameters and new moments."""
    new, moments = [], []
    for i in range(len(params)):
        grad = ops.Neg()(grads[i]) if maximize else grads[i]
        grad = grad + params[i] * weight_decay if weight_decay else grad
        if momentum:
            moment = grad if is_first_step else buffers[i] * momentum + grad * (1 - dampening)
            moments.append(moment)
            grad = grad + moment * momentum if nesterov else moment
        new.append(params[i] - grad * lr)
    return new, moments


_ADAM = ("self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr, beta1, beta2, weight_decay, eps, "
         "amsgrad, maximize, !grad_scale=None, !found_inf=None")  # fmt: skip
_MOMENTS = "self exp_avgs exp_avg_sqs max_exp_avg_sqs"

LISTS = (
    *(foreach(f"{name}.default", "self", function) for name, function in ONE.items()),
    *(foreach(f"{name}.{form}", f"self, {other}", function) for name, function in TWO.items()
      for form, other in (_EXPONENTS if name == "pow" else _OTHERS).items()
      if form != "Tensor" or name in ("mul", "div")),
    *(foreach(f"{name}.{form}", f"self, {other}{', alpha=1' * (form in ('List', 'Tensor'))}", function)
      for name, function in (("add", lambda x, y, alpha=1: x + y * alpha), ("sub", lambda x, y, alpha=1: x - y * alpha))
      for form, other in _OTHERS.items() if form != "Tensor" or name == "add"),
    *(foreach(f"{name}.{form}", f"self, tensor1, tensor2, {value}", function)
      for name, function in (("addcmul", ops.addcmul), ("addcdiv", ops.addcdiv)) for form, value in _VALUES.items()),
    foreach("lerp.Scalar", "self, tensors1, weight", between),
    foreach("lerp.List", "self, tensors1, weights", between),
    foreach("copy.default", "self, src, -non_blocking=False", overwritten),
    row("_foreach_zero_.default", "self", in_place(ops.zeros_like), writes="self"),
    row("_foreach_pow.ScalarAndTensor", "self, exponent", each_of(lambda x, exponent: ops.Pow()(x, exponent))),
    row("_foreach_norm.Scalar", "self, ord=2, dtype=None",
        each_of(lambda x, ord, dtype: vector_norm(x, ord, None, False, dtype))),
    row("_fused_adam_.default _fused_adam_.tensor_lr", _ADAM, adam(False), writes=_MOMENTS),
    row("_fused_adamw_.default _fused_adamw_.tensor_lr", _ADAM, adam(True), writes=_MOMENTS),
    row("_fused_sgd_.default _fused_sgd_.tensor_lr", "self, grads, momentum_buffer_list, weight_decay, momentum, lr, "
        "dampening, nesterov, maximize, is_first_step, !grad_scale=None, !found_inf=None", sgd,
        writes="self momentum_buffer_list"),
)  # fmt: skip
"""Kinds of lists."""
