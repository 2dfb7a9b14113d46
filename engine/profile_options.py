"""Reads the options of `mspc run --profile`. Imports nothing heavy, as `commands.run` needs it."""

from __future__ import annotations

from pathlib import Path

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import check_writable
from mspc.ir.late_dataclass import dataclass

STEPS = 5


@dataclass(frozen=True)
class ProfileOptions:
    """file: the path of the trace, as the user wrote it. steps: the most that are timed."""

    file: Path
    steps: int = STEPS

    def arguments(self) -> list[str]:
        """As arguments for the ranks that mpirun starts."""
        return ["--profile", str(self.file), "--profile-steps", str(self.steps)]

    def check(self) -> None:
        """Find out before the run whether the file can be written.

        Raises:
            MspcError: it cannot.
        """
        check_writable(self.file, "--profile")


def profile_options(file: Path | None, steps: int | None) -> ProfileOptions | None:
    """Return the options `--profile` and `--profile-steps`, or None if neither is given.

    Raises:
        MspcError: the number of steps without the file.
    """
    if file is not None:
        return ProfileOptions(file, steps or STEPS)
    if steps is not None:
        raise MspcError(
            f"--profile-steps {steps} says how many steps --profile times, which is not there",
            notes=["add --profile FILE.json"],
        )
    return None
