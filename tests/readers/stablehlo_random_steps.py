"""Random training steps of JAX with random shardings, beside mspc on one device and on ranks, in Float64:

    python -m tests.readers.stablehlo_random_steps write FOLDER --count 300     # needs JAX
    python -m tests.readers.stablehlo_random_steps judge FOLDER [--jobs N]      # needs no JAX

`write` lowers each step plainly, with its inputs and JAX's results, and once more with shardings of its arguments and
constraints on a mesh of one to three axes, of which it writes XLA's module after the partitioner, too, and the one that
runs. `judge` compares the plain step with JAX's results (1e-10), the ranks of the sharded one with one device, the
two modules of XLA with the step, and the bytes of mspc's ranks with those of XLA's last module. It prints a line for
each step that differs, sends more or is refused, and counts.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import math
import os
import random
import shutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import Process
from pathlib import Path
from typing import Any

import numpy as np

from mspc import Tensor
from mspc.analysis.cost.nodes import sent_bytes
from mspc.commands.compile import find_call
from mspc.commands.verify import programs_of_partitioned
from mspc.compiler.program_figures import sent_by_ranks
from mspc.ops.control.regions import nodes_with_times
from mspc.output.programs import config_of
from mspc.readers.stablehlo.network import StableHloNetwork
from mspc.readers.stablehlo.text_reader import read_module
from tests.compiled_scripts import CompileOptions, compile_call, verify_scale, verify_target

TOLERANCE = 1e-10
MESHES = ((2,), (4,), (8,), (2, 2), (4, 2), (2, 2, 2))
KINDS = ("dense", "attention", "norm", "gate", "convolution", "scan", "batched", "shifted", "greatest", "lookup")
WIDTH, ROWS, BATCH = 16, 16, 8
SHAPES = {
    "dense": {"w": (WIDTH, 32), "v": (32, WIDTH)}, "gate": {"w": (WIDTH, 32), "v": (32, WIDTH)},
    "attention": {"q": (WIDTH, 4, 8), "k": (WIDTH, 4, 8), "o": (4, 8, WIDTH)}, "norm": {"g": (WIDTH,)},
    "convolution": {"c": (3, WIDTH, WIDTH)}, "scan": {"s": (3, WIDTH, WIDTH)}, "batched": {"b": (BATCH, WIDTH, WIDTH)},
    "lookup": {"t": (WIDTH, WIDTH)}, "shifted": {}, "greatest": {},
}  # fmt: skip
"""Parameters of each kind of layer."""


def layer(jax: Any, kind: str, h: Any, p: Any) -> Any:
    """Return the result of a layer."""
    jnp, lax = jax.numpy, jax.lax
    if kind in ("dense", "gate"):
        return h + (jnp.tanh if kind == "dense" else jax.nn.silu)(h @ p["w"]) @ p["v"]
    if kind == "attention":
        q, k = (jnp.einsum("btd,dhk->bthk", h, p[name]) for name in "qk")
        weights = jax.nn.softmax(jnp.einsum("bthk,bshk->bhts", q, k), -1)
        return h + jnp.einsum("bhts,bshk,hkd->btd", weights, k, p["o"])
    if kind == "norm":
        apart = h - h.mean(-1, keepdims=True)
        return apart * lax.rsqrt((apart**2).mean(-1, keepdims=True) + 1e-5) * (1 + p["g"])
    if kind == "convolution":
        return h + lax.conv_general_dilated(h, p["c"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
    if kind == "scan":
        return lax.scan(jax.checkpoint(lambda x, w: (jnp.tanh(x @ w) + x, None)), h, p["s"])[0]
    if kind == "batched":
        return h + jnp.einsum("btd,bde->bte", h, p["b"])
    if kind == "shifted":
        return jnp.roll(h, 3, 1) * 0.5 + h[:, ::-1] + jnp.cumsum(h, 1) * 0.1
    if kind == "greatest":
        return h + lax.top_k(h, 4)[0].sum(-1, keepdims=True)
    return h + p["t"][jnp.argmax(h, -1)]


def write(folder: Path, seed: int) -> None:
    """Write the two texts of a step, and its inputs and results."""
    jax = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    shardings, jnp = importlib.import_module("jax.sharding"), jax.numpy
    drawn, numbers = random.Random(seed), np.random.default_rng(seed)
    sizes = drawn.choice(MESHES)
    axes = ("a", "b", "c")[: len(sizes)]
    mesh = jax.make_mesh(sizes, axes, (shardings.AxisType.Auto,) * len(axes), devices=jax.devices()[: math.prod(sizes)])

    def sharded(shape: Sequence[int]) -> Any:
        free, entries = dict(mesh.shape), []
        for n in shape:
            own, parts = [], 1
            for name, size in list(free.items()):
                if drawn.random() < 0.35 and n % (parts * size) == 0:
                    own.append(name)
                    parts *= free.pop(name)
            entries.append(tuple(own) if own else None)
        return shardings.NamedSharding(mesh, shardings.PartitionSpec(*entries))

    kinds = [drawn.choice(KINDS) for _ in range(drawn.randint(2, 5))]
    constraints = [sharded((BATCH, ROWS, WIDTH)) if drawn.random() < 0.6 else None for _ in kinds]
    has_averages = drawn.random() < 0.5
    weights = [{k: 0.3 * numbers.normal(size=shape) for k, shape in SHAPES[kind].items()} for kind in kinds]
    zeros = jax.tree.map(np.zeros_like, weights)

    def train(state: Any, x: Any, y: Any, constrains: bool) -> Any:
        def loss(p: Any) -> Any:
            h = x
            for kind, own, constraint in zip(kinds, p, constraints, strict=True):
                h = layer(jax, kind, h, own)
                h = jax.lax.with_sharding_constraint(h, constraint) if constrains and constraint is not None else h
            return jnp.mean((h - y) ** 2)

        p, m, v = state
        value, g = jax.value_and_grad(loss)(p)
        if not has_averages:
            return (jax.tree.map(lambda p, g: p - 0.1 * g, p, g), m, v), value
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.9 * v + 0.1 * g * g, v, g)
        return (jax.tree.map(lambda p, m, v: p - 0.01 * m / (jnp.sqrt(v) + 1e-3), p, m, v), m, v), value

    given = ((weights, zeros, zeros), *(numbers.normal(size=(BATCH, ROWS, WIDTH)) for _ in range(2)))
    step = jax.jit(train, donate_argnums=0, keep_unused=True, static_argnums=3)
    plain = step.lower(*given, False).as_text(debug_info=True)
    typed = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharded(a.shape)), given)
    lowered = step.lower(*typed, True)
    (folder / f"{seed}.mlir").write_text(plain)
    (folder / f"{seed}_sharded.mlir").write_text(lowered.as_text(debug_info=True))
    (folder / f"{seed}_final.hlo").write_text((compiled := lowered.compile()).as_text())
    for dump in (folder / "dump").iterdir():
        if "after_spmd-partitioning" in dump.name and dump.suffix == ".txt":
            dump.rename(folder / f"{seed}_after.hlo")
    shutil.rmtree(folder / "dump")
    arrays = {f"in{i}": np.asarray(a) for i, a in enumerate(jax.tree.leaves(given))}
    for name, found in ("out", jax.jit(train, static_argnums=3)(*given, False)), ("xla", compiled(*given)):
        arrays |= {f"{name}{i}": np.asarray(a) for i, a in enumerate(jax.tree.leaves(found))}
    np.savez(folder / f"{seed}.npz", **arrays)


def beside_jax(path: Path) -> str:
    """Return how a step on one device, or on XLA's devices, differs from JAX on one device, "" if it does not."""
    stored = np.load(path.with_suffix(".npz"))
    network = StableHloNetwork(read_module(path))
    inputs: list[Any] = []
    for i, each in enumerate(network.arguments):
        if each.target >= 0:
            network.held[each.name].set_data(Tensor(stored[f"in{i}"]))
        else:
            inputs.append(Tensor(stored[f"in{i}"]))
    loss = network(*inputs).asnumpy()
    found = {each.target: network.held[each.name].asnumpy() for each in network.arguments if each.target >= 0}
    for i in range(len(found) + 1):
        right = stored[f"out{i}"]
        for name, value in ("one device", found.get(i, loss)), ("XLA's devices", stored[f"xla{i}"]):
            if np.abs(value - right).max(initial=0.0) > TOLERANCE * max(1.0, np.abs(right).max(initial=0.0)):
                return f"result {i} of {name} differs from JAX by {np.abs(value - right).max():.3g}"
    return ""


def on_ranks(path: Path) -> str:
    """Compare the ranks of the sharded step with one device. Raise MspcError if they differ."""
    verify_target(str(path.with_name(f"{path.stem}_sharded.mlir")), CompileOptions(), 0)
    return ""


def of_xla(kind: str, path: Path) -> str:
    """Compare a module of XLA with the step. Raise MspcError if they differ."""
    step, module = (str(path.with_name(f"{path.stem}_{name}")) for name in ("sharded.mlir", f"{kind}.hlo"))
    verify_scale(step, CompileOptions(), 0, Path(module))
    return ""


def bytes_beside_xla(path: Path) -> str:
    """Return the bytes that a rank sends in the mean and those of XLA's last module, if they are more, else ""."""
    sharded = path.with_name(f"{path.stem}_sharded.mlir")
    captured = find_call(str(sharded), CompileOptions()).captured
    config = config_of(captured, captured.context.device_num)
    own = sent_by_ranks(compile_call(captured.target, captured.args, config, None, captured.global_types)).mean
    kinds = programs_of_partitioned(sharded, path.with_name(f"{path.stem}_final.hlo")).kinds
    sent = sum(len(kind.ranks) * sent_bytes(node) * times.count for kind in kinds
               for node, times in nodes_with_times(kind.graph)) / config.ranks  # fmt: skip
    with path.with_name("bytes.txt").open("a") as file:
        file.write(f"{path.stem} {own:.0f} {sent:.0f}\n")
    return "" if own <= sent else f"{own:.0f} bytes, and XLA sends {sent:.0f}"


def judged(judge: Callable[[Path], str], path: Path) -> str:
    """Return the difference that a judge finds, or its error."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return judge(path)
    except Exception as error:  # each kind of error counts
        return f"{type(error).__name__}: {error}"[:300]


JUDGES: dict[Callable[[Path], str], str] = {
    beside_jax: "one device and XLA's devices are equal to JAX", on_ranks: "ranks are equal to one device",
    partial(of_xla, "after"): "XLA's module after the partitioner is equal to the step",
    partial(of_xla, "final"): "XLA's last module is equal to the step",
    bytes_beside_xla: "ranks send no more bytes than XLA's last module",
}  # fmt: skip
FLAGS = (
    "--xla_force_host_platform_device_count=8 --xla_dump_hlo_as_text --xla_dump_large_constants "
    "--xla_dump_hlo_pass_re=.*partition.* --xla_dump_to="
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=("write", "judge"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="*", help="Numbers of judges, from 0 on.")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    if given.work == "write":
        given.folder.mkdir(parents=True, exist_ok=True)
        os.environ["XLA_FLAGS"] = f"{FLAGS}{given.folder / 'dump'}"
        for seed in range(given.first, given.first + given.count):
            process = Process(target=write, args=(given.folder, seed))  # XLA stops its process at some errors
            process.start()
            process.join()
        return
    paths = sorted(path.with_suffix(".mlir") for path in given.folder.glob("*.npz"))
    equal = True
    for number, (judge, name) in enumerate(JUDGES.items()):
        if given.only is not None and number not in given.only:
            continue
        with ProcessPoolExecutor(given.jobs) as pool:  # new processes: a command leaves its own handler of calls
            found = list(pool.map(partial(judged, judge), paths))
        for path, reason in zip(paths, found, strict=True):
            if reason:
                print(f"{path.name}: {reason}")
        print(f"{name}: {found.count('')} of {len(found)} steps")
        equal = equal and found.count("") == len(found)
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
