"""This module has Adam and its form with decoupled weight decay."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.nn.cell_arguments import check_beta, number, scalar
from mspc.api.nn.optim.optimizer import Optimizer


class Adam(Optimizer):
    """Kingma and Ba 2015: moments m and v, corrected by 1 - beta^step; parameter -= lr * m / (sqrt(v) + eps).

    With use_amsgrad the largest v so far stands for v (Reddi et al. 2018). use_offload keeps the
    moments in the host's memory (`offload`); use_lazy changes nothing: gradients are dense.

    The states are the parameters `moment1.NAME`, `moment2.NAME`, `vhat.NAME` (use_amsgrad), `beta1_power` and
    `beta2_power`.
    """

    def __init__(
        self, params: Any, learning_rate: Any = 1e-3, beta1: float = 0.9, beta2: float = 0.999,
        eps: float = 1e-8,
        use_locking: bool = False, use_nesterov: bool = False, weight_decay: Any = 0.0,
        loss_scale: float = 1.0,
        use_amsgrad: bool = False, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, params, weight_decay, loss_scale)
        for key in kwargs:
            if key not in ("use_lazy", "use_offload"):
                raise ApiTypeError(f"Adam has no argument {key!r}", ["its others are use_lazy and use_offload"])
        for key, value in {"use_amsgrad": use_amsgrad, "use_nesterov": use_nesterov, **kwargs}.items():
            if not isinstance(value, bool):
                raise ApiTypeError(f"Adam: {key} must be True or False, not {value!r}")
        if use_amsgrad and (use_nesterov or any(kwargs.values())):
            raise ApiValueError("Adam: use_amsgrad goes with neither use_nesterov nor use_lazy nor use_offload")
        self.beta1 = check_beta("Adam", "beta1", beta1)
        self.beta2 = check_beta("Adam", "beta2", beta2)
        self.eps = number("Adam", "eps", eps, above=0.0)
        self.beta1_power = scalar(1.0, "beta1_power")
        self.beta2_power = scalar(1.0, "beta2_power")
        self.moment1 = self.states("moment1")
        self.moment2 = self.states("moment2")
        self.use_amsgrad = use_amsgrad
        if use_amsgrad:
            self.vhat = self.states("vhat")
        if kwargs.get("use_offload"):
            self.offload()
        self.assign = ops.Assign()
        self.opt = ops.Adam(use_locking, use_nesterov)

    def construct(self, gradients: Any) -> Any:
        gradients = self.prepared(gradients)
        rates = self.rates()
        self.count_step()
        power1 = self.assign(self.beta1_power, self.beta1_power * self.beta1)
        power2 = self.assign(self.beta2_power, self.beta2_power * self.beta2)
        if self.use_amsgrad:
            return tuple([
                self.update(parameter, m, v, most, rate * ops.sqrt(1.0 - power2) / (1.0 - power1), gradient)
                for parameter, m, v, most, rate, gradient in zip(
                    self.parameters, self.moment1, self.moment2, self.vhat, rates, gradients, strict=True
                )
            ])  # fmt: skip
        return tuple([
            self.opt(parameter, m, v, power1, power2, rate, self.beta1, self.beta2, self.eps, gradient)
            for parameter, m, v, rate, gradient in zip(
                self.parameters, self.moment1, self.moment2, rates, gradients, strict=True
            )
        ])  # fmt: skip

    def update(self, parameter: Any, m: Any, v: Any, most: Any, rate: Any, gradient: Any) -> Any:
        mean = self.assign(m, m * self.beta1 + gradient * (1 - self.beta1))
        square = self.assign(v, v * self.beta2 + ops.square(gradient) * (1 - self.beta2))
        largest = self.assign(most, ops.maximum(most, square))
        return self.assign(parameter, parameter - rate * mean / (ops.sqrt(largest) + self.eps))


class LazyAdam(Adam):
    """Adam, under the name that networks with embeddings use. MindSpore's leaves rows without a gradient as they are;
    here gradients are dense, and moments decay as in Adam. `sparse_opt` can be configured and is never used.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sparse_opt = ops.Adam()


class AdamOffload(Adam):
    """Adam with moments in the host's memory, where the device updates them."""

    centralizes = False

    def __init__(
        self, params: Any, learning_rate: Any = 1e-3, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8,
        use_locking: bool = False, use_nesterov: bool = False, weight_decay: Any = 0.0, loss_scale: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__(
            params, learning_rate, beta1, beta2, eps, use_locking, use_nesterov, weight_decay, loss_scale,
            use_offload=True,
        )


class AdamWeightDecay(Optimizer):
    """Adam without bias correction; the weight decay pulls on the parameter, not on the gradient:
    parameter -= lr * (m / (sqrt(v) + eps) + weight_decay * parameter).

    The states are the parameters `adam_m.NAME` and `adam_v.NAME`.
    """

    centralizes = False
    shares_updates = True

    def __init__(
        self, params: Any, learning_rate: Any = 1e-3, beta1: float = 0.9, beta2: float = 0.999,
        eps: float = 1e-6,
        weight_decay: Any = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, params, weight_decay)
        self.beta1 = check_beta("AdamWeightDecay", "beta1", beta1)
        self.beta2 = check_beta("AdamWeightDecay", "beta2", beta2)
        self.eps = number("AdamWeightDecay", "eps", eps, above=0.0)
        self.moments1 = self.states("adam_m")
        self.moments2 = self.states("adam_v")
        self.fused_opt = ops.AdamWeightDecay()

    def construct(self, gradients: Any) -> Any:
        rates, decays = self.rates(), self.decays()
        self.count_step()
        return tuple([
            self.fused_opt(
                parameter, m, v, rate, self.beta1, self.beta2, self.eps, decay, gradient.astype(parameter.dtype)
            )
            for parameter, m, v, rate, decay, gradient in zip(
                self.parameters, self.moments1, self.moments2, rates, decays, gradients,
                strict=True
            )
        ])  # fmt: skip
