"""Compares steps of a small network with PyTorch's: clipping, accumulation of gradients, loss scales with overflow."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.verify.difference import ComparedValue, compare
from tests.oracle.optimizer_cases import STEPS, Case, flat, floats, formulas, optimizers, rates

Array = Any
ROWS, INSIDE, OUT = 8, 5, 3
W1, W2 = floats(1, (6, INSIDE)), floats(2, (INSIDE, OUT))
DATA = [(floats(20 + step, (ROWS, 6)), floats(40 + step, (ROWS, OUT))) for step in range(STEPS)]
BEGIN = np.stack([flat([W1, W2])] * STEPS)
OVERFLOWS = (2, 3)
"""Steps, from 0, whose data overflow in cases of a loss scale."""


def complete_steps() -> list[Case]:
    """A case for everything that is between a loss and an update."""
    from mspc.mindspore_api import nn

    return [
        _case("nn.TrainOneStepCell", lambda: _trained(lambda loss, optimizer: nn.TrainOneStepCell(loss, optimizer)),
             lambda torch: _judged(torch, lambda grads: grads)),
        _case("nn.TrainOneStepCell(sens=4)",
             lambda: _trained(lambda loss, optimizer: nn.TrainOneStepCell(loss, optimizer, 4.0)),
             lambda torch: _judged(torch, lambda grads: [4.0 * g for g in grads])),
        *_clips(),
        *_accumulations(nn),
        _case("nn.TrainOneStepWithLossScaleCell, dynamic", lambda: _scaled(
             lambda loss, optimizer: nn.TrainOneStepWithLossScaleCell(
                 loss, optimizer, nn.DynamicLossScaleUpdateCell(32.0, 2, 2))),
             lambda torch: _by_scale(torch, _grows_after_change), "Micikevicius et al. 2018, section 3.2"),
        _case("nn.TrainOneStepWithLossScaleCell, dynamic from its least", lambda: _scaled(
             lambda loss, optimizer: nn.TrainOneStepWithLossScaleCell(
                 loss, optimizer, nn.DynamicLossScaleUpdateCell(1.0, 2, 2))),
             lambda torch: _by_scale(torch, _grows_after_change, 1.0), "Micikevicius et al. 2018, section 3.2"),
        _case("nn.TrainOneStepWithLossScaleCell, fixed", lambda: _scaled(
             lambda loss, optimizer: nn.TrainOneStepWithLossScaleCell(
                 loss, optimizer, nn.FixedLossScaleUpdateCell(32.0))),
             lambda torch: _by_scale(torch, lambda scale, quiet, overflow: (scale, 0)),
             "Micikevicius et al. 2018, section 3.2"),
        Case("amp.all_finite", _all_finite, lambda torch: np.array([
             float(all(bool(torch.isfinite(torch.tensor(g)).all()) for g in grads)) for grads in PARTLY_FINITE])),
        Case("amp.DynamicLossScaler", _scaler, lambda torch: _grad_scaler(torch), "torch.amp.GradScaler's rule"),
        Case("amp.DynamicLossScaleManager", _manager, lambda torch: _grad_scaler(torch), "torch.amp.GradScaler's rule"),
        Case("amp's scales at their least", _least_scales, lambda torch: np.array([[4.0, 2.0, 1.0, 1.0, 1.0]] * 2),
             "MindSpore's documentation: a scale is at least 1"),
    ]  # fmt: skip


def _case(name: str, mine: Callable[[], Array], theirs: Callable[[Any], Array], source: str = "PyTorch") -> Case:
    return Case(name, mine, theirs, source, BEGIN)


def _clips() -> list[Case]:
    from mspc.mindspore_api import nn, ops
    from mspc.mindspore_api.common.tensor import Tensor

    def clipped(clip: Any) -> Callable[[], Array]:
        return lambda: _trained(lambda loss, optimizer: _with_clip(loss, optimizer, clip))

    class ByGlobalNorm(nn.Cell):
        def construct(self, grads: Any) -> Any:
            return ops.clip_by_global_norm(grads, 0.5)

    class ByNorm(nn.Cell):
        def __init__(self, most: float, power: float) -> None:
            super().__init__()
            self.most, self.power = most, power

        def construct(self, grads: Any) -> Any:
            return ops.clip_by_norm(grads, self.most, self.power)

    class ByCell(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.clip, self.most = nn.ClipByNorm(), Tensor(np.float32(0.3))

        def construct(self, grads: Any) -> Any:
            return tuple([self.clip(grad, self.most) for grad in grads])

    class ByValue(nn.Cell):
        def construct(self, grads: Any) -> Any:
            return tuple([ops.clip_by_value(grad, -0.05, 0.1) for grad in grads])

    return [
        _case("ops.clip_by_global_norm", clipped(ByGlobalNorm()),
             lambda torch: _judged(torch, lambda grads: _by_norm(torch, grads, 0.5)), "torch.nn.utils.clip_grad_norm_"),
        _case("ops.clip_by_norm", clipped(ByNorm(0.5, 2.0)),
             lambda torch: _judged(torch, lambda grads: _by_norm(torch, grads, 0.5)), "torch.nn.utils.clip_grad_norm_"),
        _case("ops.clip_by_norm of power 1", clipped(ByNorm(0.5, 1.0)),
             lambda torch: _judged(torch, lambda grads: _by_norm(torch, grads, 0.5, 1.0)),
             "torch.nn.utils.clip_grad_norm_"),
        _case("ops.clip_by_norm of the greatest", clipped(ByNorm(0.2, float("inf"))),
             lambda torch: _judged(torch, lambda grads: _by_norm(torch, grads, 0.2, float("inf"))),
             "torch.nn.utils.clip_grad_norm_"),
        _case("nn.ClipByNorm", clipped(ByCell()),
             lambda torch: _judged(torch, lambda grads: [_by_norm(torch, [g], 0.3)[0] for g in grads]),
             "torch.nn.utils.clip_grad_norm_ of each tensor"),
        _case("ops.clip_by_value", clipped(ByValue()),
             lambda torch: _judged(torch, lambda grads: [g.clamp(-0.05, 0.1) for g in grads]), "torch.clamp"),
    ]  # fmt: skip


def _accumulations(nn: Any) -> list[Case]:
    def parts(count: int) -> Callable[[Any], Array]:
        def grads(torch: Any) -> Array:
            return _judged(torch, None, lambda w, x, y: sum(
                _loss(torch, w, a, b) for a, b in zip(x.chunk(count), y.chunk(count), strict=True)))  # fmt: skip

        return grads

    return [
        _case(f"nn.{name}", lambda kind=kind: _trained(
             lambda loss, optimizer: nn.TrainOneStepCell(kind(loss, 4), optimizer)), parts(4),
             "the sum of the micro-batches' losses, by PyTorch")
        for name, kind in (("GradAccumulationCell", nn.GradAccumulationCell), ("PipelineCell", nn.PipelineCell),
                           ("MicroBatchInterleaved", nn.MicroBatchInterleaved))
    ]  # fmt: skip


def _network() -> Any:
    """The loss of a network of two layers."""
    from mspc.mindspore_api import nn, ops
    from mspc.mindspore_api.common.parameter import Parameter
    from mspc.mindspore_api.common.tensor import Tensor

    class Loss(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.w1, self.w2 = Parameter(Tensor(W1.copy()), "w1"), Parameter(Tensor(W2.copy()), "w2")

        def construct(self, x: Any, y: Any) -> Any:
            wrong = ops.matmul(ops.tanh(ops.matmul(x, self.w1)), self.w2) - y
            return ops.reduce_mean(ops.square(wrong))

    return Loss()


def _with_clip(loss: Any, optimizer: Any, clip: Any) -> Any:
    from mspc.mindspore_api import nn, ops

    class Clipped(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.loss, self.optimizer, self.clip = loss, optimizer, clip
            self.grad = ops.value_and_grad(loss, None, optimizer.parameters)

        def construct(self, x: Any, y: Any) -> Any:
            value, grads = self.grad(x, y)
            return ops.depend(value, self.optimizer(self.clip(grads)))

    return Clipped()


def _trained(make: Callable[[Any, Any], Any], data: Any = None) -> Array:
    """[steps, numbers]: the weights after every step of mspc."""
    from mspc.mindspore_api import nn
    from mspc.mindspore_api.common.tensor import Tensor

    loss = _network()
    step = make(loss, nn.Momentum(loss.trainable_params(), 0.1, 0.9))
    found: list[Array] = []
    for x, y in data or DATA:
        step(Tensor(x), Tensor(y))
        found.append(flat([loss.w1.asnumpy(), loss.w2.asnumpy()]))
    return np.stack(found)


def _loss(torch: Any, weights: list[Any], x: Any, y: Any) -> Any:
    return (((x @ weights[0]).tanh() @ weights[1] - y) ** 2).mean()


def _gradients(torch: Any, values: list[Any], x: Array, y: Array, loss: Any = None) -> list[Any]:
    held = [v.detach().clone().requires_grad_() for v in values]
    x, y = (torch.tensor(np.asarray(a, np.float64)) for a in (x, y))
    total = _loss(torch, held, x, y) if loss is None else loss(held, x, y)
    return list(torch.autograd.grad(total, held))


def _judged(torch: Any, change: Any, loss: Any = None) -> Array:
    """The same by PyTorch's SGD with momentum. change: of gradients before the update."""
    weights = [torch.nn.Parameter(torch.tensor(w.astype(np.float64))) for w in (W1, W2)]
    optimizer = torch.optim.SGD(weights, 0.1, 0.9)
    found: list[Array] = []
    for x, y in DATA:
        grads = _gradients(torch, weights, x, y, loss)
        for weight, grad in zip(weights, grads if change is None else change(grads), strict=True):
            weight.grad = grad
        optimizer.step()
        found.append(flat([w.detach().numpy() for w in weights]))
    return np.stack(found)


def _by_norm(torch: Any, grads: list[Any], most: float, power: float = 2.0) -> list[Any]:
    held = [torch.nn.Parameter(torch.zeros_like(g)) for g in grads]
    for parameter, grad in zip(held, grads, strict=True):
        parameter.grad = grad.clone()
    torch.nn.utils.clip_grad_norm_(held, most, power)
    return [parameter.grad for parameter in held]


def _overflowing() -> list[tuple[Array, Array]]:
    return [(x, y * np.float32(np.inf)) if step in OVERFLOWS else (x, y) for step, (x, y) in enumerate(DATA)]


def _scaled(make: Callable[[Any, Any], Any]) -> Array:
    """[steps, numbers and the scale]: weights and loss scale after every step, some of which overflow."""
    made: list[Any] = []

    def step(loss: Any, optimizer: Any) -> Any:
        made.append(make(loss, optimizer))

        def run(x: Any, y: Any) -> None:
            made.append(float(made[0](x, y)[2].asnumpy()))

        return run

    values = _trained(step, _overflowing())
    return values + 1e-3 * np.array(made[1:])[:, None]


def _by_scale(torch: Any, rule: Callable[[float, int, bool], tuple[float, int]], scale: float = 32.0) -> Array:
    """The same: a step that overflows changes no weight and no state. rule: the next scale and count of quiet steps."""
    weights = [torch.nn.Parameter(torch.tensor(w.astype(np.float64))) for w in (W1, W2)]
    optimizer = torch.optim.SGD(weights, 0.1, 0.9)
    quiet, found = 0, list[Array]()
    for x, y in _overflowing():
        grads = _gradients(torch, weights, x, y)
        overflow = not all(bool(torch.isfinite(g).all()) for g in grads)
        if not overflow:
            for weight, grad in zip(weights, grads, strict=True):
                weight.grad = grad
            optimizer.step()
        scale, quiet = rule(scale, quiet, overflow)
        found.append(flat([w.detach().numpy() for w in weights]) + 1e-3 * scale)
    return np.stack(found)


def _grows_after_change(scale: float, quiet: int, overflow: bool) -> tuple[float, int]:
    if overflow:
        return max(scale / 2, 1.0), 0
    return (scale * 2, 0) if quiet + 1 >= 2 else (scale, quiet + 1)


PARTLY_FINITE = [
    [np.array([1.0, value if at == place else 2.0], np.float32) for at in range(3)]
    for value in (np.inf, -np.inf, np.nan) for place in range(4)
]  # fmt: skip
"""Gradients of which one is not finite, each in turn, or none."""


def _all_finite() -> Array:
    from mspc.mindspore_api.amp import all_finite
    from mspc.mindspore_api.common.tensor import Tensor

    return np.array([float(all_finite(tuple(map(Tensor, grads))).asnumpy()) for grads in PARTLY_FINITE])


FLAGS = (True, True, True, False, False, True, True, True, True)
"""Whether gradients are finite, step by step."""


def _scaler() -> Array:
    from mspc.mindspore_api.amp import DynamicLossScaler
    from mspc.mindspore_api.common.tensor import Tensor

    scaler, found = DynamicLossScaler(8.0, 2, 2), list[float]()
    for finite in FLAGS:
        scaler.adjust(Tensor(np.array(finite)))
        scale = float(scaler.scale_value.asnumpy())
        both = scaler.unscale(scaler.scale((Tensor(np.array([3.0], np.float32)),)))[0].asnumpy()[0]
        found += [scale, float(scaler.scale((Tensor(np.array([3.0], np.float32)),))[0].asnumpy()[0]), float(both)]
    return np.array(found)


def _manager() -> Array:
    from mspc.mindspore_api.amp import DynamicLossScaleManager

    manager, found = DynamicLossScaleManager(8.0, 2, 2), list[float]()
    for finite in FLAGS:
        manager.update_loss_scale(not finite)
        found += [manager.get_loss_scale(), 3.0 * manager.get_loss_scale(), 3.0]
    return np.array(found)


def _least_scales() -> Array:
    """Both kinds of scales through five overflows."""
    from mspc.mindspore_api.amp import DynamicLossScaleManager, DynamicLossScaler
    from mspc.mindspore_api.common.tensor import Tensor

    scaler, manager, found = DynamicLossScaler(8.0, 2, 2), DynamicLossScaleManager(8.0, 2, 2), list[list[float]]()
    for _ in range(5):
        scaler.adjust(Tensor(np.array(False)))
        manager.update_loss_scale(True)
        found.append([float(scaler.scale_value.asnumpy()), float(manager.get_loss_scale())])
    return np.array(found).T


def _grad_scaler(torch: Any) -> Array:
    """By PyTorch's own update of scales, which leaves out a least scale of 1; these stay above it."""
    scale, growth = torch.full((1,), 8.0), torch.zeros(1, dtype=torch.int32)
    found: list[float] = []
    for finite in FLAGS:
        torch._amp_update_scale_(scale, growth, torch.full((1,), 0.0 if finite else 1.0), 2.0, 0.5, 2)
        found += [float(scale), 3.0 * float(scale), 3.0]
    return np.array(found)


TOLERANCE = 2e-5
"""Tolerance of Float32 over some steps, relative to the largest number."""


def cases() -> list[Case]:
    """All of them."""
    return [*optimizers(), *formulas(), *rates(), *complete_steps()]


def judged(case: Case, torch: Any) -> ComparedValue:
    """The row of one case; one that fails has no numbers at all."""
    try:
        own: Array | None = np.asarray(case.mine(), np.float64).astype(np.float32)
    except MspcError:  # its row says why: another shape than the judge's
        own = None
    before = None if case.before is None else np.asarray(case.before, np.float32)
    wanted = np.asarray(case.theirs(torch), np.float64).astype(np.float32)
    return compare("step", case.name, wanted, own, TOLERANCE, before=before)
