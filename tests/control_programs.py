"""Random programs with nested control flow beside plain Python: `python -m tests.control_programs SEED COUNT`.

Draws COUNT seeds from SEED. Each writes a script as people do (`tests/control`): `if`, `while`, `for`, `break`,
`continue`, early `return`, conditional expressions and `and`, `or`, `not` on tensors, nested. mspc runs it as
`mspc run --simulate` does, in Float64; its results and the parameters that it updates must be those of the same text as
plain Python on arrays of NumPy. With `--gradients`, gradients in the arguments and the parameters must be PyTorch's,
which runs the same text. `--gpu` runs it on a GPU, emulated where there is none, several times: from CUDA graphs in the
end. The emulated one's graphs run on the CPU as well, step by step. `--ranks N` runs it on N ranks in semi-automatic
mode, with strategies on some operators and the whole batch on every rank. `--depth D` nests blocks so deep (3).

Prints a line for each program that differs, is refused, fails or hangs, with its seed, and the counts; exits with 1 if
a program differs, fails or hangs. `--processes K` shares the seeds over K processes, `--only SEED` runs one program,
`--show` prints its script.
"""

import contextlib
import io
import random
import re
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from mspc.commands.run import run_script
from tests import judged_seeds
from tests.control.on_gpu import OtherNumbers, run_on_gpu
from tests.control.plain import Arrays, Plain
from tests.control.program import STEPS, ControlProgram
from tests.control.watched import Outcome
from tests.judged_seeds import EQUAL, FAILS, REFUSED, Different, seeds_parser

TOLERANCE = 1e-10
MARGIN, CONDITIONS = 1e-3, 2
"""How near a tie the conditions of a program may come, and how many it has at least."""
MOVED, CONDITION = 1e-15, 1e-12
"""How far the results may move where the arguments are moved: programs that make more of rounding judge nothing."""
DRAWS = 200


@dataclass
class Judged:
    """A program that judges something, and what it should compute."""

    program: ControlProgram
    expected: Arrays


def judged(seed: int, ranks: int, gradients: bool, depth: int) -> Judged:
    """The first program of a seed whose conditions are clear and whose results hang on no rounding."""
    for draw in range(DRAWS):
        program = ControlProgram(seed, ranks, depth, draw)
        expected = clear(program, gradients, CONDITIONS)
        if expected is not None:
            return Judged(program, expected)
    raise Different(f"none of {DRAWS} programs of seed {seed} is clear")


def clear(program: ControlProgram, gradients: bool, conditions: int = 0) -> Arrays | None:
    """The expected result of a program; None if rounding may decide, or if it has fewer conditions than required."""
    plain = Plain(program)
    expected = plain.values()
    if plain.margins.least < MARGIN or plain.margins.asked < conditions:
        return None
    moved = Plain(program).values(MOVED)
    if gradients:
        expected |= gradients_of(program)
        moved |= gradients_of(program, MOVED)
    finite = all(np.all(np.isfinite(array)) for array in expected.values())
    return expected if finite and apart(moved, expected) <= CONDITION else None


def gradients_of(program: ControlProgram, moved: float = 0.0) -> Arrays:
    """By PyTorch, behind a first run, as the script has it."""
    from tests.control.differentiated import Differentiated  # late: it needs PyTorch

    judge = Differentiated(program)
    judge.values()
    return judge.gradients(moved)


def apart(found: Arrays, expected: Arrays) -> float:
    """The largest difference, relative to numbers above one."""
    pairs = [(found[name], array) for name, array in expected.items() if array.dtype.kind == "f"]
    return max((float(np.max(np.abs(a - b) / (1 + np.abs(b)), initial=0.0)) for a, b in pairs), default=0.0)


def compare(found: Arrays, expected: Arrays, where: str) -> None:
    """Raises Different where names, shapes, element types or numbers are others."""
    if set(found) != set(expected):
        raise Different(f"{where}: has {sorted(found)}, not {sorted(expected)}")
    for name, wanted in expected.items():
        array = found[name]
        if array.shape != wanted.shape or array.dtype != wanted.dtype:
            kinds = f"{array.dtype}{list(array.shape)}, not {wanted.dtype}{list(wanted.shape)}"
            raise Different(f"{where}: {name} is {kinds}")
        far = float(np.max(np.abs(array.astype(float) - wanted) / (1 + np.abs(wanted)), initial=0.0))
        if not far <= (TOLERANCE if wanted.dtype.kind == "f" else 0.0):
            raise Different(f"{where}: {name} is {far:.2e} away")


def run(found: Judged, gradients: bool, folder: Path, gpu: bool = False) -> None:
    """Runs a program by mspc, on all its ranks. Raises Different, MspcError, or what is a fault."""
    program = found.program
    path = folder / f"program_{program.seed}.py"
    path.write_text(program.script(str(folder), gradients, again=gpu), encoding="utf-8")
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        if gpu:
            run_on_gpu(path, TOLERANCE)
        else:
            run_script(path, program.ranks, simulate=True)
    warned = re.search(r"warning: .*cannot be captured.*", said.getvalue())
    if warned is not None:
        raise Different(warned[0])
    for name in [f"step {i}" for i in range(STEPS)] if gpu else [f"rank {i}" for i in range(program.ranks)]:
        with np.load(folder / f"{name.replace(' ', '_')}.npz") as arrays:
            compare({name: arrays[name] for name in arrays}, found.expected, name)


def check(seed: int, ranks: int = 1, gradients: bool = False, depth: int = 3, gpu: bool = False) -> Outcome:
    """Return the result of the program of a seed."""
    try:
        found = judged(seed, ranks, gradients, depth)
    except Exception as error:
        return Outcome(seed, FAILS, f"{type(error).__name__}: {error}")
    return outcome_of(found, gradients, gpu)


def outcome_of(found: Judged, gradients: bool, gpu: bool = False) -> Outcome:
    """Return the result of a program; whatever else its script raises is a fault, as scripts are legal."""

    def compare() -> None:
        with tempfile.TemporaryDirectory() as folder:
            try:
                run(found, gradients, Path(folder), gpu)
            except OtherNumbers as error:
                raise Different(str(error)) from None

    text = found.program.script(".", gradients, again=gpu)
    return judged_seeds.outcome_of(found.program.seed, "", text, compare)


def seeds_of(first: int, count: int) -> list[int]:
    """The seeds of `count` programs."""
    generator = random.Random(first)
    return [generator.getrandbits(32) for _ in range(count)]


def main() -> int:
    parser = seeds_parser("Random programs with control flow beside plain Python.")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--gradients", action="store_true", help="compare gradients with PyTorch's")
    parser.add_argument("--gpu", action="store_true", help="run on a GPU, emulated where there is none")
    parser.add_argument("--depth", type=int, default=3, help="how deep blocks are nested")
    given = parser.parse_args()
    if given.gradients and find_spec("torch") is None:
        parser.error("gradients need PyTorch: pip install -e '.[oracle]'")
    if given.gpu and given.ranks > 1:
        parser.error("--gpu takes one rank")

    def script(seed: int) -> str:
        program = judged(seed, given.ranks, given.gradients, given.depth).program
        return program.script(".", given.gradients, again=given.gpu)

    def work(seed: int) -> Outcome:
        return check(seed, given.ranks, given.gradients, given.depth, given.gpu)

    return judged_seeds.judged(given, work, script, seeds_of, (EQUAL, REFUSED))


if __name__ == "__main__":
    sys.exit(main())
