"""Compile C++ functions into shared libraries, which stay on disk for the next start.

A library's name is made of everything that it depends on: the source, the compiler's version, its flags and the
processor. After the library's own bytes the file has their checksum, as the system would load a damaged one.
"""

from __future__ import annotations

import _ctypes
import contextlib
import ctypes
import fcntl
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import cache_folder, drop_oldest, make_cache_folder, read_own, write_private

FLAGS = (
    "-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd", "-fno-exceptions",
    "-fno-rtti", "-fPIC", "-shared", "-w",
)  # fmt: skip
WIDE = "-mprefer-vector-width=512"
"""Flag for 512-bit vectors, of which compilers use half by default: steps of small networks take 5 to 10 % less
time."""
SWITCH = "MSPC_COMPILED_LOOPS"
"""The variable of the environment that is 0 to disable compiling."""
_NAMES = ("c++", "g++", "clang++")
_LIMIT_S = 120.0
_LIBRARY_FUNCTIONS = 12
"""Functions of a library: several libraries are compiled at the same time."""
_MAX_COMPILERS = 4
_DIGEST = 32
MAX_BYTES = 256 << 20
"""Bytes of all libraries on disk. Beyond that the least recently used ones are removed."""

Function = Callable[..., None]


class CompilerFailed(Exception):
    """The compiler made no library; the text is its message."""


def compiler() -> tuple[str, ...]:
    """Return the command of the C++ compiler, () if there is none or compilation is disabled."""
    if os.environ.get(SWITCH, "1") == "0":
        return ()
    for text in (os.environ.get("CXX", ""), *_NAMES):
        try:
            words = shlex.split(text)
        except ValueError:
            continue
        if words and shutil.which(words[0]):
            return tuple(words)
    return ()


def functions_of(sources: Mapping[str, str], prelude: str, alone: Collection[str] = ()) -> dict[str, Function]:
    """Return the compiled functions of a program.

    sources: C++ that defines each function, by name, optionally with one of this name and `_end` appended. alone: names
    of functions with libraries of their own, which other programs find on disk. Raise CompilerFailed if there are none,
    for a reason that is worth a warning.
    """
    command = compiler()
    names = sorted(name for name in sources if name not in alone)
    count = max(1, min(_MAX_COMPILERS, len(names) // _LIBRARY_FUNCTIONS))
    groups = [*([name] for name in sorted(alone)), *(names[i::count] for i in range(count if names else 0))]
    groups.sort(key=lambda group: -sum(len(sources[name]) for name in group))  # the longest first: others fill the gaps

    def made(group: Sequence[str]) -> ctypes.CDLL:
        ends = [f"{name}_end" for name in group if f"{name}_end(" in sources[name]]
        return library_of(command, prelude + "".join(sources[name] for name in group), [*group, *ends])

    from concurrent.futures import ThreadPoolExecutor  # late: a compile for no run needs none

    with ThreadPoolExecutor(min(len(groups), os.cpu_count() or 1)) as pool:
        libraries = list(pool.map(made, groups))
    found: dict[str, Function] = {}
    for group, library in zip(groups, libraries, strict=True):
        for name in group:
            found[name] = _declared(library, name, 3)
            if f"{name}_end(" in sources[name]:
                found[f"{name}_end"] = _declared(library, f"{name}_end", 1)
    return found


def _declared(library: ctypes.CDLL, name: str, count: int) -> Function:
    function = getattr(library, name)
    function.argtypes = [ctypes.c_void_p, *[ctypes.c_longlong] * (count - 1)]
    function.restype = None
    return function


def library_of(command: tuple[str, ...], source: str, names: Sequence[str]) -> ctypes.CDLL:
    """Return the library of a source, from disk or compiled now. names: of functions in it. Raises CompilerFailed."""
    key = hashlib.sha256("\0".join([source, *command, *_flags(), _version(command), _processor()]).encode()).hexdigest()
    folder = cache_folder("loops")
    if folder is None:
        return _compile_library(command, source, names, None)
    path = folder / f"{key}.so"
    found = _stored(path, names)
    if found is not None:
        return found
    with contextlib.ExitStack() as stack:
        if _waited(stack, path.with_suffix(".lock")):
            found = _stored(path, names)
        found = found or _compile_library(command, source, names, path)
    return found


def _waited(stack: contextlib.ExitStack, path: Path) -> bool:
    """Be the only one that compiles this until the stack is left, as ranks of a job ask for the same at once; False if
    the folder is not writable."""
    try:
        make_cache_folder(path.parent)
        file = stack.enter_context(open(path, "wb"))
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:
        return False
    stack.callback(path.unlink, missing_ok=True)
    return True


def _stored(path: Path, names: Sequence[str]) -> ctypes.CDLL | None:
    """Return the library of a file; None if it is missing, damaged, or another user may have written it."""
    content = read_own(path)
    if content is None or hashlib.sha256(content[:-_DIGEST]).digest() != content[-_DIGEST:]:
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # it was used now
    return _loaded(path, names)


def _compile_library(command: tuple[str, ...], source: str, names: Sequence[str], path: Path | None) -> ctypes.CDLL:
    """Compile a library and store it on disk if possible. Raise CompilerFailed."""
    with tempfile.TemporaryDirectory(prefix="mspc_loops_") as folder:
        made = _compiled(command, source, Path(folder))
        found = _loaded(_store(made, path) or made, names)  # if it is not cached, it serves this process only
    if found is None:
        raise CompilerFailed("the library that it made cannot be loaded, or lacks a function")
    return found


def _store(made: Path, path: Path | None) -> Path | None:
    """Store a library with its checksum and return its path; None if the folder is full or read-only."""
    library = made.read_bytes()
    try:
        if path is not None:
            write_private(path, library + hashlib.sha256(library).digest())
            drop_oldest(path.parent, path.suffix, MAX_BYTES)
    except (OSError, MspcError):
        return None
    return path


def _loaded(path: Path, names: Sequence[str]) -> ctypes.CDLL | None:
    """Load a library that has all these functions; None if it cannot be loaded or lacks one."""
    try:
        found = ctypes.CDLL(str(path))
    except OSError:
        return None
    if all(hasattr(found, name) for name in names):
        return found
    _ctypes.dlclose(found._handle)  # else the library that replaces this one would not be loaded: they share a path
    return None


def _compiled(command: tuple[str, ...], source: str, folder: Path) -> Path:
    """Compile a source in a folder. Raises CompilerFailed."""
    text, made = folder / "loops.cpp", folder / "loops.so"
    text.write_text(source, encoding="utf-8")
    try:
        done = subprocess.run(
            [*command, *_flags(), "-o", str(made), str(text)],
            capture_output=True, text=True, errors="replace", timeout=_LIMIT_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilerFailed(str(error)) from None
    if done.returncode or not made.is_file():
        said = re.sub(re.escape(str(folder)) + r"/?", "", done.stderr).strip().splitlines()
        errors = [line for line in said if "error" in line] or said or [f"it ended with status {done.returncode}"]
        raise CompilerFailed(errors[0])
    return made


def _flags() -> tuple[str, ...]:
    return (*FLAGS, WIDE) if re.search(r"\bavx512f\b", _processor()) else FLAGS


@functools.cache
def _version(command: tuple[str, ...]) -> str:
    """Return the compiler's description of itself. Raises CompilerFailed."""
    try:
        done = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, errors="replace", timeout=_LIMIT_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilerFailed(str(error)) from None
    return done.stdout


@functools.cache
def _processor() -> str:
    """Return a description of this processor: `native` means its instructions."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    first = text.split("\n\n")[0]
    return "\n".join(line for line in first.splitlines() if re.match(r"(model name|flags|Features|CPU part)\s*:", line))


@functools.cache
def warn_compiler_failed(command: tuple[str, ...], reason: str) -> None:
    """Warn once that the compiler fails, and that only speed is lost."""
    text = f"the C++ compiler {shlex.join(command)} fails, and loops run through NumPy: {reason}"
    print(f"warning: {text} ({SWITCH}=0 does without it)", file=sys.stderr, flush=True)
