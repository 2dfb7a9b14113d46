"""Texts of StableHLO written by hand, and their results by mspc: tests of the reader need no JAX."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc import Tensor
from mspc.readers.stablehlo.network import StableHloNetwork
from mspc.readers.stablehlo.text_reader import read_text

NAMES = {
    "float32": "f32", "float64": "f64", "float16": "f16", "int8": "i8", "int32": "i32", "int64": "i64",
    "uint32": "ui32", "bool": "i1", "complex64": "complex<f32>",
}  # fmt: skip


def type_of(array: Any) -> str:
    """Return the type of an array in MLIR: `tensor<2x3xf32>`."""
    return f"tensor<{''.join(f'{n}x' for n in array.shape)}{NAMES[array.dtype.name]}>"


def module(arguments: Sequence[str], body: str, results: Sequence[tuple[str, str]], others: str = "") -> str:
    """Return a module. arguments: as `%x: tensor<f32>`. results: values and their types."""
    types = ", ".join(type for _, type in results)
    return (
        f"module @jit_step {{\n  func.func public @main({', '.join(arguments)}) -> ({types}) {{\n{body}\n"
        f"    return {', '.join(name for name, _ in results)} : {types}\n  }}\n{others}}}\n"
    )


def results_of(text: str, *arrays: Any) -> list[Any]:
    """Return the results of a module for arrays."""
    found = StableHloNetwork(read_text(text, "step.mlir"))(*map(Tensor, arrays))
    return [each.asnumpy() for each in (found if isinstance(found, tuple | list) else (found,))]


def computed(body: str, results: Sequence[tuple[str, str]], others: str = "", **arrays: Any) -> list[Any]:
    """Return the results of operations for named arrays: `x` is `%x`."""
    arguments = [f"%{name}: {type_of(array)}" for name, array in arrays.items()]
    return results_of(module(arguments, body, results, others), *arrays.values())


def numbers(*shape: int, seed: int = 0) -> Any:
    """Return normal numbers in Float32."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


STEP = """#loc1 = loc("params['up']")
#loc2 = loc("params['down']")
#loc3 = loc("x")
#loc5 = loc("step.py":7:11 to :20)
#loc6 = loc("loss"(#loc5))
#loc7 = loc("step.py":12:4)
#loc8 = loc(callsite(#loc6 at #loc7))
#loc9 = loc("jit(step)/mlp/dot_general"(#loc8))
module @jit_step attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["data"=2, "model"=2]>
  func.func public @main(%arg0: tensor<8x16xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>} loc("params['up']"), %arg1: tensor<16x8xf32> {tf.aliasing_output = 1 : i32, sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>} loc("params['down']"), %arg2: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>} loc("x")) -> (tensor<8x16xf32> {jax.result_info = "result[0]['up']"}, tensor<16x8xf32> {jax.result_info = "result[0]['down']"}, tensor<f32> {jax.result_info = "result[1]"}) {
    %0 = stablehlo.dot_general %arg2, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32> loc(#loc9)
    %1 = call @relu(%0) : (tensor<4x16xf32>) -> tensor<4x16xf32> loc(#loc8)
    %2 = stablehlo.dot_general %1, %arg1, contracting_dims = [1] x [0] : (tensor<4x16xf32>, tensor<16x8xf32>) -> tensor<4x8xf32> loc(#loc9)
    %3 = sdy.sharding_constraint %2 <@mesh, [{"data"}, {}]> : tensor<4x8xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %4 = stablehlo.reduce(%3 init: %cst) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<f32>
    %5 = stablehlo.dot_general %arg2, %1, contracting_dims = [0] x [0] : (tensor<4x8xf32>, tensor<4x16xf32>) -> tensor<8x16xf32>
    %6 = stablehlo.dot_general %1, %3, contracting_dims = [0] x [0] : (tensor<4x16xf32>, tensor<4x8xf32>) -> tensor<16x8xf32>
    %cst_0 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %7 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %8 = stablehlo.multiply %7, %5 : tensor<8x16xf32>
    %9 = stablehlo.subtract %arg0, %8 : tensor<8x16xf32>
    %10 = stablehlo.subtract %arg1, %6 : tensor<16x8xf32>
    return %9, %10, %4 : tensor<8x16xf32>, tensor<16x8xf32>, tensor<f32> loc(#loc7)
  } loc(#loc7)
  func.func private @relu(%arg0: tensor<4x16xf32>) -> tensor<4x16xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x16xf32>
    %1 = stablehlo.maximum %arg0, %0 : tensor<4x16xf32>
    return %1 : tensor<4x16xf32>
  }
}
"""  # noqa: E501  # one operation has one line
"""A step with two donated arguments, shardings on a mesh of 2 x 2 and locations; its gradients are made up."""


def step_results(up: Any, down: Any, x: Any) -> tuple[Any, Any, Any]:
    """Return the results of `STEP` in NumPy: the two parameters, and the loss."""
    hidden = np.maximum(x @ up, 0)
    out = hidden @ down
    return up - np.float32(0.1) * (x.T @ hidden), down - hidden.T @ out, out.sum()
