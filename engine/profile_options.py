"""Options of `mspc run --profile`. Imports nothing heavy, as `commands.run` needs it."""

from __future__ import annotations

from pathlib import Path

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import check_writable
from mspc.ir.late_dataclass import dataclass

STEPS = 5


@dataclass(frozen=True)
class ProfileOptions:
    """Options of a profile. file: path of the trace, as given by the user. steps: maximum number of timed steps."""

    file: Path
    steps: int = STEPS

    def arguments(self) -> list[str]:
        """Return the options as arguments for the ranks that mpirun starts."""
        return ["--profile", str(self.file), "--profile-steps", str(self.steps)]

    def check(self) -> None:
        """Raise MspcError before the run if the file cannot be written."""
        check_writable(self.file, "--profile")


def profile_options(file: Path | None, steps: int | None) -> ProfileOptions | None:
    """Return the options `--profile` and `--profile-steps`, or None if neither is given. Raise MspcError if the number
    of steps is given without the file."""
    if file is not None:
        return ProfileOptions(file, steps or STEPS)
    if steps is not None:
        raise MspcError(
            f"--profile-steps {steps} says how many steps --profile times, which is not there",
            notes=["add --profile FILE.json"],
        )
    return None
