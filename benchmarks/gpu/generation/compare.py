"""Tokens per second of greedy generation: a compiled loop of mspc beside PyTorch with a cache of fixed size.

    python -m benchmarks.gpu.generation.compare [--batch 1 16] [--dtype bf16] [--device gpu] [--small]

A decoder as LLaMA's of 12 layers of width 1024, 128 tokens of prompt, 256 that follow. PyTorch's step of one token is
compiled with `reduce-overhead`, its prompt runs as it is. Every program is a process of its own; the best of several
runs counts, as others may use the machine.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = ("mspc", "torch", "torch eager")


def run(options: argparse.Namespace) -> None:
    """One program: its figures as a line of JSON."""
    from benchmarks.gpu.generation.sizes import SMALL, Sizes

    begun = time.perf_counter()
    sizes, batch = SMALL if options.small else Sizes(), options.batch[0]
    kind, _, mode = options.program.partition(" ")
    extra = {"mode": ""} if mode else {}
    module = importlib.import_module(f"benchmarks.gpu.generation.in_{kind}")
    generate = module.program(sizes, batch, options.dtype, options.device, **extra)
    generate()
    first = time.perf_counter() - begun
    seconds: list[float] = []
    for _ in range(options.repeats):
        before = time.perf_counter()
        tokens = generate()
        seconds.append(time.perf_counter() - before)
    print(json.dumps({"first": first, "seconds": seconds, "tokens": tokens.tolist()}))


def compare(options: argparse.Namespace) -> None:
    """The table."""
    for batch in options.batch:
        rows: dict[str, list[list[int]]] = {}
        for program in options.programs:
            words = ["--program", program, "--batch", str(batch), "--dtype", options.dtype, "--device", options.device]
            words += ["--repeats", str(options.repeats), *(["--small"] if options.small else [])]
            made = subprocess.run(
                [sys.executable, "-m", "benchmarks.gpu.generation.compare", *words],
                cwd=ROOT, capture_output=True, text=True, check=False,
            )  # fmt: skip
            if made.returncode:
                print(f"batch {batch:3} {program:12} failed: {made.stderr.strip()[-2000:]}", flush=True)
                continue
            found = json.loads(made.stdout.strip().splitlines()[-1])
            tokens, best = found["tokens"], min(found["seconds"])
            rows[program] = tokens
            alike = next(iter(rows.values()))
            same = sum(one == other for mine, others in zip(tokens, alike, strict=True)
                       for one, other in zip(mine, others, strict=True))  # fmt: skip
            made_tokens = len(tokens) * len(tokens[0])
            spread = f"{best:.3f} to {max(found['seconds']):.3f} s"
            print(
                f"batch {batch:3} {program:12} {made_tokens / best:9.0f} tokens/s ({spread}), "
                f"first {found['first']:.1f} s, {same} of {made_tokens} tokens as {next(iter(rows))}", flush=True,
            )  # fmt: skip


def main() -> None:
    """Run one program, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 16])
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "f32"])
    parser.add_argument("--device", default="gpu", choices=["gpu", "cpu"])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--programs", nargs="*", default=list(PROGRAMS), choices=PROGRAMS)
    parser.add_argument("--program", choices=PROGRAMS, help="run this one, and print its figures")
    options = parser.parse_args()
    if options.program:
        run(options)
    else:
        compare(options)


if __name__ == "__main__":
    main()
