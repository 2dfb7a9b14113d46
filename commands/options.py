"""Options that several commands share. The module imports nothing heavy."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeGuard

import typer

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.limits import MAX_RANKS, number_of

if TYPE_CHECKING:
    from mspc.engine.capture import NamedTarget


Ranks = Annotated[int | None, typer.Option("--ranks", "-n", min=1, max=MAX_RANKS, metavar="N", help="Number of ranks.")]
Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET", help="A script, a network in it: 'net.py:Net(32, 16)', model.pt2 or step.mlir.",
    ),
]
ScriptArguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- ARGS", show_default=False, help="The script's own arguments."),
]

_RANKS = ("ranks", "worker_num")
"""Parameters of commands for the number of ranks."""
_WORDS_FOR_RANKS = frozenset((
    "rank", "ranks", "nranks", "numranks", "np", "nproc", "nprocs", "nprocpernode", "processes", "world", "worldsize",
    "workers", "workernum", "numworkers", "device", "devices", "devicenum", "numdevices", "ndevices", "gpus", "numgpus",
    "ngpus",
))  # fmt: skip
"""Names of the number of ranks in MindSpore and other launchers, without dashes."""


def suggest_option(error: Any) -> None:
    """Add the intended option to the error of an unknown one if it is a name for the number of ranks: such names are
    not similar, so that the parser does not find them."""
    word = re.sub(r"[-_]", "", getattr(error, "option_name", None) or "").casefold()
    if word not in _WORDS_FOR_RANKS or not hasattr(error, "possibilities") or error.ctx is None:
        return
    meant = [parameter.opts[0] for parameter in error.ctx.command.params if parameter.name in _RANKS]
    if meant:
        alike = ("rank", "size")
        others = [n for n in error.possibilities or () if n not in meant and not any(word in n for word in alike)]
        error.possibilities = [*meant, *others]


class DeviceOption(StrEnum):
    """Values of `--device`."""

    AUTO = "auto"
    CPU = "cpu"
    GPU = "gpu"


Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Name each pass on stderr, with its effect and its time.")
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Say nothing but errors and results: no table, warnings, progress.")
]
StrategiesFile = Annotated[
    Path | None,
    typer.Option(
        "--strategies", metavar="FILE", help="A plan (of `mspc search --out`) or a strategy file; goes before shard()."
    ),
]
JsonFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table as JSON; - is stdout.")]
MachineName = Annotated[
    str, typer.Option(metavar="NAME|FILE", help="The machine: h200 (the default), h100, gb200, mi300x, or a TOML file.")
]
# Networks of PyTorch -----------------------------------------------------------------------------

EXPORTED = ".pt2"
"""Suffix of files with exported programs."""
STABLEHLO = ".mlir"
"""Suffix of texts of StableHLO."""
CONFIG = "config.json"
"""File that every folder of Hugging Face contains."""
MAGIC = b"PK\x03\x04"
"""First bytes of every archive."""


@dataclass(frozen=True)
class ImportOptions:
    """Options of the command line for a network of PyTorch, which the annotations of the fields declare.

    loss, optimizer, precision, accumulate: as in `Training`. sizes: symbols (`x.0`) with their numbers. torch: the
    target is a function that returns a module. load: a checkpoint with tensors that replace the weights. plan: a file
    with the sharding of layers, or `own` for the plan of the model itself. device: for which it is compiled, "cpu",
    "gpu" or "", else MspcError. jax: the target is a step that JAX has lowered, or a function that returns one.
    """

    loss: Annotated[
        str,
        typer.Option(
            metavar="NAME", show_default=False,
            help="Loss of model.pt2: cross_entropy or mse with labels as one more input, or a result's name.",
        ),
    ] = ""
    optimizer: Annotated[
        str,
        typer.Option(
            metavar="SPEC", show_default=False,
            help="Train model.pt2: 'adamw:lr=1e-4,max_norm=1', adam, sgd, adafactor or muon.",
        ),
    ] = ""
    plan: Annotated[
        str,
        typer.Option(
            metavar="FILE|own", show_default=False,
            help="Sharding of layers of model.pt2: styles, placements, or the model's own plan.",
        ),
    ] = ""
    precision: Annotated[
        str,
        typer.Option(
            metavar="TYPE", show_default=False,
            help="Precision of matmuls in model.pt2: tf32, bfloat16, float8, or float16 with a scaled loss.",
        ),
    ] = ""
    accumulate: Annotated[
        int, typer.Option(metavar="N", help="Gradients of N batches of model.pt2 are added up in a step.")
    ] = 1
    load: Annotated[
        Path | None, typer.Option(metavar="CKPT", help="Weights of model.pt2: safetensors, or any checkpoint.")
    ] = None
    torch: Annotated[
        bool, typer.Option("--torch", help="TARGET is 'model.py:make', which gives a module of PyTorch and its inputs.")
    ] = False
    jax: Annotated[
        bool, typer.Option("--jax", help="TARGET is 'step.py:lowered', the result of jax.jit(step).lower(...).")
    ] = False
    device: Annotated[
        str,
        typer.Option(
            metavar="cpu|gpu", show_default=False,
            help="Device for model.pt2 [cpu]; a script sets it by device_target.",
        ),
    ] = ""
    sizes: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if self.device not in ("", "cpu", "gpu"):
            raise MspcError(f"there is no --device {self.device!r:.60} to compile for", notes=["there are cpu and gpu"])

    @property
    def given(self) -> str:
        """The first option that is given, or "" if none is."""
        given = (each.name for each in fields(self) if getattr(self, each.name) != each.default)
        return next(("--size" if name == "sizes" else f"--{name}" for name in given), "")


NOTHING_SAID = ImportOptions()


def is_stablehlo(target: NamedTarget | Path) -> TypeGuard[Path]:
    """Return whether a target is a text of StableHLO, by its suffix."""
    return isinstance(target, Path) and target.suffix == STABLEHLO


def is_capture(target: NamedTarget | Path) -> TypeGuard[Path]:
    """Return whether a target is a folder of `mspc capture`."""
    return isinstance(target, Path) and os.path.isfile(target / "rank_0.step")


def is_imported(target: NamedTarget | Path) -> bool:
    """Return whether a target is an exported program (by its suffix, or an archive), a folder of Hugging Face, or a
    text of StableHLO."""
    if not isinstance(target, Path):
        return False
    if target.suffix in (EXPORTED, STABLEHLO) or os.path.isfile(target / CONFIG):
        return True
    if not os.path.isfile(target):  # opening a pipe, for example, could block forever
        return False
    try:
        with open(target, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


def target_name(target: NamedTarget | Path) -> str:
    """Return the name of a target in messages."""
    return str(target) if isinstance(target, Path) else f"{target.path}:{target.name}"


def check_seconds(option: str, seconds: float) -> float:
    """Return the same number. Raise MspcError if it is NaN, a limit that is never reached, or infinite."""
    if not math.isfinite(seconds):
        raise MspcError(f"{option} is {seconds}, not a number of seconds", code="E0105")
    return seconds


WRITTEN = ("json", "html", "out", "save", "save_outputs", "schedule", "trace", "out_torch", "out_jax")
"""Parameters that name an output file in every command."""


def check_outputs(command: Any) -> None:
    """Make a command of the parser, and its subcommands, check its output files before it works.

    It refuses to overwrite a file that it reads: a table would replace a script. A baseline may be renewed, and a
    checkpoint may be written to its own path. It also refuses a file of `--json` that cannot be written; the commands
    themselves check the other files.
    """
    for below in getattr(command, "commands", {}).values():
        check_outputs(below)
    called = command.callback
    written = (*WRITTEN, *(["profile"] if command.name == "run" else []))
    options = {p.name: p.opts[0] for p in command.params if p.name in written and p.opts[0].startswith("-")}

    def checked(**given: Any) -> Any:
        from mspc.ir.files.atomic_writing import check_writable  # late: `mspc --help` writes no files

        read = [value for name, value in given.items() if name not in options and name != "script_arguments"]
        for name, option in options.items():
            if isinstance(path := given.get(name), str | Path):
                _check_kept(option, Path(path), read)
                if name == "json" and Path(path) != Path("-"):
                    check_writable(Path(path), option)
        return called(**given)

    if called is not None and options:
        command.callback = checked


def _check_kept(option: str, path: Path, read: Sequence[Any]) -> None:
    """Raise MspcError if an output file is one of the input files. In an input folder, `--save` may overwrite the
    weights."""
    from mspc.runtime.program import PROGRAM, WEIGHTS

    kept = (PROGRAM, *([] if option == "--save" else [WEIGHTS]))
    flat = (each for value in read for each in (value if isinstance(value, list | tuple) else [value]))
    for text in (str(each) for each in flat if isinstance(each, str | Path)):
        places = [path, *([path.parent] if path.name in kept else [])]
        if any(_is_same(place, name) for place in places for name in (text, text.partition(":")[0])):
            raise MspcError(f"{option} {path} would replace an input of the command", notes=["give it another place"])


def _is_same(path: Path, text: str) -> bool:
    """Return whether both are the same existing file or folder."""
    try:
        return bool(text) and os.path.samefile(path, text)
    except (OSError, ValueError):
        return False


UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30,
         "TI": 1 << 40}  # fmt: skip
"""Bytes in a unit of sizes."""
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
"""Seconds in a unit of times."""
LARGEST_SHARE = 100.0


def size_of(text: str, name: str, least: int = 1) -> int:
    """Return the bytes in `80GB`, `512MiB` or `1000`. text: the size. name: of the option, for messages. least: the
    smallest valid number of bytes. Raise MspcError if the text is no size, or is out of bounds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKMGT]i?)?B?", text.strip(), re.ASCII)
    nbytes = float(found[1]) * UNITS[(found[2] or "").upper()] if found else -1.0
    if not least <= nbytes < 1 << 60:
        raise MspcError(f"{name} is {text!r}, not a size as in 80GB or 512MiB", code="E0105")
    return int(nbytes)


def numbers_of(text: str | None, mistake: str) -> tuple[int, ...]:
    """Return the distinct numbers in `8,16,64`; () for None. Raise MspcError with the message `mistake` for any other
    text."""
    if text is None:
        return ()
    found = [number_of(part, MAX_RANKS) for part in text.split(",")]
    if not all(found):
        raise MspcError(mistake)
    return tuple(number for number in dict.fromkeys(found) if number)


def seconds_of(text: str, name: str) -> float:
    """Return the seconds in `3ms`, `250 us` or `1.5s`. text: the time. name: of the option, for messages. Raise
    MspcError if the text is no time."""
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,12})?)\s*(s|ms|us|ns)", text.strip(), re.ASCII)
    if found is None:
        raise MspcError(f"{name} is {text!r}, not a time as in 3ms or 250us")
    return float(found[1]) * SECONDS[found[2]]


def share_of(text: str, name: str) -> float:
    """Return the number in `5%` or `0.05`. Raise MspcError if it is no share, or out of bounds."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,12})?)\s*(%?)", text.strip(), re.ASCII)
    share = float(found[1]) / (100 if found[2] else 1) if found else -1.0
    if not 0 <= share <= LARGEST_SHARE:
        raise MspcError(f"{name} is {text!r}, not a share as in 5% or 0.05", code="E0105")
    return share
