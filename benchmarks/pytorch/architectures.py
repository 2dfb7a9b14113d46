"""Networks of transformers and torchvision, modules by hand, and a U-Net: loss and all gradients beside PyTorch's.

    python -m benchmarks.pytorch.architectures [--only NAME]... [--library LIBRARY] [--keep FOLDER]
        [--write docs/pytorch-networks.md]

Each is exported in training mode with its loss, read as data, and differentiated on one device and on 8 simulated
ranks by a searched plan; the numbers are compared with those that PyTorch computes. Needs torch, torchvision and
transformers. Float32, and Float64 for the networks that normalise by batches of 8 images, in which rounding alone moves
gradients by more than is compared here.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
RANKS, MODE = 8, "auto_parallel"
PLAIN = "plain modules"
TOLERANCE = 1e-5
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"


class Network(NamedTuple):
    """library: whose it is. built: what gives the module and its tensors. dtype: in which it is compared."""

    name: str
    library: str
    model: str
    built: Any
    dtype: str = "float32"

    @property
    def stem(self) -> str:
        """What its files are called."""
        return f"{self.library.replace(' ', '-')}-{self.name}" if self.library else self.name


class Result(NamedTuple):
    """What came out. error: why there is nothing, or ""; of one device and of the ranks what `compared_step` says."""

    network: Network
    kinds: int = 0
    nodes: int = 0
    one: dict[str, Any] | None = None
    ranks: dict[str, Any] | None = None
    error: str = ""

    @property
    def holds(self) -> bool:
        return self.error == "" and all(
            step is not None and max(step["loss"], step["gradient"], step["buffer"]) <= TOLERANCE
            for step in (self.one, self.ranks)
        )


def networks() -> list[Network]:
    """All that are compared."""
    from benchmarks.pytorch import torchvision_networks, transformers_networks, unet
    from benchmarks.pytorch.plain import registry

    found = [
        Network(each.name, "transformers", each.model, lambda each=each: transformers_networks.built(each),
                each.dtype)
        for each in transformers_networks.ARCHITECTURES
    ]
    names = torchvision_networks.IMAGES | torchvision_networks.SEGMENTATION
    found += [
        Network(name, "torchvision", name, lambda name=name: torchvision_networks.built(name), "float64")
        for name in sorted(names)
    ]
    found += [
        Network(name, PLAIN, name, lambda name=name: registry.built(name), each.dtype)
        for name, each in registry.modules().items()
    ]
    return [*found, Network("unet", "", "diffusion U-Net", lambda: unet.built("unet"))]


def result_of(network: Network, folder: Path) -> Result:
    """What came out, from the folder where it is there."""
    kept = folder / f"{network.stem}.json"
    if kept.exists():
        return Result(network, *json.loads(kept.read_text(encoding="utf-8")))
    found = compared(network, folder)
    kept.write_text(json.dumps(found[1:]), encoding="utf-8")
    return found


def compared(network: Network, folder: Path) -> Result:
    """Exports a network, unless the folder has it, and compares."""
    from benchmarks.pytorch.exported import export

    target = folder / f"{network.stem}.pt2"
    if not target.with_suffix(".npz").exists():
        try:
            module, data = network.built()
            export(module, data, target, network.dtype)
        except Exception as error:  # what torch.export raises on a module that it cannot take
            return Result(network, error=f"not exported: {type(error).__name__}: {str(error).splitlines()[0][:100]}")
    with zipfile.ZipFile(target) as archive:
        name = next(each for each in archive.namelist() if re.search(r"/models/[^/]*\.json$", each))
        nodes = json.loads(archive.read(name))["graph_module"]["graph"]["nodes"]
    kinds = Counter(node["target"] for node in nodes)
    result = Result(network, len(kinds), len(nodes))
    try:
        one = step(target, "stand_alone")
        return result._replace(one=one, ranks=step(target, MODE, "--ranks", str(RANKS), "--simulate"))
    except ValueError as error:
        return result._replace(error=str(error))


def step(target: Path, mode: str, *options: str) -> dict[str, Any]:
    """What `compared_step` prints. Raises ValueError with mspc's message."""
    command = [sys.executable, "-m", "mspc", "run", *options, "benchmarks/pytorch/compared_step.py", "--"]
    done = subprocess.run([*command, str(target), mode], cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        told = next((line for line in done.stderr.splitlines() if "error:" in line), done.stderr[-200:])
        raise ValueError(told.split("error: ", 1)[-1][:200])
    return json.loads(lines[0])


def row(result: Result) -> str:
    """A result in Markdown."""
    numbers = [f"{s['gradient']:.1e}" if s else result.error or "-" for s in (result.one, result.ranks)]
    network = result.network
    return (f"| {network.name} | {network.model} | {result.kinds} | {result.nodes} | {network.dtype} | "
            f"{' | '.join(numbers)} |")  # fmt: skip


def table(rows: list[str]) -> str:
    """Rows in Markdown."""
    found = [
        "| Network | Class | Kinds | Nodes | Type | Gradients, 1 device | Gradients, 8 ranks |",
        "|---|---|---:|---:|---|---:|---:|",
    ]
    return "\n".join([*found, *rows]) + "\n"


def summary(held: list[tuple[str, bool]]) -> str:
    """How many hold, library by library."""
    found: list[str] = []
    for library in dict.fromkeys(library for library, _ in held):
        own = [holds for each, holds in held if each == library]
        found.append(f"{sum(own)} of {len(own)} of {library or 'others'}")
    return ", ".join(found)


def page_with(text: str, results: list[Result]) -> str:
    """A page with the rows of some networks made anew; those of others stay."""
    before, rest = text.split(BEGIN)
    old, behind = rest.split(END)
    rows = {tuple(line.split(" | ")[:2]): line for line in old.splitlines() if line.startswith("| ")}
    rows |= {tuple(line.split(" | ")[:2]): line for line in map(row, results)}
    held: list[tuple[str, bool]] = []
    shown: list[str] = []
    for network in networks():
        line = rows.get((f"| {network.name}", network.model))
        if line is not None:
            shown.append(line)
            held.append((network.library, all(map(_is_small, line.strip(" |").split(" | ")[-2:]))))
    told = f"Within {TOLERANCE:.0e}: {summary(held)}.\n\n"
    return f"{before}{BEGIN}{told}{table(shown)}{END}{behind}"


def _is_small(text: str) -> bool:
    try:
        return float(text) <= TOLERANCE
    except ValueError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], help="a network's name")
    parser.add_argument("--library", choices=("transformers", "torchvision", PLAIN, ""), help="whose networks")
    parser.add_argument("--keep", type=Path, help="a folder for exported programs and results, taken from there again")
    parser.add_argument("--write", type=Path, help="a page, whose rows of these networks are written anew")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as aside:
        folder = options.keep or Path(aside)
        folder.mkdir(parents=True, exist_ok=True)
        results: list[Result] = []
        for network in networks():
            if options.only and network.name not in options.only:
                continue
            if options.library is not None and network.library != options.library:
                continue
            start = time.perf_counter()
            results.append(result_of(network, folder))
            last = results[-1]
            sign = "holds" if last.holds else "FAILS"
            numbers = [f"{s['gradient']:.1e}" for s in (last.one, last.ranks) if s]
            print(f"{sign} {network.name:22} {' '.join(numbers)} {last.error} {time.perf_counter() - start:.1f} s",
                  flush=True)  # fmt: skip
            if options.keep is None:
                for path in folder.iterdir():
                    path.unlink()
    print(summary([(each.network.library, each.holds) for each in results]))
    if options.write is not None:
        page = page_with(options.write.read_text(encoding="utf-8"), results)
        options.write.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
