"""A layer of eight experts, forward and backward, in mspc beside PyTorch's grouped products and plain products.

    python -m benchmarks.gpu.expert_layer [--steps N] [--limit SECONDS] [--json FILE]
                                          [--device gpu|cpu] [--dtype bf16|f32] [--modes MODE ...]

Experts of 4,096 x 14,336 (SwiGLU), 8,192 tokens of which each goes to two, in BFloat16: scores, choice, sort, products
of groups of rows, weighted sums, and the gradients of tokens and weights, which stay on the device. `dense` are
products of all rows by one matrix with as many operations, and nothing else. Every program is a process of its own;
timed repetitions take turns. The last lines are mspc's time by launches, and its ratios to the better of PyTorch's ways
and to `dense` and a quarter of it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.expert_layer.sizes import READ, SIZES
from benchmarks.gpu.networks import table
from benchmarks.gpu.networks.compare import Runs, environment, missing

PROGRAM = "benchmarks.gpu.expert_layer.program"
BESIDE = 1.25
"""Times of plain products that the layer may take."""
SMALL = 2e-5
"""Seconds of a launch below which it is counted with others."""


def compared(options: argparse.Namespace, caches: str) -> dict[str, dict[str, Any]]:
    """What was found of every program, by name."""
    runs = Runs(options, environment(options, caches), PROGRAM)
    common = ["--size", options.size, "--device", options.device, "--dtype", options.dtype]
    programs = {"mspc": ["mspc"], "dense": ["dense"], "torch": ["torch"]}
    programs |= {f"torch {mode}": ["torch.compile", "--mode", mode] for mode in options.modes}
    try:
        for name, words in programs.items():
            reason = missing("mspc" if name == "mspc" else "torch")
            if reason:
                runs.found[name] = {"error": reason}
            else:
                runs.start(name, ["experts", *words, *common])
        for _ in range(options.repeats):
            runs.time()
        runs.end()
    finally:
        runs.close()
    return runs.found


def rows(peers: dict[str, dict[str, Any]], operations: float) -> list[str]:
    """A line for every program."""
    lines = ["| | step | spread | TFLOP/s | peak | first | loss | norms of gradients: " + ", ".join(READ) + " |",
             "|---|--:|--:|--:|--:|--:|--:|---|"]  # fmt: skip
    for name, found in peers.items():
        step = table.median(found)
        if "error" in found or not step:
            lines.append(f"| {name} | {found.get('error', 'not timed')} |")
            continue
        norms = ", ".join(f"{found['norms'][each]:.4g}" for each in READ) if "norms" in found else "-"
        spread = f"{1e3 * min(found['times']):.2f} to {1e3 * max(found['times']):.2f}"
        loss = f"{found['losses'][-1]:.6f}" if "norms" in found else "-"
        lines.append(
            f"| {name} | {1e3 * step:.3f} ms | {spread} | {operations / step / 1e12:.0f} | "
            f"{found['peak'] / 1e9:.2f} GB | {found['first']:.1f} s | {loss} | {norms} |"
        )
    return lines


def launches(found: dict[str, Any]) -> list[str]:
    """mspc's time by launches, one by one, the small ones together."""
    if "launches" not in found:
        return []
    lines = [f"mspc launch by launch: {1e3 * found['launched']:.3f} ms"]
    large = [each for each in found["launches"] if each[2] >= SMALL]
    lines += [f"  {1e3 * seconds:8.3f} ms  {label}  {kind}  {line}" for label, kind, seconds, line in large]
    rest = found["launched"] - sum(seconds for *_, seconds, _ in large)
    lines.append(f"  {1e3 * rest:8.3f} ms  all others")
    if found["plain"]:
        lines.append(f"  without a kernel of their own: {', '.join(found['plain'])}")
    return lines


def ratios(peers: dict[str, dict[str, Any]]) -> list[str]:
    """mspc's time over what it may take."""
    ours, dense = table.median(peers["mspc"]), table.median(peers["dense"])
    grouped = table.best({"peers": peers}, table.median, "torch")
    lines = ["| mspc over | ratio |", "|---|--:|"]
    if ours and grouped:
        lines.append(f"| grouped products ({grouped[0]}, {1e3 * grouped[1]:.3f} ms) | {ours / grouped[1]:.3f} |")
    if ours and dense:
        lines.append(f"| {BESIDE} x plain products ({1e3 * BESIDE * dense:.3f} ms) | {ours / (BESIDE * dense):.3f} |")
    return lines


def main() -> None:
    """Run everything, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--size", choices=tuple(SIZES), help="the device's unless given")
    parser.add_argument("--dtype", choices=("bf16", "f32"), help="bf16 on a GPU, f32 on a CPU unless given")
    parser.add_argument("--modes", nargs="*", default=["default"], help="of torch.compile")
    parser.add_argument("--steps", type=int, default=10, help="of one repetition")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=16, help="of every program on the CPU")
    parser.add_argument("--limit", type=float, default=90, help="seconds within which every answer must come")
    parser.add_argument("--json", type=Path, help="where all figures go")
    options = parser.parse_args()
    options.size = options.size or options.device
    options.dtype = options.dtype or ("bf16" if options.device == "gpu" else "f32")
    sizes, begun = SIZES[options.size], time.perf_counter()
    with tempfile.TemporaryDirectory() as caches:
        peers = compared(options, caches)
    print("\n".join([*rows(peers, sizes.operations), *launches(peers["mspc"]), *ratios(peers)]))
    print(f"{time.perf_counter() - begun:.0f} s in all")
    if options.json:
        options.json.write_text(json.dumps(peers, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
