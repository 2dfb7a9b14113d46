"""Training recipes of `--optimizer`: an optimizer, a schedule of its learning rate, clipping, and parameters without
weight decay."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Mapping, Sequence, Set
from fnmatch import fnmatchcase
from typing import Any

from mspc.ir.diagnostics import MspcError, did_you_mean
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import BFLOAT16, FLOAT32
from mspc.mindspore_api import ops
from mspc.mindspore_api.common.parameter import Parameter, ParameterTuple
from mspc.mindspore_api.mint import optim
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.cell_arguments import number
from mspc.mindspore_api.nn.learning_rate_schedule import LearningRateSchedule
from mspc.mindspore_api.nn.loss_scale import DynamicLossScaleUpdateCell, TrainOneStepWithLossScaleCell

SCALE, STEPS_OF_SCALE = 65536.0, 2000
"""The loss scale of the first step, and the steps without overflow after which it is doubled, as of `GradScaler`."""
SCHEDULES = ("constant", "linear", "cosine", "wsd")
VECTORS = "vectors"
"""The value of `no_decay` that means all parameters with fewer than two dimensions: biases and norms."""


class ScheduledRate(LearningRateSchedule):
    """lr * warm-up * decay, of the number of steps done before this one.

    The warm-up is step / warmup. The decay falls from 1 to min_lr / lr: `linear` and `cosine` from the end of the
    warm-up to `steps`, as Transformers' schedules of these names; `wsd` (warm-up, stable, decay) evenly over the last
    `decay` steps, as torchtitan's; `constant` never.
    """

    def __init__(self, kind: str, lr: float, steps: int, warmup: int, decay: int, min_lr: float) -> None:
        super().__init__()
        self.kind, self.lr, self.min_lr, self.warmup = kind, lr, min_lr, warmup
        self.start = steps - decay if kind == "wsd" else warmup
        self.length = max(steps - self.start, 1)

    def construct(self, global_step: Any) -> Any:
        step = ops.cast(global_step, FLOAT32)
        rate = ops.full_like(step, self.lr)
        if self.kind != "constant":
            share = ops.clamp((step - self.start) / self.length, 0.0, 1.0)
            left = 0.5 + 0.5 * ops.cos(share * math.pi) if self.kind == "cosine" else 1.0 - share
            rate = self.min_lr + (self.lr - self.min_lr) * left
        return rate * ops.minimum(step / self.warmup, 1.0) if self.warmup else rate


class Adafactor(optim.Optimizer):
    """Shazeer and Stern 2018, with `torch.optim.Adafactor`'s arguments and formula.

    The states are `row_var.NAME` and `col_var.NAME`, means of squared gradients over the last and the last but one
    dimension, or `variance.NAME` for vectors.
    """

    def __init__(
        self, params: Any, lr: Any = 1e-2, beta2_decay: float = -0.8, eps: Any = (None, 1e-3), d: float = 1.0,
        weight_decay: float = 0.0, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        defaults = {"lr": lr, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults)
        self.beta2_decay, self.d = beta2_decay, d
        self.eps = (1.1920928955078125e-07 if eps[0] is None else eps[0], eps[1])
        self.rows = self._means("row_var", lambda shape: (*shape[:-1], 1))
        self.columns = self._means("col_var", lambda shape: (*shape[:-2], 1, shape[-1]))

    def _means(self, prefix: str, shape_of: Callable[[Any], Any]) -> ParameterTuple:
        found = []
        for each in self.parameters:
            shape = shape_of(each.shape) if len(each.shape) > 1 else each.shape
            name = prefix if len(each.shape) > 1 or prefix != "row_var" else "variance"
            found.append(Parameter(ops.zeros(shape, each.dtype), f"{name}.{each.name}", requires_grad=False))
        return ParameterTuple(found)

    def construct(self, gradients: Any) -> Any:
        gradients = self.signed(gradients)
        rates = self.rates()
        self.count_step()
        step = ops.reshape(ops.cast(self.global_step, FLOAT32), ())
        return tuple([
            self.moved(*each, step)
            for each in zip(
                self.parameters, self.rows, self.columns, gradients, rates, self.weight_decays, strict=True
            )
        ])  # fmt: skip

    def moved(self, parameter: Any, row: Any, column: Any, gradient: Any, rate: Any, decay: Any, step: Any) -> Any:
        """Update one parameter and its states."""
        weight = ops.pow(step, self.beta2_decay)
        size = math.sqrt(math.prod(parameter.shape))
        alpha = ops.maximum(_norm(parameter) / size, self.eps[1]) * ops.minimum(rate, ops.rsqrt(step))
        squares = ops.square(gradient)
        if len(parameter.shape) > 1:
            row = self.assign(row, ops.lerp(row, ops.reduce_mean(squares, -1, True), weight))
            column = self.assign(column, ops.lerp(column, ops.reduce_mean(squares, -2, True), weight))
            estimate = row * column / ops.maximum(ops.reduce_mean(row, -2, True), self.eps[0])
        else:
            estimate = self.assign(row, ops.lerp(row, squares, weight))
        update = ops.rsqrt(ops.maximum(estimate, self.eps[0] ** 2)) * gradient
        alpha = alpha / ops.maximum(_norm(update) / (size * self.d), 1.0)
        return self.assign(parameter, parameter * (1.0 - rate * decay) - update * alpha)


class Muon(optim.Optimizer):
    """Jordan et al. 2024, with `torch.optim.Muon`'s arguments and formula; for matrices alone.

    The states are `momentum_buffer.NAME`.
    """

    def __init__(
        self, params: Any, lr: Any = 1e-3, weight_decay: float = 0.1, momentum: float = 0.95, nesterov: bool = True,
        ns_coefficients: Any = (3.4445, -4.775, 2.0315), eps: float = 1e-7, ns_steps: int = 5, adjust_lr_fn: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            notes = did_you_mean(str(adjust_lr_fn), ["original", "match_rms_adamw"])
            raise MspcError(f"Muon has no adjust_lr_fn {adjust_lr_fn!r:.60}", notes=notes)
        self.momentum, self.nesterov, self.eps = momentum, nesterov, eps
        self.coefficients, self.ns_steps, self.matched = ns_coefficients, ns_steps, adjust_lr_fn == "match_rms_adamw"
        self.buffers = self.states("momentum_buffer")

    def construct(self, gradients: Any) -> Any:
        rates = self.rates()
        self.count_step()
        return tuple([
            self.moved(*each)
            for each in zip(self.parameters, self.buffers, gradients, rates, self.weight_decays, strict=True)
        ])

    def moved(self, parameter: Any, buffer: Any, gradient: Any, rate: Any, decay: Any) -> Any:
        """Update one matrix and its momentum."""
        rows, columns = parameter.shape
        buffer = self.assign(buffer, ops.lerp(buffer, gradient, 1.0 - self.momentum))
        update = ops.lerp(gradient, buffer, self.momentum) if self.nesterov else buffer
        update = ops.cast(self.orthogonal(update), parameter.dtype)
        factor = 0.2 * math.sqrt(max(rows, columns)) if self.matched else math.sqrt(max(1.0, rows / columns))
        return self.assign(parameter, parameter * (1.0 - rate * decay) - update * (rate * factor))

    def orthogonal(self, matrix: Any) -> Any:
        """Return the matrix with singular values near 1, by Newton-Schulz iterations in BFloat16."""
        turned = matrix.shape[0] > matrix.shape[1]
        x = ops.cast(matrix, BFLOAT16)
        x = ops.transpose(x, (1, 0)) if turned else x
        x = x / ops.cast(ops.maximum(_norm(x), self.eps), BFLOAT16)
        a, b, c = self.coefficients
        for _ in range(self.ns_steps):
            gram = ops.matmul(x, ops.transpose(x, (1, 0)))
            gram = _weighted(gram, b, ops.matmul(gram, gram), c)
            x = _weighted(x, a, ops.matmul(gram, x), 1.0)
        return ops.transpose(x, (1, 0)) if turned else x


def _norm(x: Any) -> Any:
    """Return the square root of the sum of squares, in Float32."""
    return ops.sqrt(ops.reduce_sum(ops.square(ops.cast(x, FLOAT32))))


def _weighted(x: Any, a: float, y: Any, b: float) -> Any:
    """Return a * x + b * y in the type of x, rounded once."""
    return ops.cast(ops.cast(x, FLOAT32) * a + ops.cast(y, FLOAT32) * b, x.dtype)


OPTIMIZERS: Mapping[str, Callable[..., Any]] = {
    "adamw": optim.AdamW, "adam": optim.Adam, "sgd": optim.SGD, "adafactor": Adafactor, "muon": Muon,
}  # fmt: skip
"""Optimizers with PyTorch's arguments, defaults and formulas."""


class JointOptimizer(Cell):
    """Optimizers of different parameters, as one, and gradients clipped to a global norm first.

    max_norm: 0 for no clipping.
    """

    def __init__(self, optimizers: Sequence[Cell], max_norm: float) -> None:
        super().__init__(auto_prefix=False)
        self.first, self.second = optimizers[0], optimizers[1] if len(optimizers) > 1 else None
        trained = [each for optimizer in optimizers for each in optimizer.parameters]
        self.parameters = ParameterTuple(trained)
        self.count, self.max_norm = len(optimizers[0].parameters), max_norm
        weights = {id(each) for each in trained}
        for optimizer in optimizers[1:]:  # the names of counters and rates must differ
            for state in optimizer.get_parameters():
                if id(state) not in weights:
                    state.name = f"second.{state.name}"

    def construct(self, gradients: Any) -> Any:
        if self.max_norm:
            gradients = ops.clip_by_norm(gradients, self.max_norm)
        if self.second is None:
            return self.first(gradients)
        return self.first(gradients[: self.count]) + self.second(gradients[self.count :])


class ScaledStep(Cell):
    """A step on a loss that is scaled, so that no gradient in Float16 is too small; one with gradients that are too
    large updates nothing. It returns the loss as it is."""

    def __init__(self, network: Cell, optimizer: Cell) -> None:
        super().__init__(auto_prefix=False)
        scale = DynamicLossScaleUpdateCell(SCALE, 2, STEPS_OF_SCALE)
        self.step = TrainOneStepWithLossScaleCell(network, optimizer, scale)

    def construct(self, *inputs: Any) -> Any:
        return self.step(*inputs)[0]


@dataclass(frozen=True)
class Recipe:
    """How parameters are updated.

    settings: arguments of the optimizer. max_norm: global norm to which gradients are clipped, 0 for none. schedule:
    keyword arguments of ScheduledRate except lr, or None. no_decay: VECTORS or patterns of names. adamw: patterns of
    names of matrices that AdamW updates beside Muon.
    """

    name: str
    settings: Mapping[str, Any]
    max_norm: float = 0.0
    schedule: Mapping[str, Any] | None = None
    no_decay: tuple[str, ...] = ()
    adamw: tuple[str, ...] = ()

    def optimizer(self, parameters: Sequence[Any], differentiated: Set[int]) -> Cell:
        """Return the optimizer of parameters. differentiated: ids of those with a gradient of the loss; others are not
        decayed, as PyTorch leaves them unchanged. Raise MspcError if a pattern matches no parameter."""
        for pattern in (*self.no_decay, *self.adamw):
            if pattern != VECTORS and not any(fnmatchcase(each.name, pattern) for each in parameters):
                names = [each.name for each in parameters]
                shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
                notes = [*did_you_mean(pattern, names), f"parameters are {shown}"]
                raise MspcError(f"no parameter's name matches {pattern!r:.60}", notes=notes)
        decayed = {id(each) for each in parameters if id(each) in differentiated and not self._is_spared(each)}
        settings = dict(self.settings)
        if self.schedule is not None:
            settings["lr"] = ScheduledRate(lr=settings["lr"], **self.schedule)
        found = [
            kind(_groups(members, decayed), **given)
            for kind, members, given in self._parts(parameters, settings) if members
        ]  # fmt: skip
        return found[0] if len(found) == 1 and not self.max_norm else JointOptimizer(found, self.max_norm)

    def _is_spared(self, parameter: Any) -> bool:
        return any(
            len(parameter.shape) < 2 if each == VECTORS else fnmatchcase(parameter.name, each)
            for each in self.no_decay
        )  # fmt: skip

    def _parts(self, parameters: Sequence[Any], settings: dict[str, Any]) -> list[tuple[Any, list[Any], Any]]:
        """Return (optimizer, its parameters, its arguments) for each part of the parameters."""
        if self.name != "muon":
            return [(OPTIMIZERS[self.name], list(parameters), settings)]
        others = [
            each for each in parameters
            if len(each.shape) != 2 or any(fnmatchcase(each.name, pattern) for pattern in self.adamw)
        ]  # fmt: skip
        matrices = [each for each in parameters if all(each is not other for other in others)]
        shared = {"lr": settings.get("lr", 1e-3), "weight_decay": settings.get("weight_decay", 0.1)}
        return [(Muon, matrices, settings), (optim.AdamW, others, shared)]


def _groups(parameters: list[Any], decayed: Set[int]) -> list[Any]:
    """Return the groups of an optimizer."""
    apart = [each for each in parameters if id(each) not in decayed]
    if not apart:
        return parameters
    updated = [{"params": [each for each in parameters if id(each) in decayed]}] if len(apart) < len(parameters) else []
    return [*updated, {"params": apart, "weight_decay": 0.0}]


def recipe_of(text: str) -> Recipe:
    """Return the recipe of a text: `adamw:lr=3e-4,weight_decay=0.1,no_decay=vectors,max_norm=1,schedule=cosine,...`.

    Raise MspcError if there is no such optimizer, or it has no such setting, or a setting has no such value.
    """
    name, _, rest = text.partition(":")
    name = name.strip().lower()
    kind = OPTIMIZERS.get(name)
    if kind is None:
        notes = [*did_you_mean(name, [*OPTIMIZERS]), f"there are {', '.join(OPTIMIZERS)}"]
        raise MspcError(f"there is no optimizer {name!r:.60}", notes=notes)
    settings = _settings(text, rest)
    known = [each for each in inspect.signature(kind).parameters if each != "params"]
    own = ["max_norm", "no_decay", "schedule", "warmup", "steps", "min_lr", "decay", *["adamw"] * (name == "muon")]
    for setting in settings:
        if setting not in (*known, *own):
            notes = [*did_you_mean(setting, [*known, *own]), f"it has {', '.join([*known, *own])}"]
            raise MspcError(f"the optimizer {name} has no {setting!r:.60}", notes=notes)
    given = {key: value for key, value in settings.items() if key in known}
    max_norm = number(name, "max_norm", settings["max_norm"], above=0.0) if "max_norm" in settings else 0.0
    schedule = _schedule(name, settings)
    if schedule is not None:
        given.setdefault("lr", inspect.signature(kind).parameters["lr"].default)
    return Recipe(name, given, max_norm, schedule, _patterns(name, settings, "no_decay"),
                  _patterns(name, settings, "adamw"))  # fmt: skip


def _schedule(name: str, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of the schedule, or None if there is none."""
    kind = settings.get("schedule", "constant")
    if kind not in SCHEDULES:
        notes = [*did_you_mean(str(kind), SCHEDULES), f"there are {', '.join(SCHEDULES)}"]
        raise MspcError(f"there is no schedule {kind!r:.60}", notes=notes)
    used = {"constant": (), "wsd": ("steps", "min_lr", "decay")}.get(kind, ("steps", "min_lr"))
    for key in ("steps", "min_lr", "decay"):
        if key in settings and key not in used:
            raise MspcError(f"{key} of the optimizer {name} has no meaning for the schedule {kind}")
    needed = [key for key in used if key != "min_lr" and key not in settings]
    if needed:
        raise MspcError(f"the schedule {kind} needs {' and '.join(needed)}", notes=[f"write {needed[0]}=1000"])
    if kind == "constant" and "warmup" not in settings:
        return None
    counts = {key: settings.get(key, 0) for key in ("steps", "warmup", "decay")}
    for key, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise MspcError(f"{key} of the optimizer {name} is {value!r:.60}; it is a number of steps")
    if kind != "constant" and counts["warmup"] + counts["decay"] > counts["steps"]:
        parts = " + ".join(f"{key} {counts[key]}" for key in ("warmup", "decay") if key in settings)
        raise MspcError(f"{parts} of the optimizer {name} is more than its {counts['steps']} steps")
    return {"kind": kind, **counts, "min_lr": number(name, "min_lr", settings.get("min_lr", 0.0))}


def _patterns(name: str, settings: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = settings.get(key, ())
    found = (value,) if isinstance(value, str) else value
    if not isinstance(found, tuple | list) or not all(isinstance(each, str) for each in found):
        raise MspcError(f"{key} of the optimizer {name} is {value!r:.60}; it is a name's pattern, or several")
    return tuple(found)


def _is_finite(value: Any) -> bool:
    """Return whether a value, and all in a list of them, is finite, which 1e400 is not."""
    if isinstance(value, tuple | list):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _settings(text: str, rest: str) -> dict[str, Any]:
    """Return the values in `lr=1e-4,betas=(0.9, 0.95),schedule=cosine`: literals and words."""
    try:
        call = ast.parse(f"f({rest})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(word.arg is None for word in call.keywords):
            raise ValueError
        found = {
            str(word.arg): word.value.id if isinstance(word.value, ast.Name) else ast.literal_eval(word.value)
            for word in call.keywords
        }
        if len(found) < len(call.keywords) or not all(map(_is_finite, found.values())):
            raise ValueError
        return found
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise MspcError(
            f"cannot read {text!r:.100} as an optimizer", notes=["write one as adamw:lr=1e-4,weight_decay=0.1"]
        ) from None
