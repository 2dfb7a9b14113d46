"""A `Device` without a GPU: kernels are compiled by g++ and every thread of a block really runs, as a fiber.

Barriers and shuffles switch between fibers; a kernel in which threads wait for others that never come is an error.
All kernels asked for are compiled together at the first launch, so that operators are prepared first and run then.
Libraries stay in the user's cache folder by their text, for other processes and later runs.
"""

import atexit
import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mspc.ir.files.atomic_writing import cache_folder, drop_oldest, make_cache_folder, read_own, write_private
from mspc.ops.cpu.loops.library import MAX_BYTES, _version
from mspc.ops.device import source_text
from mspc.ops.math.matmul import BatchMatMul
from tests.ops.cuda.cuda_stand_ins import without_tensor_cores
from tests.ops.cuda.product_epilogues import gelu, gelu_slope
from tests.texts import text_of

TEXTS = Path(__file__).with_name("cuda_emulator.cpp")

NEEDED = shutil.which("g++")
NVCC = shutil.which("nvcc")
Place = tuple[Any, int]
"""Where a kernel is: its library, and its number there."""
KNOWN: dict[tuple[Any, ...], Place] = {}
"""Where kernels are that tests of this process have had, by all that says what they do. Their libraries hold state, but
blocks run one after the other, and nothing of one is left for the next."""
BUILDING = threading.Lock()
"""Simulated ranks are threads: what one compiles the others find."""

COMMAND = ("g++", "-std=c++17", "-O0", "-w", "-fPIC", "-U_FORTIFY_SOURCE", "-fno-exceptions", "-fno-rtti",
           "-fno-asynchronous-unwind-tables")  # fmt: skip
"""Nothing is thrown: what unwinds a stack takes a sixth of the time."""
HEADERS = text_of(TEXTS, "headers")
SHIM = text_of(TEXTS, "shim")


def aligned(nbytes: int, shift: int = 0) -> Any:
    """Bytes that begin `shift` behind a multiple of 256, as memory of a GPU does; read as floats they are NaN."""
    memory = np.full(nbytes + shift + 512, 0xFF, np.uint8)
    begin = -memory.ctypes.data % 256 + shift
    return memory[begin : begin + nbytes]


def placed(array: Any, shift: int = 0) -> Any:
    """A copy that begins `shift` bytes behind a multiple of 256."""
    found = aligned(array.nbytes, shift).view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


_STAND_INS = text_of(TEXTS, "stand_ins")


QUICKLY = ("-Xcicc", "-O0", "-Xptxas", "-O0")
"""Options of nvcc where it only matters that kernels compile."""


def compiled_by_nvcc(folder: Path, sources: Iterable[str], *options: str, architecture: str = "90") -> str:
    """Compile kernels for an H200, each in a namespace of its own and without macros of others; nvcc's messages."""
    parts = [source_text("ops/cuda/prelude.cuh")]
    for number, source in enumerate(sources):
        parts += [f"namespace k{number} {{", source.replace('extern "C" __global__', "__global__"), "}"]
        parts += [f"#undef {name}" for name in dict.fromkeys(re.findall(r"#define (\w+)", source))]
    path = folder / "kernels.cu"
    path.write_text("\n".join(parts), encoding="utf-8")
    target = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    command = [str(NVCC), "-std=c++17", target, "-cubin", *options, "-o", str(path.with_suffix(".cubin")), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    return done.stderr


class Emulator:
    """See `mspc.ops.device.Device`. Few multiprocessors, so that small tensors take the ways of large ones. Products of
    matrices are NumPy's."""

    xp = np
    comm = None
    deterministic = True
    tf32 = False
    warp_groups = False
    block_memory = 227 << 10
    shared = ""  # C++ that stands once before all kernels
    takes_gaps = False  # whether arrays may have gaps between their rows
    eager = False  # whether copies to shared memory are made at once, else when they are waited for

    def __init__(self, folder: Path, multiprocessors: int = 2, step: int = 3) -> None:
        self.folder = folder
        self.multiprocessors = multiprocessors
        self.step = np.array([step], np.int64)
        self.stop = np.zeros(1, np.int32)
        self.sources: dict[tuple[str, str], int] = {}
        self.places: dict[int, Place] = {}
        self._scratch = aligned(1 << 20)

    def copy(self, source: Any, target: Any) -> None:
        target[...] = source

    def same(self, first: Any, second: Any) -> bool:
        return first.ctypes.data == second.ctypes.data

    def scratch(self, nbytes: int) -> Any:
        if nbytes > self._scratch.nbytes:
            self._scratch = aligned(nbytes)
        return self._scratch[:nbytes]

    def matmul(self, x: Any, y: Any, out: Any, transpose_a: bool, transpose_b: bool, *, addend: Any = None,
               bias: Any = None, activation: str = "", before: Any = None) -> Any:  # fmt: skip
        for array in (x, y, out):
            assert array.flags.c_contiguous or self.takes_gaps
        assert x.dtype == y.dtype
        wide = np.float64 if out.dtype == np.float64 else np.float32
        product = BatchMatMul(transpose_a, transpose_b).kernel(self)

        def launch() -> None:
            found = product(x.astype(wide), y.astype(wide))
            for other in (addend, bias):
                if other is not None:
                    found = found + other.astype(wide)
            if activation == "gelu" and before is not None:
                before[...] = found
            if activation == "gelu":
                found = gelu(found)
            if activation == "gelu_gradient":
                found = found * gelu_slope(before.astype(wide))
            out[...] = found

        return launch

    def products_of_rows(self, x: Any, y: Any, out: Any, *, transpose_b: bool = False, outer: bool = False) -> Any:
        assert x.dtype == y.dtype == out.dtype
        wide = np.float64 if out.dtype == np.float64 else np.float32

        def multiply(runs: Any) -> None:
            found = np.zeros(out.shape, wide)
            for matrix, rows in runs:
                if outer:
                    found[matrix] += x[rows].astype(wide).T @ y[rows].astype(wide)
                else:
                    found[rows] = x[rows].astype(wide) @ (y[matrix].T if transpose_b else y[matrix]).astype(wide)
            out[...] = found

        return multiply

    def host_query(self, arrays: Any, run: Callable[..., None], ahead: Any = None) -> Any:
        def launch() -> None:
            if ahead is not None:
                ahead()
            run(*(np.array(array) for array in arrays))

        return launch

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return aligned(int(np.prod(shape)) * np.dtype(dtype).itemsize).view(dtype).reshape(shape)

    def stood_in(self, source: str) -> str:
        """A kernel as g++ takes it."""
        return without_tensor_cores(source)

    def kernel(self, source: str, name: str) -> Any:
        source = self.stood_in(source)
        number = self.sources.setdefault((source, name), len(self.sources))
        waits = any(word in source for word in ("__sync", "__shfl", "__ballot", "over_"))

        def call(grid: Any, block: int, arguments: Sequence[Any], shared: int = 0) -> None:
            self._call(number, waits, (grid, 1, 1) if isinstance(grid, int) else grid, block, arguments)

        return call

    def _call(self, number: int, waits: bool, grid: Any, block: int, arguments: Sequence[Any]) -> None:
        assert waits is False or block % 32 == 0
        assert grid[1] < 65536
        assert grid[2] < 65536
        library, place = self.library(number)
        cells: list[Any] = []
        for argument in arguments:
            if isinstance(argument, np.ndarray):
                assert argument.flags.c_contiguous or self.takes_gaps
                cells.append(ctypes.c_void_p(argument.ctypes.data))
            else:
                cells.append(np.ctypeslib.as_ctypes(np.array(argument)))
        given = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))
        function = getattr(library, f"run_{place}")
        status = function(int(waits), (ctypes.c_uint * 3)(*grid), block, given)
        name = list(self.sources)[number][1]
        assert status != 1, f"threads wait for ever in {name}"
        assert status == 0, f"a thread of {name} took more than its stack: memory of this process may be damaged"

    def library(self, number: int) -> Place:
        """Where a kernel is. Those that nobody has had are compiled together when the first of them is needed."""
        if number not in self.places:
            with BUILDING:
                missing = {key: place for key, place in self.sources.items() if self._known(key) not in KNOWN}
                if missing:
                    library = ctypes.PyDLL(str(self.build(missing)))
                    ctypes.c_int.in_dll(library, "eager_copies").value = self.eager
                    KNOWN.update({self._known(key): (library, place) for key, place in missing.items()})
            self.places = {place: KNOWN[self._known(key)] for key, place in self.sources.items()}
        return self.places[number]

    def _known(self, key: tuple[str, str]) -> tuple[Any, ...]:
        """The stand-in for a kernel in KNOWN."""
        return (*key, self.shared, self.eager)

    def build(self, sources: Mapping[tuple[str, str], int]) -> Path:
        """Compile kernels."""
        text = SHIM + emulated(source_text("ops/cuda/prelude.cuh") + self.shared)
        for (source, name), number in sources.items():
            body = emulated(source).replace('extern "C" __global__', "__global__")
            macros = "".join(f"#undef {name}\n" for name in dict.fromkeys(re.findall(r"#define (\w+)", body)))
            text += (
                f"namespace k{number} {{\n{body}\n}}\n"
                f'extern "C" int run_{number}(int waits, const unsigned int* grid, unsigned int threads, '
                "void** given) { "
                f"return run(k{number}::{name}, waits, grid, threads, given); }}\n{macros}"
            )
        made = hashlib.sha256("\0".join((text, HEADERS, _version(COMMAND[:1]), *COMMAND)).encode()).hexdigest()
        path = self.folder / f"kernels_{made[:16]}.so"  # of its own: a library holds state
        stored = (cache_folder("emulated_kernels") or self.folder) / f"{made}.so"
        if (library := read_own(stored)) is None:
            path.with_suffix(".cpp").write_text(text)
            compile_cpp("-shared", "-include", headers(), "-o", str(path), str(path.with_suffix(".cpp")))
            library = path.read_bytes()
            make_cache_folder(stored.parent)
            write_private(stored, library)
            drop_oldest(stored.parent, ".so", MAX_BYTES)
        path.write_bytes(library)
        return path


def compile_cpp(*arguments: str) -> None:
    done = subprocess.run([*COMMAND, *arguments], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


@cache
def headers() -> str:
    """The headers that all libraries include, compiled once for a process: most of the time of a small library."""
    folder = tempfile.mkdtemp(prefix="headers_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder, "headers.h")
    path.write_text(HEADERS)
    compile_cpp("-x", "c++-header", "-o", f"{path}.gch", str(path))
    return str(path)


def emulated(source: str) -> str:
    """CUDA C++ with its PTX replaced by C++."""
    source = source.replace(source_text("ops/cuda/copy_instructions.cuh"), _STAND_INS)
    source = re.sub(r"extern __shared__ unsigned char memory\[\]", "unsigned char memory[227 << 10]", source)
    source = re.sub(r'asm\("ex2\.[^"]*" : "=f"\((\w+)\) : "f"\((\w+)\)\);', r"\1 = exp2f(\2);", source)
    source = re.sub(r'asm\("rcp\.[^"]*" : "=f"\((\w+)\) : "f"\((\w+)\)\);', r"\1 = 1 / \2;", source)
    source = re.sub(r'asm\("cvt\.f32\.f16 [^"]*" : "=f"\((\w+)\) : "h"\(([\w.]+)\)\);', r"\1 = from_f16(\2);", source)
    source = re.sub(r'asm volatile\("[^"]*globaltimer;" : "=l"\((\w+)\)\);', r"\1 = clock_nanoseconds();", source)
    return re.sub(
        r'asm\("cvt\.rn\.(b?f16)\.f32 [^"]*" : "=h"\(([\w.]+)\) : "f"\((\w+)\)\);', r"\2 = to_\1(\3);", source
    )
