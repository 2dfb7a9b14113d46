"""Vector-Jacobian and Jacobian-vector products, Jacobians, and `vmap`. They are compiled like functions of a script.

A Jacobian-vector product is the derivative, by the sensitivities, of the product of gradient and direction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mspc.mindspore_api import ops
from mspc.mindspore_api.common.derivative_arguments import axes_of, batch_size, ensemble, lacking, no_weights


def vjp(fn: Callable[..., Any], *inputs: Any, weights: Any = None, has_aux: bool = False) -> Any:
    """Return (fn(*inputs), a function that maps sensitivities of the results to gradients, one for each input). With
    has_aux the results after the first are returned in addition, without sensitivities.

    weights: only None; `value_and_grad` computes gradients of parameters.
    """
    no_weights("vjp", weights)
    found = fn(*inputs)

    def by_weights(*sens: Any) -> Any:
        return _gradients(fn, inputs, sens if len(sens) > 1 else sens[0], has_aux)

    return (found[0], by_weights, *found[1:]) if has_aux else (found, by_weights)


def _first(fn: Any) -> Any:
    def chosen(*inputs: Any) -> Any:
        return fn(*inputs)[0]

    return chosen


def _gradients(fn: Any, inputs: Any, sens: Any, has_aux: bool) -> Any:
    gradient = ops.GradOperation(get_all=True, sens_param=True)
    found = gradient(_first(fn) if has_aux else fn)(*inputs, sens)
    return found if len(inputs) > 1 else found[0]


def jvp(fn: Callable[..., Any], inputs: Any, v: Any, has_aux: bool = False) -> Any:
    """Return (fn(*inputs), its derivative along v, one direction for each input; a tuple if fn returns several). With
    has_aux the results after the first are returned in addition."""
    given = inputs if isinstance(inputs, tuple | list) else (inputs,)
    along = v if isinstance(v, tuple | list) else (v,)
    found = fn(*given)
    out = found[0] if has_aux else found
    several = isinstance(out, tuple | list)

    def weighted(*sens: Any) -> Any:
        weights = sens if several else sens[0]
        gradients = ops.GradOperation(get_all=True, sens_param=True)(_first(fn) if has_aux else fn)(*given, weights)
        return ops.addn([ops.ReduceSum()(gradients[i] * along[i]) for i in range(len(along))])

    zeros = [ops.zeros_like(x) for x in (out if several else (out,))]
    by_result = ops.GradOperation(get_all=True)(weighted)(*zeros)
    derivative = by_result if several else by_result[0]
    return (out, derivative, *found[1:]) if has_aux else (out, derivative)


def linearize(fn: Callable[..., Any], inputs: Any) -> Any:
    """Return (fn(*inputs), a function that maps a direction for each input to the derivative along them)."""
    given = inputs if isinstance(inputs, tuple | list) else (inputs,)

    def along(*v: Any) -> Any:
        _, found = jvp(fn, given, v)
        return found

    return fn(*given), along


def jacrev(fn: Callable[..., Any], grad_position: Any = 0, has_aux: bool = False) -> Any:
    """Return the function that computes the derivatives of every element of fn's result by every element of the inputs
    at grad_position. Its shape is that of the result followed by that of the input; a tuple for a tuple of positions.
    With has_aux the results after the first are returned in addition. One gradient is computed for each element of the
    result."""
    axes_of("jacrev", grad_position)

    def jacobian(*inputs: Any) -> Any:
        found = fn(*inputs)
        out = found[0] if has_aux else found
        rows = ops.Reshape()(ops.eye(out.size, None, out.dtype), (out.size, *out.shape))
        gradients = [_gradients(fn, inputs, rows[i], has_aux) for i in range(out.size)]
        made = [_stacked(gradients, inputs, place, out.shape) for place in axes_of("jacrev", grad_position)]
        result = tuple(made) if isinstance(grad_position, tuple | list) else made[0]
        return (result, *found[1:]) if has_aux else result

    return jacobian


def _stacked(gradients: Any, inputs: Any, place: int, shape: Any) -> Any:
    parts = [row[place] if len(inputs) > 1 else row for row in gradients]
    return ops.Reshape()(ops.stack(parts), (*shape, *inputs[place].shape))


def jacfwd(fn: Callable[..., Any], grad_position: Any = 0, has_aux: bool = False) -> Any:
    """Return the result of `jacrev`."""
    return jacrev(fn, grad_position, has_aux)


def vmap(fn: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0) -> Any:
    """Return the batched function: fn of every slice along in_axes, which is an integer for all arguments, or an
    integer or None for each; a tuple of these for an argument that is a tuple. The results are stacked along out_axes.
    fn is computed for one slice after another; for a CellList, each cell gets the slice of its index."""
    members = ensemble(fn)

    def mapped(*args: Any) -> Any:
        axes = axes_of("vmap", in_axes, len(args), nested=True)
        count = batch_size("vmap", [_shape(x) for x in args], axes, len(members))
        rows = [
            (members[i] if members else fn)(*[_slice(args[a], axes[a], i) for a in range(len(args))])
            for i in range(count)
        ]
        if not isinstance(rows[0], tuple | list):
            return _along(rows, axes_of("vmap", out_axes, 1)[0])
        places = axes_of("vmap", out_axes, len(rows[0]))
        return tuple([_along([row[k] for row in rows], places[k]) for k in range(len(rows[0]))])

    lacking("vmap", fn)
    return mapped


def _shape(x: Any) -> Any:
    if isinstance(x, tuple | list):
        return [_shape(each) for each in x]
    return x.shape if hasattr(x, "shape") else None


def _slice(x: Any, axis: Any, place: int) -> Any:
    if isinstance(x, tuple | list):
        inner = axis if isinstance(axis, tuple | list) else (axis,) * len(x)
        return tuple([_slice(x[k], inner[k], place) for k in range(len(x))])
    return x if axis is None else ops.Squeeze(axis)(ops.narrow(x, axis, place, 1))


def _along(rows: Any, axis: Any) -> Any:
    return rows[0] if axis is None else ops.stack(rows, axis)
