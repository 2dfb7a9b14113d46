"""These classes of MindSpore's operators update parameters as optimizers do, by small operators. What is no Parameter
among what they update is computed, and stored nowhere."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.common.parameter import Parameter


def _stored(held: Any, value: Any) -> Any:
    """The new value, in the parameter if it is one."""
    return ops.assign(held, value) if isinstance(held, Parameter) else value


def _shrunk(x: Any, by: Any) -> Any:
    """Every element nearer to 0 by as much, at most to it."""
    return ops.sign(x) * ops.relu(ops.abs(x) - by)


class _Locked:
    """Made with use_locking, which changes nothing: a graph updates a parameter once at a time."""

    def __init__(self, use_locking: bool = False) -> None:
        self.use_locking = use_locking


class ApplyGradientDescent:
    """var -= alpha * delta. Called as `(var, alpha, delta)`; gives var."""

    def __call__(self, var: Any, alpha: Any, delta: Any) -> Any:
        return _stored(var, var - alpha * delta)


class ApplyProximalGradientDescent:
    """p = var - alpha * delta; var = sign(p) * max(|p| - alpha * l1, 0) / (1 + alpha * l2). Called as `(var, alpha, l1,
    l2, delta)`; gives var."""

    def __call__(self, var: Any, alpha: Any, l1: Any, l2: Any, delta: Any) -> Any:
        return _stored(var, _shrunk(var - alpha * delta, alpha * l1) / (1 + alpha * l2))


class ApplyKerasMomentum(_Locked):
    """accum = momentum * accum - lr * grad; var += accum, or momentum * accum - lr * grad with use_nesterov. Called as
    `(var, accum, lr, grad, momentum)`; gives (var, accum)."""

    def __init__(self, use_locking: bool = False, use_nesterov: bool = False) -> None:
        super().__init__(use_locking)
        self.use_nesterov = use_nesterov

    def __call__(self, var: Any, accum: Any, lr: Any, grad: Any, momentum: Any) -> Any:
        speed = _stored(accum, momentum * accum - lr * grad)
        step = momentum * speed - lr * grad if self.use_nesterov else speed
        return _stored(var, var + step), speed


class ApplyAdagrad:
    """accum += grad^2 with update_slots; var -= lr * grad / sqrt(accum). Called as `(var, accum, lr, grad)`; gives
    (var, accum). Duchi et al. 2011."""

    def __init__(self, update_slots: bool = True) -> None:
        self.update_slots = update_slots

    def __call__(self, var: Any, accum: Any, lr: Any, grad: Any) -> Any:
        total = _stored(accum, accum + grad * grad) if self.update_slots else accum
        return _stored(var, var - lr * grad * ops.rsqrt(total)), total


class ApplyAdagradV2:
    """accum += grad^2 with update_slots; var -= lr * grad / (sqrt(accum) + epsilon). Called as `(var, accum, lr,
    grad)`; gives (var, accum)."""

    def __init__(self, epsilon: float, update_slots: bool = True) -> None:
        self.epsilon, self.update_slots = epsilon, update_slots

    def __call__(self, var: Any, accum: Any, lr: Any, grad: Any) -> Any:
        total = _stored(accum, accum + grad * grad) if self.update_slots else accum
        return _stored(var, var - lr * grad / (ops.sqrt(total) + self.epsilon)), total


class ApplyAdagradDA(_Locked):
    """Adagrad by dual averaging: a += grad, s += grad^2, var = -lr * sign(a) * max(|a| - l1 * global_step, 0) /
    (l2 * global_step * lr + sqrt(s)). Called as `(var, a, s, grad, lr, l1, l2, global_step)`; gives var."""

    def __call__(
        self, var: Any, gradient_accumulator: Any, gradient_squared_accumulator: Any, grad: Any, lr: Any, l1: Any,
        l2: Any, global_step: Any,
    ) -> Any:  # fmt: skip
        total = _stored(gradient_accumulator, gradient_accumulator + grad)
        squares = _stored(gradient_squared_accumulator, gradient_squared_accumulator + grad * grad)
        steps = ops.cast(global_step, var.dtype)
        return _stored(var, -lr * _shrunk(total, l1 * steps) / (l2 * steps * lr + ops.sqrt(squares)))


class ApplyProximalAdagrad(_Locked):
    """accum += grad^2; p = var - lr * grad / sqrt(accum); var = sign(p) * max(|p| - lr * l1, 0) / (1 + lr * l2). Called
    as `(var, accum, lr, l1, l2, grad)`; gives (var, accum)."""

    def __call__(self, var: Any, accum: Any, lr: Any, l1: Any, l2: Any, grad: Any) -> Any:
        total = _stored(accum, accum + grad * grad)
        rate = lr * ops.rsqrt(total)
        return _stored(var, _shrunk(var - rate * grad, rate * l1) / (1 + rate * l2)), total


class ApplyAdadelta:
    """accum = rho * accum + (1 - rho) * grad^2; u = sqrt(accum_update + epsilon) / sqrt(accum + epsilon) * grad;
    accum_update = rho * accum_update + (1 - rho) * u^2; var -= lr * u. Called as `(var, accum, accum_update, lr, rho,
    epsilon, grad)`; gives (var, accum, accum_update). Zeiler 2012."""

    def __call__(
        self, var: Any, accum: Any, accum_update: Any, lr: Any, rho: Any, epsilon: Any, grad: Any
    ) -> Any:
        total = _stored(accum, rho * accum + (1 - rho) * grad * grad)
        step = ops.sqrt(accum_update + epsilon) * ops.rsqrt(total + epsilon) * grad
        steps = _stored(accum_update, rho * accum_update + (1 - rho) * step * step)
        return _stored(var, var - lr * step), total, steps


class ApplyAdaMax:
    """m = beta1 * m + (1 - beta1) * grad; v = max(beta2 * v, |grad|); var -= lr / (1 - beta1_power) * m / (v +
    epsilon). Called as `(var, m, v, beta1_power, lr, beta1, beta2, epsilon, grad)`; gives (var, m, v). Kingma and Ba
    2014."""

    def __call__(
        self, var: Any, m: Any, v: Any, beta1_power: Any, lr: Any, beta1: Any, beta2: Any, epsilon: Any, grad: Any
    ) -> Any:
        mean = _stored(m, beta1 * m + (1 - beta1) * grad)
        size = _stored(v, ops.maximum(beta2 * v, ops.abs(grad)))
        return _stored(var, var - lr / (1 - beta1_power) * mean / (size + epsilon)), mean, size


class ApplyAdamWithAmsgradV2(_Locked):
    """m = beta1 * m + (1 - beta1) * grad; v = beta2 * v + (1 - beta2) * grad^2; vhat = max(vhat, v);
    var -= lr * sqrt(1 - beta2_power) / (1 - beta1_power) * m / (sqrt(vhat) + epsilon). Called as `(var, m, v, vhat,
    beta1_power, beta2_power, lr, beta1, beta2, epsilon, grad)`; gives (var, m, v, vhat). Reddi et al. 2018."""

    def __call__(
        self, var: Any, m: Any, v: Any, vhat: Any, beta1_power: Any, beta2_power: Any, lr: Any, beta1: Any, beta2: Any,
        epsilon: Any, grad: Any,
    ) -> Any:  # fmt: skip
        mean = _stored(m, beta1 * m + (1 - beta1) * grad)
        square = _stored(v, beta2 * v + (1 - beta2) * grad * grad)
        greatest = _stored(vhat, ops.maximum(vhat, square))
        rate = lr * ops.sqrt(1 - beta2_power) / (1 - beta1_power)
        return _stored(var, var - rate * mean / (ops.sqrt(greatest) + epsilon)), mean, square, greatest


class ApplyAdamWithAmsgrad(_Locked):
    """`ApplyAdamWithAmsgradV2` made with beta1, beta2 and epsilon. Called as `(var, m, v, vhat, beta1_power,
    beta2_power, lr, grad)`; gives (var, m, v, vhat)."""

    def __init__(
        self, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, use_locking: bool = False
    ) -> None:
        super().__init__(use_locking)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.update = ApplyAdamWithAmsgradV2(use_locking)

    def __call__(
        self, var: Any, m: Any, v: Any, vhat: Any, beta1_power: Any, beta2_power: Any, lr: Any, grad: Any
    ) -> Any:
        return self.update(
            var, m, v, vhat, beta1_power, beta2_power, lr, self.beta1, self.beta2, self.epsilon, grad
        )


class ApplyAddSign:
    """m = beta * m + (1 - beta) * grad; var -= lr * (alpha + sign_decay * sign(grad) * sign(m)) * grad. Called as
    `(var, m, lr, alpha, sign_decay, beta, grad)`; gives (var, m). Bello et al. 2017."""

    def __call__(self, var: Any, m: Any, lr: Any, alpha: Any, sign_decay: Any, beta: Any, grad: Any) -> Any:
        mean = _stored(m, beta * m + (1 - beta) * grad)
        agreed = sign_decay * ops.sign(grad) * ops.sign(mean)
        return _stored(var, var - lr * (alpha + agreed) * grad), mean


class ApplyPowerSign:
    """m = beta * m + (1 - beta) * grad; var -= lr * exp(logbase * sign_decay * sign(grad) * sign(m)) * grad. Called as
    `(var, m, lr, logbase, sign_decay, beta, grad)`; gives (var, m). Bello et al. 2017."""

    def __call__(self, var: Any, m: Any, lr: Any, logbase: Any, sign_decay: Any, beta: Any, grad: Any) -> Any:
        mean = _stored(m, beta * m + (1 - beta) * grad)
        agreed = logbase * sign_decay * ops.sign(grad) * ops.sign(mean)
        return _stored(var, var - lr * ops.exp(agreed) * grad), mean


class ApplyRMSProp(_Locked):
    """s = decay * s + (1 - decay) * grad^2; moment = momentum * moment + lr * grad / sqrt(s + epsilon); var -= moment.
    Called as `(var, mean_square, moment, learning_rate, grad, decay, momentum, epsilon)`; gives var."""

    def __call__(
        self, var: Any, mean_square: Any, moment: Any, learning_rate: Any, grad: Any, decay: Any, momentum: Any,
        epsilon: Any,
    ) -> Any:  # fmt: skip
        square = _stored(mean_square, decay * mean_square + (1 - decay) * grad * grad)
        step = _stored(moment, momentum * moment + learning_rate * grad * ops.rsqrt(square + epsilon))
        return _stored(var, var - step)


class ApplyCenteredRMSProp(_Locked):
    """`ApplyRMSProp` with s - g^2 in place of s, where g = decay * g + (1 - decay) * grad. Called as `(var,
    mean_gradient, mean_square, moment, grad, learning_rate, decay, momentum, epsilon)`; gives var."""

    def __call__(
        self, var: Any, mean_gradient: Any, mean_square: Any, moment: Any, grad: Any, learning_rate: Any, decay: Any,
        momentum: Any, epsilon: Any,
    ) -> Any:  # fmt: skip
        mean = _stored(mean_gradient, decay * mean_gradient + (1 - decay) * grad)
        square = _stored(mean_square, decay * mean_square + (1 - decay) * grad * grad)
        spread = square - mean * mean + epsilon
        step = _stored(moment, momentum * moment + learning_rate * grad * ops.rsqrt(spread))
        return _stored(var, var - step)


class ApplyFtrl(_Locked):
    """b = accum + grad^2, p = -lr_power; linear += grad - (b^p - accum^p) / lr * var; accum = b; var = -sign(linear) *
    max(|linear| - l1, 0) / (b^p / lr + 2 * l2). Called as `(var, accum, linear, grad, lr, l1, l2, lr_power)`; gives
    var. McMahan et al. 2013."""

    def __call__(
        self, var: Any, accum: Any, linear: Any, grad: Any, lr: Any, l1: Any, l2: Any, lr_power: Any
    ) -> Any:
        total = accum + grad * grad
        after, before = ops.pow(total, -lr_power), ops.pow(accum, -lr_power)
        pull = _stored(linear, linear + grad - (after - before) / lr * var)
        stored = _stored(accum, total)
        return ops.depend(_stored(var, -_shrunk(pull, l1) / (after / lr + 2 * l2)), stored)
