"""Estimated against measured times of steps: plans of a transformer and of ResNet-50 on the ranks of this machine.

    python benchmarks/estimates.py --ranks 1,2 [--device gpu] [--machine here.toml] [--plot estimates.svg] [--smaller 8]

Without `--machine` the machine is measured first (`mspc calibrate`). Every plan is written to a file, compiled for its
estimate, and trained as it says. Prints a line for each, then the mean error, the rank correlation (Spearman's), and
whether the fastest by measure is among the three that were estimated fastest.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SCRIPT = Path(__file__).parent / "networks" / "planned.py"
MESHES = {1: ("",), 2: ("2",), 4: ("4", "2x2"), 8: ("8", "4x2", "2x2x2")}


@dataclass(frozen=True)
class Result:
    """One plan. estimated, measured: seconds of a step. planned: bytes of memory."""

    network: str
    ranks: int
    plan: str
    estimated: float
    measured: float
    planned: int


def mspc(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "mspc", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"mspc {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def plans(network: str, ranks: int, machine: Path, folder: Path, smaller: str) -> list[tuple[str, Path, float, int]]:
    """(name, file, estimated seconds, bytes of memory) of the plans of every way that `mspc search` knows."""
    found: list[tuple[str, Path, float, int]] = []
    for mesh in MESHES[ranks]:
        every = folder / f"{network}{ranks}{mesh}"
        where = ["--mesh", mesh] if mesh else ["--ranks", str(ranks)]
        table = json.loads(mspc("search", str(SCRIPT), *where, "--machine", str(machine), "--top", "9",
                                "--json", "-", "--out", str(every), "--", network, "-", "1", smaller))  # fmt: skip
        for plan in table["plans"]:
            file = every / plan["file"]
            if all(file.read_bytes() != other.read_bytes() for _, other, _, _ in found):
                name = f"{plan['name']}{' ' + mesh if plan['name'] == 'search' else ''}"
                found.append((name, file, plan["step"], plan["memory"]))
    return found


def measured(network: str, ranks: int, file: Path, device: str, steps: str, smaller: str) -> float:
    out = mspc("run", str(SCRIPT), "--ranks", str(ranks), "--device", device, "--", network, str(file), steps, smaller)
    return float(json.loads(next(line for line in out.splitlines() if line.startswith("{")))["seconds"])


def ranked(values: list[float]) -> np.ndarray:
    return np.argsort(np.argsort(values)).astype(float)


def summary(results: list[Result]) -> list[str]:
    """A line for each network and number of ranks, and one for all."""
    errors = [abs(r.estimated - r.measured) / r.measured for r in results]
    lines = [f"{len(results)} plans: mean error {np.mean(errors):.1%}"]
    for case in dict.fromkeys((r.network, r.ranks) for r in results):
        own = [r for r in results if (r.network, r.ranks) == case]
        best = min(own, key=lambda r: r.measured)
        first = sorted(own, key=lambda r: r.estimated)[:3]
        lines.append(f"{case[0]} on {case[1]}: the fastest is {'' if best in first else 'not '}among the first three")
    correlation = np.corrcoef(ranked([r.estimated for r in results]), ranked([r.measured for r in results]))[0, 1]
    return [*lines, f"rank correlation {correlation:.3f}"]


def drawn(results: list[Result]) -> str:
    """A scatter plot as SVG: estimated along x, measured along y, both logarithmic; a mark for each network."""
    values = np.log10([[r.estimated, r.measured] for r in results])
    low, high = values.min() - 0.1, values.max() + 0.1
    places = 40 + 520 * (values - low) / (high - low)
    lines = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 600" font-family="sans-serif" font-size="13">',
             '<rect width="600" height="600" fill="white"/>',
             '<path d="M40 560 H580 M40 560 V20" stroke="black"/>',
             '<path d="M40 560 L560 40" stroke="gray" stroke-dasharray="4"/>',
             '<text x="300" y="592" text-anchor="middle">estimated seconds of a step (logarithmic)</text>',
             '<text x="14" y="300" text-anchor="middle" transform="rotate(-90 14 300)">measured seconds</text>']
    for (x, y), result in zip(places, results, strict=True):
        shape = (f'<circle cx="{x:.1f}" cy="{600 - y:.1f}" r="5" fill="none" stroke="black"/>'
                 if result.network == "transformer" else
                 f'<rect x="{x - 4:.1f}" y="{596 - y:.1f}" width="8" height="8" fill="none" stroke="black"/>')
        times = f"{result.estimated:.4g} s, {result.measured:.4g} s"
        title = f"{result.network}, {result.ranks} ranks, {result.plan}: {times}"
        lines.append(f"<g>{shape}<title>{title}</title></g>")
    lines.append('<text x="60" y="40">circles: transformer; squares: ResNet-50; dashed: equal</text></svg>')
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"))
    parser.add_argument("--machine", type=Path)
    parser.add_argument("--networks", default="transformer,resnet")
    parser.add_argument("--steps", default="20")
    parser.add_argument("--smaller", default="1", help="widths are divided by it")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    numbers = [int(n) for n in options.ranks.split(",")]
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        machine = options.machine or folder / "here.toml"
        if options.machine is None:
            ranks = str(max(numbers))
            print(mspc("calibrate", "--ranks", ranks, "--device", options.device, "--out", str(machine), "-q"))
        for network in options.networks.split(","):
            for ranks in numbers:
                for plan, file, estimated, memory in plans(network, ranks, machine.resolve(), folder, options.smaller):
                    seconds = measured(network, ranks, file, options.device, options.steps, options.smaller)
                    results.append(Result(network, ranks, plan, estimated, seconds, memory))
                    error = estimated / seconds - 1
                    print(f"{network:12} {ranks:3} {plan:28} estimated {1e3 * estimated:9.3f} ms, measured "
                          f"{1e3 * seconds:9.3f} ms, {error:+.1%}, memory planned {memory}", flush=True)  # fmt: skip
    print("\n".join(summary(results)))
    if options.plot is not None:
        options.plot.write_text(drawn(results), encoding="utf-8")


if __name__ == "__main__":
    main()
