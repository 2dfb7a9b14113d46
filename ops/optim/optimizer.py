"""Update operators of optimizers, copies into parameters, and the check that gradients are finite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Value
from mspc.ir.types import BOOL, DType, TensorType, TupleType, Type, dtype_of
from mspc.ops import gpu
from mspc.ops.cpu.blocks import BLOCK
from mspc.ops.device import Array, Copy, Device, Launch, c_type
from mspc.ops.math.arithmetic import Neg
from mspc.ops.op import Gradients, NotDifferentiable, Op, require_float, require_same, sample
from mspc.ops.operator_arguments import sequence_of
from mspc.ops.tensor.reshape import sum_to_shape
from mspc.sharding.rules import broadcast_rule, factor_names

_UPDATE = NotDifferentiable("it changes a parameter")


class StatelessBody(NamedTuple):
    """An equivalent update without states: the places of the operands that it reads, and the lines of a fused operator
    of them; the last one is the new parameter."""

    operands: tuple[int, ...]
    lines: tuple[str, ...]


class Update(Op, abstract=True):
    """Operands are scalars or have the shape of the parameter, operand 0; results have it too.

    Class attributes: operands: names of the operands for messages. scalars: indices of the operands that are scalars.
        states: indices of operands that may have another floating-point type than the parameter, as states in Float32
        with parameters in Float16 have; the operator changes them. outputs: number of results, a tuple when more than
        one. cuda_update: C++ statements that change one element; operands and attributes go by their names, operands
        that `mutates` names are set, T is the computing type of the parameter.
    """

    has_side_effect = True
    traffic = "updates"
    operands: ClassVar[tuple[str, ...]] = ()
    scalars: ClassVar[tuple[int, ...]] = ()
    states: ClassVar[tuple[int, ...]] = ()
    outputs: ClassVar[int] = 1
    cuda_update: ClassVar[str] = ""

    @property
    def exact_numbers(self) -> tuple[int, ...]:
        """Indices of operands that are Float32 if a script passes numbers for them, even if other operands are halves,
        in which 0.999 may be 1."""
        return self.scalars

    def rule(self, *types: TensorType) -> str:
        if len(types) != len(self.operands):
            raise MspcError(f"{self.name} takes {len(self.operands)} tensors, not {len(types)}", code="E0301")
        shape = types[0].shape
        for index, operand in enumerate(types):
            scalar = index in self.scalars
            if operand.shape != (() if scalar else shape):
                raise MspcError(
                    f"{self.name}: input {index} ({self.operands[index]}) has shape {operand.shape}, "
                    + ("not that of a scalar" if scalar else f"the parameter has {shape}")
                )
        names = " ".join(factor_names(len(shape)))
        ins = ", ".join("" if index in self.scalars else names for index in range(len(types)))
        return f"{ins} -> {', '.join([names] * self.outputs)}"

    def check(self, *types: TensorType) -> None:
        require_same(self.name, *[t for i, t in enumerate(types) if i not in (*self.scalars, *self.states)])
        if self.scalars and not (types[0].dtype.is_float or types[0].dtype.is_complex):
            raise MspcError(
                f"{self.name}: input 0 ({self.operands[0]}) is {types[0].dtype}; only floating-point parameters are "
                "trained",
                notes=["give the optimizer no such parameter: make it with requires_grad=False"],
                kind=TypeError,
            )
        require_float(self.name, *[types[i] for i in self.states])

    def infer(self, *types: Any) -> Type:
        inferred = super().infer(*types)
        if self.states:
            return TupleType(tuple(TensorType(types[i].dtype, types[0].shape) for i in self.mutates))
        return inferred

    @property
    def copied(self) -> tuple[int, ...]:  # type: ignore[override]  # depends on `cuda_update`
        return (0,) if self.cuda_update and 0 in self.mutates else ()

    def statements(self, dtypes: Sequence[DType]) -> str:
        """Return `cuda_update` for operands of these element types, or ""."""
        return self.cuda_update

    def without_states(self, number: Callable[[int], float | None]) -> StatelessBody | None:
        """Return the same update without states, if scalar operands make states unnecessary; else None. number: returns
        the value of a scalar operand; None if it may change at the next step."""
        return None

    def launch(
        self, device: Device, out: Any, *inputs: Array, copies: Mapping[int, Copy] | None = None
    ) -> Launch | None:
        return gpu.update.launch_updates(device, self, (inputs,), (copies.get(0),) if copies else ())


def _samples(*roles: str, **attributes: Any) -> tuple[Any, ...]:
    """Return samples of two shapes; role "x" is a tensor of the parameter's shape, "s" a scalar."""
    return tuple(
        sample(*[shape if role == "x" else () for role in roles], low=0.1, high=0.9, gradient=False, **attributes)
        for shape in ((8, 16), (16,))
    )


class _Assignment(Update, abstract=True):
    operands = ("variable", "value")
    mutates = (0,)
    samples = _samples("x", "x")


class Assign(_Assignment):
    """variable = value."""

    cuda_update = "variable = value;"
    neutral: ClassVar[Mapping[int, float | None]] = {1: None}

    def bprop(self, b: Builder, variable: Value, value: Value, out: Value, dout: Value) -> Gradients:
        return None, dout

    def compute(self, xp: Any, variable: Any, value: Any) -> Any:
        variable[...] = value
        return variable


class AssignAdd(_Assignment):
    """variable += value."""

    cuda_update = "variable += value;"
    neutral: ClassVar[Mapping[int, float | None]] = {1: -0.0}

    def bprop(self, b: Builder, variable: Value, value: Value, out: Value, dout: Value) -> Gradients:
        return dout, dout

    def compute(self, xp: Any, variable: Any, value: Any) -> Any:
        return xp.add(variable, value, out=variable)


class AssignSub(_Assignment):
    """variable -= value."""

    takes_bool = False
    cuda_update = "variable -= value;"
    neutral: ClassVar[Mapping[int, float | None]] = {1: 0.0}

    def bprop(self, b: Builder, variable: Value, value: Value, out: Value, dout: Value) -> Gradients:
        return dout, b.emit(Neg(), dout)

    def compute(self, xp: Any, variable: Any, value: Any) -> Any:
        return xp.subtract(variable, value, out=variable)


class ApplyGradientDescent(Update):
    """var -= alpha * delta."""

    use_locking: bool = False
    operands = ("var", "alpha", "delta")
    scalars = (1,)
    mutates = (0,)
    cuda_update = "var -= alpha * delta;"
    neutral: ClassVar[Mapping[int, float | None]] = {1: 0.0, 2: -0.0}
    bprop = _UPDATE
    samples = _samples("x", "s", "x")

    def compute(self, xp: Any, var: Any, alpha: Any, delta: Any) -> Any:
        var -= alpha * delta
        return var


class ApplyMomentum(Update):
    """accumulation = accumulation * momentum + gradient; variable -= learning_rate * accumulation.

    With use_nesterov variable -= learning_rate * (gradient + momentum * accumulation). gradient_scale
    multiplies the gradient first; use_locking changes nothing here.
    """

    use_nesterov: bool = False
    use_locking: bool = False
    gradient_scale: float = 1.0
    operands = ("variable", "accumulation", "learning_rate", "gradient", "momentum")
    scalars = (2, 4)
    mutates = (0, 1)
    cuda_update = """
        const T scaled = gradient * gradient_scale;
        accumulation = accumulation * momentum + scaled;
        variable -= learning_rate * (use_nesterov ? accumulation * momentum + scaled : accumulation);
    """
    neutral: ClassVar[Mapping[int, float | None]] = {2: 0.0, 3: -0.0, 4: 1.0}
    bprop = _UPDATE
    samples = (
        *_samples("x", "x", "s", "x", "s"),
        *_samples("x", "x", "s", "x", "s", use_nesterov=True, gradient_scale=0.5),
    )

    def compute(self, xp: Any, variable: Any, accumulation: Any, rate: Any, gradient: Any, momentum: Any) -> Any:
        if self.gradient_scale != 1.0:
            gradient = gradient * self.gradient_scale
        accumulation *= momentum
        accumulation += gradient
        step = (accumulation * momentum + gradient if self.use_nesterov else accumulation) * rate
        variable -= step
        return variable


class SGD(Update):
    """Stochastic gradient descent with momentum, dampening, weight decay and Nesterov's step.

    stat is 1 before the first step of an element, which sets accum = gradient, and 0 afterwards. A momentum of 0 does
    not change accum.
    """

    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    operands = ("parameters", "gradient", "learning_rate", "accum", "momentum", "stat")
    scalars = (2, 4)
    mutates = (0, 3, 5)
    cuda_update = """
        const T decayed = gradient + parameters * weight_decay;
        const T fresh = stat > T(0) ? decayed : accum * momentum + decayed * (T(1) - dampening);
        const bool active = momentum > T(0);
        if (active) { accum = fresh; stat = T(0); }
        parameters -= learning_rate * (active ? nesterov ? decayed + fresh * momentum : fresh : decayed);
    """
    neutral: ClassVar[Mapping[int, float | None]] = {1: 0.0, 2: 0.0, 4: 0.0}
    bprop = _UPDATE
    samples = (
        *_samples("x", "x", "s", "x", "s", "x"),
        *_samples("x", "x", "s", "x", "s", "x", dampening=0.1, weight_decay=0.01),
        *_samples("x", "x", "s", "x", "s", "x", nesterov=True),
    )

    def without_states(self, number: Callable[[int], float | None]) -> StatelessBody | None:
        momentum = None if self.weight_decay else number(4)
        return None if momentum is None or momentum > 0 else StatelessBody((0, 1, 2), ("Mul(x1, x2)", "Sub(x0, t0)"))

    def compute(self, xp: Any, *inputs: Any) -> Any:
        parameter, gradient, rate, accum, momentum, stat = inputs
        if self.weight_decay:
            gradient = gradient + parameter * self.weight_decay
        if xp is np and not momentum > 0:
            parameter -= rate * gradient
            return parameter
        accumulated = accum * momentum + gradient * (1 - self.dampening)
        fresh = xp.where(stat > 0, gradient, accumulated)
        active = momentum > 0
        accum[...] = xp.where(active, fresh, accum)
        stat[...] = xp.where(active, 0, stat)
        step = gradient + fresh * momentum if self.nesterov else fresh
        parameter -= rate * xp.where(active, step, gradient)
        return parameter


class Adam(Update):
    """Adam; Kingma and Ba, arXiv 1412.6980, algorithm 1 with the corrections folded into the rate.

    m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; var -= l m / (sqrt(v) + epsilon) with
    l = lr sqrt(1 - beta2_power) / (1 - beta1_power). use_nesterov takes beta1 m + (1 - beta1) g in place of
    m.
    """

    use_locking: bool = False
    use_nesterov: bool = False
    operands = ("var", "m", "v", "beta1_power", "beta2_power", "lr", "beta1", "beta2", "epsilon", "gradient")
    scalars = (3, 4, 5, 6, 7, 8)
    outputs = 3
    mutates = (0, 1, 2)
    cuda_update = """
        m = m * beta1 + gradient * (T(1) - beta1);
        v = v * beta2 + gradient * gradient * (T(1) - beta2);
        const T rate = lr * sqrt(T(1) - beta2_power) / (T(1) - beta1_power);
        var -= rate * (use_nesterov ? m * beta1 + gradient * (T(1) - beta1) : m) / (sqrt(v) + epsilon);
    """
    neutral: ClassVar[Mapping[int, float | None]] = {3: 0.0, 4: 0.0, 5: 0.0, 6: 1.0, 7: 1.0, 9: -0.0}
    bprop = _UPDATE
    samples = (
        *_samples("x", "x", "x", "s", "s", "s", "s", "s", "s", "x"),
        *_samples("x", "x", "x", "s", "s", "s", "s", "s", "s", "x", use_nesterov=True),
    )

    def compute(self, xp: Any, *inputs: Any) -> Any:
        var, m, v, power1, power2, lr, beta1, beta2, epsilon, gradient = inputs
        rate = lr * xp.sqrt(1 - power2) / (1 - power1)
        _moments(m, v, beta1, beta2, gradient)
        first = m * beta1 + gradient * (1 - beta1) if self.use_nesterov else m
        var -= rate * first / (xp.sqrt(v) + epsilon)
        return var, m, v


class AdamWeightDecay(Update):
    """Adam without bias correction and with decoupled weight decay; Loshchilov and Hutter, arXiv 1711.05101.

    var -= lr (m / (sqrt(v) + epsilon) + decay var), m and v as in Adam.
    """

    use_locking: bool = False
    operands = ("var", "m", "v", "lr", "beta1", "beta2", "epsilon", "decay", "gradient")
    scalars = (3, 4, 5, 6, 7)
    states = (1, 2)
    outputs = 3
    mutates = (0, 1, 2)
    cuda_update = """
        m = m * beta1 + gradient * (T(1) - beta1);
        v = v * beta2 + gradient * gradient * (T(1) - beta2);
        var -= lr * (m / (sqrt(v) + epsilon) + decay * var);
    """
    neutral: ClassVar[Mapping[int, float | None]] = {3: 0.0, 4: 1.0, 5: 1.0, 8: -0.0}
    bprop = _UPDATE
    samples = _samples("x", "x", "x", "s", "s", "s", "s", "s", "x")

    def compute(self, xp: Any, *inputs: Any) -> Any:
        var, m, v, lr, beta1, beta2, epsilon, decay, gradient = inputs
        _moments(m, v, beta1, beta2, gradient)
        var -= lr * (m / (xp.sqrt(v) + epsilon) + decay * var)
        return var, m, v


def _moments(m: Any, v: Any, beta1: Any, beta2: Any, gradient: Any) -> None:
    """Update the running means of the gradient and of its square, in place."""
    m *= beta1
    m += gradient * (1 - beta1)
    v *= beta2
    v += gradient * gradient * (1 - beta2)

AT_ONCE = 64
"""Tensors that one CUDA kernel checks."""


class AllFinite(Op):
    """True if no element of any operand is infinite or NaN, a scalar. Called as `AllFinite()((a, b))`. Every rank
    checks its slices, with any sharding of the operands; one Bool per rank is then combined."""

    reduction = "all"
    operandwise = True
    float_only = True
    joins = "all"
    bprop = NotDifferentiable("its result is Bool")
    result_dtypes = (BOOL,)
    samples = (
        sample((8, 16), gradient=False),
        sample((8, 16), (), (4,), gradient=False),
    )

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        return self, sequence_of(self.name, args)

    def rule(self, *types: TensorType) -> str:
        if not types:
            raise MspcError(f"{self.name} needs at least one tensor")
        names = iter(factor_names(sum(t.rank for t in types)))
        return f"{', '.join(' '.join(next(names) for _ in t.shape) for t in types)} ->"

    def compute(self, xp: Any, *inputs: Any) -> Any:
        if xp is np:
            return np.asarray(all(map(_finite, inputs)))
        found = xp.isfinite(inputs[0]).all()
        for x in inputs[1:]:
            found = xp.logical_and(found, xp.isfinite(x).all())
        return found

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        parts = [inputs[start : start + AT_ONCE] for start in range(0, len(inputs), AT_ONCE)]
        clear = device.kernel('extern "C" __global__ void set_true(bool* out) { *out = true; }', "set_true")
        calls: list[tuple[Any, int, list[Any]]] = []
        for part in parts:
            kernel = device.kernel(_source([c_type(dtype_of(x.dtype)) for x in part]), "all_finite")
            blocks = min(-(-max(int(x.size) for x in part) // 256), device.multiprocessors * 8) or 1
            sizes = [np.int64(x.size) for x in part]
            calls.append((kernel, blocks, [*part, *sizes, out]))

        def launch() -> None:
            clear(1, 1, [out])
            for kernel, blocks, arguments in calls:
                kernel(blocks, 256, arguments)

        return launch


def _finite(x: Any) -> bool:
    """Return whether all are finite, block by block, so that the truth values of one block stay in the cache and the
    first wrong one ends the search."""
    flat = np.asarray(x).reshape(-1)
    return all(bool(np.isfinite(flat[start : start + BLOCK]).all()) for start in range(0, flat.size, BLOCK))


def _source(kinds: Sequence[str]) -> str:
    """Return a kernel over tensors of these C++ types; x - x is 0 only for finite numbers."""
    places = range(len(kinds))
    tensors = ", ".join(f"const {kind}* __restrict__ x{i}" for i, kind in enumerate(kinds))
    sizes = ", ".join(f"long long n{i}" for i in places)
    loops = "\n".join(
        f"    for (long long i = first; i < n{i}; i += step) {{ auto v = wide(x{i}[i]); bad |= !(v - v == 0); }}"
        for i in places
    )
    return f"""
extern "C" __global__ void all_finite({tensors}, {sizes}, bool* out) {{
    long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x, step = (long long)gridDim.x * blockDim.x;
    bool bad = false;
{loops}
    if (bad) *out = false;
}}
"""


class InplaceCopy(Op):
    """input = src, broadcast to its shape, for a parameter `input`; the result is its new value."""

    has_side_effect = True
    mutates = (0,)
    one_type = True
    samples = (
        sample((8, 16), (8, 16), gradient=False),
        sample((8, 16), (16,), gradient=False),
        sample((4, 8), (4, 1), gradient=False),
    )

    def rule(self, input: TensorType, src: TensorType) -> str:
        text = broadcast_rule((input.shape, src.shape))
        if len(src.shape) > len(input.shape) or any(
            n not in (1, m) for n, m in zip(reversed(src.shape), reversed(input.shape), strict=False)
        ):
            raise MspcError(f"{self.name}: src of shape {src.shape} does not fit input of shape {input.shape}")
        return text

    def bprop(self, b: Builder, input: Value, src: Value, out: Value, dout: Value) -> Gradients:
        return None, sum_to_shape(b, dout, src.shape)

    def compute(self, xp: Any, variable: Any, value: Any) -> Any:
        variable[...] = value
        return variable
