"""`mspc verify --scale` of networks of transformers and torchvision, and of modules by hand: none may be called wrong.

    python -m benchmarks.pytorch.proofs [--only NAME]... [--library LIBRARY] [--every N] [--plans data,search]

Each is exported in training mode with its loss, and proved with AdamW on 8 ranks: `data` as it is (rows over ranks),
as a program and as a compiled folder; `search` by a searched plan, as a folder. Prints what is refused or called wrong.
Needs torch, torchvision and transformers.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.pytorch.architectures import Network, networks

MSPC = [sys.executable, "-m", "mspc"]
TRAINED = ["--ranks", "8", "--optimizer", "adamw:lr=1e-3"]
PLANS = ("data", "search")


def exported(network: Network, target: Path) -> None:
    """Write the program with its loss, in Float32."""
    import torch

    module, data = network.built()
    torch.export.save(torch.export.export(module, (), data, strict=False), target)


def said(folder: Path, *arguments: str) -> tuple[int, str]:
    """(exit status, the first error or the last line) of a command."""
    done = subprocess.run([*MSPC, *arguments], capture_output=True, text=True, cwd=folder, check=False)
    lines = [*done.stderr.splitlines(), *done.stdout.splitlines()]
    told = next((line for line in lines if "error: " in line), lines[-1] if lines else "")
    return done.returncode, told


def proofs(folder: Path, plans: list[str]) -> Iterator[tuple[str, int, str]]:
    """(what was proved, exit status, what was said) of model.pt2 in a folder."""
    if "data" in plans:
        yield "program", *said(folder, "verify", "--scale", "model.pt2", *TRAINED)
        yield "folder", *_of_folder(folder, "data", *TRAINED)
    if "search" in plans:
        status, told = said(folder, "search", "model.pt2", *TRAINED, "--out", "plan.toml")
        found = (status, told) if status else _of_folder(folder, "searched", *TRAINED, "--strategies", "plan.toml")
        yield "searched plan", *found


def _of_folder(folder: Path, name: str, *arguments: str) -> tuple[int, str]:
    status, told = said(folder, "compile", "model.pt2", *arguments, "--out", name, "--weights", "-q")
    return (status, told) if status else said(folder, "verify", "--scale", name)


def verdict(status: int, told: str) -> str:
    """What a proof comes to."""
    if status == 0:
        return "equal but for small sizes" if "their own sizes" in told else "equal"
    return "CALLED WRONG" if status == 1 else "refused"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], help="a network's name")
    parser.add_argument("--library", help="whose networks")
    parser.add_argument("--every", type=int, default=1, help="each Nth of them alone")
    parser.add_argument("--plans", default=",".join(PLANS))
    options = parser.parse_args()
    chosen = [n for n in networks() if options.library is None or n.library == options.library]
    chosen = [n for n in chosen if n.name in options.only] if options.only else chosen[:: options.every]
    counts: Counter[str] = Counter()
    for network in chosen:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            try:
                exported(network, Path(folder) / "model.pt2")
            except Exception as error:  # what torch.export raises on a module that it cannot take
                print(f"{network.name}: not exported: {str(error).splitlines()[:1]}", flush=True)
                continue
            found: list[Any] = list(proofs(Path(folder), options.plans.split(",")))
        for what, status, told in found:
            came = verdict(status, told)
            counts[f"{what}: {came}"] += 1
            if came != "equal":
                print(f"{network.name}, {what}: {came}: {told[:300]}", flush=True)
        print(f"{network.name} {time.perf_counter() - start:.1f} s", flush=True)
    for what, count in sorted(counts.items()):
        print(f"{count:5} {what}")
    return int(any("WRONG" in what for what in counts))


if __name__ == "__main__":
    sys.exit(main())
