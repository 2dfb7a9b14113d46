"""Estimated against measured times of steps: plans of a transformer and of ResNet-50 on the ranks of this machine, and
networks that nothing was tuned to.

    python -m benchmarks.estimates --ranks 1,2 --smaller 1,2 [--device gpu] [--machine here.toml] [--plot plot.svg]
        [--save FOLDER]
    python -m benchmarks.estimates --networks all --device gpu [--dtype bf16] [--machine here.toml] [--jobs 8]
    python -m benchmarks.estimates --measured FOLDER [--machine here.toml] [--plot plot.svg]

Without `--machine` the machine is measured first (`mspc calibrate`). Plans train in Float32 as it is, networks as they
stand let GPUs round it to TF32 unless `--dtype` is f32; estimates follow what each script says. The plans are those of
every way that `mspc search` knows, and mixtures of them that can be; each is written to a file, compiled for its
estimate, and trained as it says. Prints a line for each, then the mean error, the rank correlation (Spearman's), and
whether the fastest by measure is among the three that were estimated fastest. `--save` keeps plans, rates and measured
times, and nothing else; `--measured` estimates such plans again. Networks of `benchmarks/gpu/networks` (`gpt2,bert`, or
`all`) are trained as they stand on one rank, in the element type of `--dtype`; they are estimated beside, by
`--jobs` processes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Container
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.gpu.networks.sizes import NETWORKS

SCRIPT = Path(__file__).resolve().parent / "networks" / "planned.py"
NAMED = SCRIPT.with_name("named.py")
AS_IT_STANDS = "as it stands"
MESHES = {1: ("",), 2: ("2",), 4: ("4", "2x2"), 8: ("8", "4x2", "2x2x2")}
SHARDED = "optimizer parallel"
OPERATORS = "[operators]\n"
"""The heading of the table of operators in a plan's file."""


@dataclass(frozen=True)
class Planned:
    """One plan. smaller: by what widths are divided, or the element type of a network that is trained as it stands.
    file: its name in the folder. Without measured times: seconds, memory 0."""

    network: str
    smaller: str
    ranks: int
    name: str
    file: str
    seconds: float = 0.0
    memory: int = 0

    @property
    def case(self) -> tuple[str, str, int]:
        return self.network, self.smaller, self.ranks

    def arguments(self, folder: Path, steps: str, device: str) -> list[str]:
        """The network's script, and what it is given."""
        if self.name == AS_IT_STANDS:
            return [str(NAMED), "--ranks", "1", "--device", device, "--", self.network, steps, self.smaller, device]
        sharded = ["optimizer"] * (self.name == SHARDED)
        return [str(SCRIPT), "--ranks", str(self.ranks), "--device", device, "--", self.network,
                str(folder / self.file), steps, self.smaller, *sharded]  # fmt: skip


@dataclass(frozen=True)
class Result:
    """A plan beside its estimate: seconds of a step, bytes of a rank. missing: kinds of work of which the machine's
    file has no rate."""

    plan: Planned
    seconds: float
    memory: int
    missing: tuple[str, ...] = ()

    @property
    def error(self) -> float:
        return self.seconds / self.plan.seconds - 1


class Failed(Exception):
    """A command's message."""


def mspc(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "mspc", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"mspc {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def plans(network: str, smaller: str, ranks: int, machine: Path, folder: Path) -> list[Planned]:
    """The plans of every way that `mspc search` knows, and mixtures of them, as files of the folder."""
    found: dict[tuple[str, bool], str] = {}
    with tempfile.TemporaryDirectory() as searches:
        for mesh in MESHES[ranks]:
            every = Path(searches) / f"on-{mesh}"
            where = ["--mesh", mesh] if mesh else ["--ranks", str(ranks)]
            table = json.loads(mspc("search", str(SCRIPT), *where, "--machine", str(machine), "--top", "9",
                                    "--json", "-", "--out", str(every), "--", network, "-", "1", smaller))  # fmt: skip
            for plan in table["plans"]:
                name = f"{plan['name']}{' ' + mesh if plan['name'] == 'search' else ''}"
                text = (every / plan["file"]).read_text(encoding="utf-8")
                found.setdefault((text, plan["name"] == SHARDED), name)
    if ranks > 1:
        texts = [text for (text, sharded) in found if not sharded]
        for name, text in mixtures(texts).items():
            found.setdefault((text, False), name)
    made: list[Planned] = []
    for (text, _), name in found.items():
        file = file_name(f"{network} {smaller} {ranks} {name}", {plan.file for plan in made})
        (folder / file).write_text(text, encoding="utf-8")
        made.append(Planned(network, smaller, ranks, name, file))
    return made


def file_name(words: str, taken: Container[str]) -> str:
    """A file's name of letters, digits and dashes that no other plan has: names of other characters cannot be copied
    everywhere."""
    plain = "-".join(re.findall(r"[A-Za-z0-9]+", words))
    names = (f"{plain}{'' if number == 1 else f'-{number}'}.toml" for number in itertools.count(1))
    return next(name for name in names if name not in taken)


def mixtures(texts: list[str]) -> dict[str, str]:
    """Plans whose operators are sharded as one or another of those say; of images, by height in place of batches."""
    first, last = texts[0], texts[-1]
    lines = operators(first)
    number = len(lines)
    other = [line.replace("[0, -, -, -]", "[-, -, 0, -]") for line in lines] if len(texts) == 1 else operators(last)

    def mixed(takes_other: Callable[[int], bool]) -> str:
        own = {line.partition(" = ")[0]: line for line in other}
        chosen = [own.get(line.partition(" = ")[0], line) if takes_other(i) else line for i, line in enumerate(lines)]
        return first[: first.index(OPERATORS)] + OPERATORS + "\n".join(chosen) + "\n"

    draw = random.Random(0)
    return {
        "first eighth otherwise": mixed(lambda i: i < number // 8),
        "first half otherwise": mixed(lambda i: i < number // 2),
        "last half otherwise": mixed(lambda i: i >= number // 2),
        "one in ten otherwise": mixed(lambda _: draw.random() < 0.1),
    }


def operators(text: str) -> list[str]:
    """The lines of a plan's file that shard an operator each."""
    table = text.partition(OPERATORS)[2].partition("\n[")[0]
    return [line for line in table.splitlines() if line.startswith('"')]


def estimated(plan: Planned, folder: Path, machine: Path, device: str) -> Result:
    if plan.name == AS_IT_STANDS:
        words = ["search", str(NAMED), "--ranks", "1", "--machine", str(machine), "--json", "-"]
        return result(plan, mspc(*words, "--", plan.network, "1", plan.smaller, device))
    file = str(folder / plan.file)
    sharded = ["optimizer"] * (plan.name == SHARDED)
    where = ["--ranks", str(plan.ranks), "--machine", str(machine), "--compare", file, file, "--json", "-"]
    return result(plan, mspc("search", str(SCRIPT), *where, "--", plan.network, "-", "1", plan.smaller, *sharded))


def result(plan: Planned, printed: str) -> Result:
    """The first row of a search's table."""
    row = json.loads(printed)["plans"][0]
    missing = tuple(f"{each['kind']} of {each['dtype']}" for each in row["missing_rates"])
    return Result(plan, row["step"], row["memory"], missing)


def measured(plan: Planned, folder: Path, device: str, steps: str) -> Planned:
    out = mspc("run", *plan.arguments(folder, steps, device))
    found = json.loads(next(line for line in out.splitlines() if line.startswith("{")))
    return Planned(*plan.case[:2], plan.ranks, plan.name, plan.file, float(found["seconds"]), int(found["memory"]))


def can_be(plan: Planned, folder: Path, machine: Path) -> bool:
    """Whether every operator of a mixture can be sharded as it says."""
    try:
        estimated(plan, folder, machine, "")
    except Failed as why:
        if "cannot be sharded as the plan" not in str(why):
            raise
        print(f"{plan.name} of {plan.case} cannot be", flush=True)
        return False
    return True


def ranked(values: list[float]) -> np.ndarray:
    return np.argsort(np.argsort(values)).astype(float)


def summary(results: list[Result]) -> list[str]:
    """A line for each network and number of ranks, and those for all."""
    lines = [f"{len(results)} plans: mean error {np.mean([abs(r.error) for r in results]):.1%}"]
    for case in dict.fromkeys(r.plan.case for r in results):
        own = [r for r in results if r.plan.case == case]
        best = min(own, key=lambda r: r.plan.seconds)
        if len(own) == 1:
            continue
        first = sorted(own, key=lambda r: r.seconds)[:3]
        place = f"{'' if best in first else 'not '}among the first three of {len(own)}"
        error = np.mean([abs(r.error) for r in own])
        lines.append(f"{case[0]} / {case[1]} on {case[2]}: mean error {error:.1%}, the fastest is {place}")
    if len(results) > 1:
        rows = [ranked([r.seconds for r in results]), ranked([r.plan.seconds for r in results])]
        lines.append(f"rank correlation {np.corrcoef(*rows)[0, 1]:.3f}")
    for what in dict.fromkeys(each for r in results for each in r.missing):
        lines.append(f"the machine's file has no rates of {what}: those of other products stand in")
    held = [abs(r.memory / r.plan.memory - 1) for r in results if r.plan.memory]
    return [*lines, f"memory: mean error {np.mean(held):.2%}, largest {max(held):.2%}"] if held else lines


def drawn(results: list[Result]) -> str:
    """A scatter plot as SVG: estimated along x, measured along y, both logarithmic; a mark for each network."""
    values = np.log10([[r.seconds, r.plan.seconds] for r in results])
    low, high = values.min() - 0.1, values.max() + 0.1

    def place(value: np.ndarray) -> np.ndarray:
        return 40 + 520 * (value - low) / (high - low)

    places = place(values)
    lines = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="-20 0 620 600" font-family="sans-serif" font-size="13">',
             '<rect x="-20" width="620" height="600" fill="white"/>',
             '<path d="M40 560 H580 M40 560 V20" stroke="black"/>',
             '<path d="M40 560 L560 40" stroke="gray" stroke-dasharray="4"/>',
             '<text x="300" y="592" text-anchor="middle">estimated seconds of a step (logarithmic)</text>',
             '<text x="-8" y="300" text-anchor="middle" transform="rotate(-90 -8 300)">measured seconds</text>']
    ticks = [digit * 10.0**power for power in range(-6, 3) for digit in (1, 2, 5)]
    for tick in ticks:
        if low < np.log10(tick) < high:
            at = place(np.log10(tick))
            lines.append(f'<text x="{at:.1f}" y="575" text-anchor="middle">{tick:g}</text>')
            lines.append(f'<text x="36" y="{604 - at:.1f}" text-anchor="end">{tick:g}</text>')
            lines.append(f'<path d="M{at:.1f} 560 v-4 M40 {600 - at:.1f} h4" stroke="black"/>')
    for (x, y), result in zip(places, results, strict=True):
        plan = result.plan
        shape = (f'<circle cx="{x:.1f}" cy="{600 - y:.1f}" r="5" fill="none" stroke="black"/>'
                 if plan.network == "transformer" else
                 f'<rect x="{x - 4:.1f}" y="{596 - y:.1f}" width="8" height="8" fill="none" stroke="black"/>')
        times = f"{result.seconds:.4g} s, {plan.seconds:.4g} s"
        title = f"{plan.network} / {plan.smaller}, {plan.ranks} ranks, {plan.name}: {times}"
        lines.append(f"<g>{shape}<title>{title}</title></g>")
    lines.append('<text x="60" y="40">circles: transformer; squares: ResNet-50; dashed: equal</text></svg>')
    return "\n".join(lines) + "\n"


def shown(result: Result) -> str:
    plan = result.plan
    held = f", memory {result.memory} of {plan.memory}" if plan.memory else ""
    name = f"{plan.network:11} / {plan.smaller} {plan.ranks:2} {plan.name:24}"
    times = f"estimated {1e3 * result.seconds:8.3f} ms, measured {1e3 * plan.seconds:8.3f} ms"
    return f"{name} {times}, {result.error:+6.1%}{held}"


def machine_file(options: argparse.Namespace, folder: Path, ranks: int) -> Path:
    """The file of the machine's rates, `--machine` or that of a folder, measured on so many ranks where it is not
    there."""
    file = (options.machine or folder / "here.toml").resolve()
    if not file.exists() and options.measured is not None:
        raise SystemExit(f"there is no {file} beside the measured times: --machine names another file")
    if not file.exists():
        print(mspc("calibrate", "--ranks", str(ranks), "--device", options.device, "--out", str(file)))
    return file


def planned(options: argparse.Namespace, folder: Path, pool: ThreadPoolExecutor) -> list[Planned]:
    """The networks that are trained, as they stand, and the plans."""
    networks = NETWORKS if options.networks == "all" else options.networks.split(",")
    cases = [(network, smaller, int(ranks)) for smaller in options.smaller.split(",") for network in networks
             if network not in NETWORKS for ranks in options.ranks.split(",")]  # fmt: skip
    every = [Planned(network, options.dtype, 1, AS_IT_STANDS, "") for network in networks if network in NETWORKS]
    if not cases:
        return every
    machine = machine_file(options, folder, max(ranks for *_, ranks in cases))
    found = [plan for made in pool.map(lambda case: plans(*case, machine, folder), cases) for plan in made]
    can = pool.map(lambda plan: can_be(plan, folder, machine), found)
    return every + [plan for plan, possible in zip(found, can, strict=True) if possible]


def measure_all(every: list[Planned], options: argparse.Namespace, folder: Path) -> list[Planned]:
    """Time one after the other; what is known by then is in the folder."""
    done: list[Planned] = []
    for plan in every:
        done.append(measured(plan, folder, options.device, options.steps))
        print(f"measured {done[-1].name} of {done[-1].case}: {1e3 * done[-1].seconds:.3f} ms", flush=True)
        (folder / "measured.json").write_text(json.dumps([asdict(p) for p in done], indent=1), encoding="utf-8")
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"))
    parser.add_argument("--machine", type=Path)
    parser.add_argument("--networks", default="transformer,resnet", help=f"these, or {','.join(NETWORKS)}, or all")
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "tf32", "f32"), help="of networks as they stand")
    parser.add_argument("--steps", default="20")
    parser.add_argument("--smaller", default="1", help="widths are divided by it; several: 1,2")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--save", type=Path, help="folder for plans, the machine's file and measured times")
    parser.add_argument("--measured", type=Path, help="such a folder: nothing is timed")
    parser.add_argument("--jobs", type=int, default=1, help="compiles at once")
    options = parser.parse_args()
    on_gpu = options.device == "gpu"  # estimates then disturb nothing that is timed
    with tempfile.TemporaryDirectory() as name:
        folder = (options.measured or options.save or Path(name)).resolve()
        folder.mkdir(exist_ok=True, parents=True)
        with ThreadPoolExecutor(options.jobs) as pool:
            if options.measured is None:
                every = planned(options, folder, pool)
            else:
                every = [Planned(**row) for row in json.loads((folder / "measured.json").read_text(encoding="utf-8"))]
            machine = machine_file(options, folder, max(plan.ranks for plan in every))

            def estimate(plan: Planned) -> Result:
                return estimated(plan, folder, machine, options.device)

            known = [pool.submit(estimate, plan) for plan in every if on_gpu]
            done = measure_all(every, options, folder) if options.measured is None else every
            known = known or [pool.submit(estimate, plan) for plan in every]
            results = [replace(each.result(), plan=plan) for each, plan in zip(known, done, strict=True)]
    print("\n".join([*map(shown, results), *summary(results)]))
    if options.plot is not None:
        options.plot.write_text(drawn(results), encoding="utf-8")


if __name__ == "__main__":
    main()
