"""Compiles, runs and proofs of scripts, and all that their calls take, in one import."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.report.verbosity import Loudness
from mspc.commands.run import run_directory, run_script
from mspc.commands.verify import verify_scale, verify_target
from mspc.compiler.config import Config
from mspc.compiler.driver import Compiled, DumpPoint, compile_call
from mspc.engine.capture import capture
from mspc.mindspore_api.state import Session
from mspc.output.programs import config_of

__all__ = [
    "CompileOptions", "Compiled", "Config", "Loudness", "compile_call", "compile_target", "compiled_script",
    "compiled_text", "run_directory", "run_script", "verify_scale", "verify_target", "verify_text",
]  # fmt: skip
QUIET = Loudness(quiet=True)
NETWORKS = Path(__file__).resolve().parent.parent / "benchmarks" / "networks"


def compiled_script(
    script: Path, ranks: int, *arguments: str, device: str = "", look: Callable[[DumpPoint], None] | None = None
) -> Compiled:
    """Return the compile of the call of a network in a script. device: in place of the script's own."""
    captured = capture(script, list(arguments), Session.of_rank(0, ranks))
    config = config_of(captured, ranks)
    return compile_call(captured.target, captured.args, replace(config, device=device or config.device), look)


def compiled_text(folder: Path, text: str, ranks: int, *arguments: str) -> Compiled:
    """Return the same of a script with this text, which is written to a folder."""
    script = folder / "net.py"
    script.write_text(text, encoding="utf-8")
    return compiled_script(script, ranks, *arguments)


def verify_text(folder: Path, text: str, options: CompileOptions | None = None, seed: int = 1) -> None:
    """Compare such a script's ranks with one device, as `mspc verify` does."""
    script = folder / "net.py"
    script.write_text(text, encoding="utf-8")
    verify_target(str(script), options or CompileOptions(), seed)
