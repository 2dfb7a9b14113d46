"""Every collective, forward and backward, against NumPy: on simulated ranks and under MPI, and as scripts call them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mspc.commands.run import run_script
from mspc.engine.ranks.launcher import find_mpirun, mpirun_environment
from mspc.runtime.comm.local import World
from tests.conftest import HANG
from tests.ops.collective.every import check_all
from tests.serving import SERVED
from tests.shares import is_taken

HERE = Path(__file__).parent


@pytest.mark.parametrize("ranks", [ranks for place, ranks in enumerate((3, 2, 8, 4)) if is_taken(place, 2)])
def test_operators_on_simulated_ranks(ranks: int) -> None:
    """On an odd and an even number; on four they run under MPI below."""
    assert min(World(ranks).run(check_all)) > 200


@pytest.mark.parametrize(
    ("program", "ranks"),
    [
        (program, ranks)
        for program, counts in (("public", (3, 2, 4, 8)), ("mint", (2, 4)))
        for place, ranks in enumerate(counts)
        if is_taken(place)
    ],
)
def test_what_scripts_call_on_simulated_ranks(program: str, ranks: int, capsys: pytest.CaptureFixture[str]) -> None:
    """One number of ranks of each: on four all run under MPI below, and the operators on eight above."""
    run_script(HERE / f"{program}_program.py", ranks, simulate=True)
    assert sorted(capsys.readouterr().out.splitlines()) == [f"rank {rank} is right" for rank in range(ranks)]


def test_everything_under_mpi(root: Path) -> None:
    command = [find_mpirun(), "-n", "4", "--oversubscribe", "--bind-to", "none", *SERVED, "run"]
    environment = mpirun_environment() | {"PYTHONPATH": str(root)}
    done = subprocess.run(
        [*command, str(HERE / "public_program.py"), "--", "every"],
        env=environment, capture_output=True, text=True, timeout=HANG, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(2 * [f"rank {rank} is right" for rank in range(4)])
