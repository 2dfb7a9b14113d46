"""A `Device` without a GPU: kernels are compiled by g++ and every thread of a block really runs, as a fiber.

Barriers and shuffles switch between fibers; a kernel in which threads wait for others that never come is an error.
All kernels asked for are compiled together at the first launch, so that operators are prepared first and run then.
"""

from __future__ import annotations

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

from mspc.ops.math.matmul import BatchMatMul
from mspc.ops.source_files import source_text
from tests.ops.cuda.cuda_stand_ins import without_tensor_cores
from tests.ops.cuda.product_epilogues import gelu, gelu_slope

NEEDED = shutil.which("g++")
NVCC = shutil.which("nvcc")
Place = tuple[Any, int]
"""Where a kernel is: its library, and its number there."""
BUILT: dict[str, bytes] = {}
"""Libraries that tests of this process have compiled, by their text."""
KNOWN: dict[tuple[Any, ...], Place] = {}
"""Where kernels are that tests of this process have had, by all that says what they do. Their libraries hold state, but
blocks run one after the other, and nothing of one is left for the next."""
BUILDING = threading.Lock()
"""Simulated ranks are threads: what one compiles the others find."""

COMMAND = ("g++", "-std=c++17", "-O0", "-w", "-fPIC", "-U_FORTIFY_SOURCE", "-fno-exceptions", "-fno-rtti",
           "-fno-asynchronous-unwind-tables")  # fmt: skip
"""Nothing is thrown: what unwinds a stack takes a sixth of the time."""
HEADERS = """
#include <cmath>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <deque>
#include <ucontext.h>
#include <utility>
"""
SHIM = r"""
// What runs most, worth more of the compiler's time than kernels are.
#define QUICK __attribute__((optimize("O1")))
#define __device__
#define __global__ static
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
struct Place { unsigned int x, y, z; };
static Place threadIdx, blockIdx, blockDim, gridDim;

static float from_f16(unsigned short bits) { _Float16 h; std::memcpy(&h, &bits, 2); return (float)h; }
static unsigned short to_f16(float v) {
    _Float16 h = (_Float16)v; unsigned short bits; std::memcpy(&bits, &h, 2); return bits;
}
static unsigned short to_bf16(float v) {
    unsigned int bits; std::memcpy(&bits, &v, 4);
    if (v != v) return 0x7fff;
    return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static unsigned int __float_as_uint(float v) { unsigned int bits; std::memcpy(&bits, &v, 4); return bits; }
static inline float __uint_as_float(unsigned int v) { float r; std::memcpy(&r, &v, 4); return r; }
static inline float __int_as_float(int v) { float r; std::memcpy(&r, &v, 4); return r; }
static inline unsigned int __funnelshift_r(unsigned int low, unsigned int high, int shift) {
    return (unsigned int)(((unsigned long long)high << 32 | low) >> (shift & 31));
}
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline long long __double_as_longlong(double v) { long long r; std::memcpy(&r, &v, 8); return r; }
static inline double __longlong_as_double(long long v) { double r; std::memcpy(&r, &v, 8); return r; }
static inline unsigned int __umulhi(unsigned int a, unsigned int b) { return (unsigned long long)a * b >> 32; }
static inline float rsqrt(float v) { return 1 / std::sqrt(v); }
static inline double rsqrt(double v) { return 1 / std::sqrt(v); }
using std::acos; using std::acosh; using std::asin; using std::asinh; using std::atan; using std::atan2;
using std::atanh;
using std::ceil; using std::copysign; using std::cos; using std::cosh; using std::erf; using std::erfc; using std::exp;
using std::expm1; using std::floor; using std::fmod; using std::hypot; using std::log; using std::log1p; using std::pow;
using std::min; using std::rint; using std::sin; using std::sinh; using std::sqrt; using std::tan;
using std::tanh; using std::trunc;
// A handle of a conditional node is the address of its value.
extern "C" void cudaGraphSetConditional(unsigned long long handle, unsigned int value) {
    *(unsigned int*)handle = value;
}
static long long clock_nanoseconds() {
    timespec now; clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}
static inline int __popc(unsigned int v) { return __builtin_popcount(v); }
static inline double __dadd_rn(double a, double b) { volatile double r = a + b; return r; }
static inline double __dmul_rn(double a, double b) { volatile double r = a * b; return r; }

// A copy to shared memory is made as late as it may be, or at once.
extern "C" int eager_copies;
int eager_copies = 0;
namespace copies {
struct Copy { unsigned char* to; const void* from; int bytes; unsigned int group; };
static std::deque<Copy> waiting[1024];
static unsigned int closed[1024];
static void make(const Copy& one) { std::memcpy(one.to, one.from, one.bytes); }
}
typedef unsigned char* Shared;
static Shared shared_at(void* memory) { return (Shared)memory; }
template <int BYTES> static void start_copy(Shared to, const void* from) {
    if (((unsigned long long)to | (unsigned long long)from) % BYTES) __builtin_trap();
    const copies::Copy one = {to, from, BYTES, copies::closed[threadIdx.x]};
    if (eager_copies || BYTES < 4) copies::make(one);
    else copies::waiting[threadIdx.x].push_back(one);
}
static void close_copies() { ++copies::closed[threadIdx.x]; }
template <int LEFT> static void await_copies() {
    auto& waiting = copies::waiting[threadIdx.x];
    for (; !waiting.empty() && waiting.front().group + LEFT < copies::closed[threadIdx.x]; waiting.pop_front())
        copies::make(waiting.front());
}

namespace fibers {
enum State { READY, AT_BLOCK, AT_WARP, DONE };
struct Fiber { ucontext_t start; jmp_buf point; State state; bool begun; unsigned int shuffles; };
static Fiber all[1024];
__attribute__((visibility("default"))) inline char* stacks[1024];  // of all libraries of a process
static ucontext_t home;
static jmp_buf home_point;
static unsigned int now;
static unsigned long long slots[2][1024];
static int votes[2], vote_rounds[1024];
static void (*kernel)();
static void (*call)(void (*)(), void**);
static void** given;

QUICK static void wait(State state) {
    all[now].state = state;
    if (!_setjmp(all[now].point)) _longjmp(home_point, 1);
}
static void body() {
    for (;;) {  // block after block
        call(kernel, given);
        wait(DONE);
    }
}
QUICK static void resume(unsigned int t) {
    now = t; threadIdx = {t, 0, 0};
    if (_setjmp(home_point)) return;
    if (all[t].begun) _longjmp(all[t].point, 1);
    all[t].begun = true;
    swapcontext(&home, &all[t].start);
}
static const unsigned int STACK = 65536, GUARD = 4096;
static char untouched[GUARD];
// Before the first block of a launch.
static void begin(unsigned int threads) {
    for (unsigned int t = 0; t < threads; ++t) {
        Fiber& f = all[t];
        if (!stacks[t]) std::memset(stacks[t] = new char[GUARD + STACK], 0, GUARD);
        getcontext(&f.start);
        f.start.uc_stack.ss_sp = stacks[t] + GUARD; f.start.uc_stack.ss_size = STACK; f.start.uc_link = nullptr;
        makecontext(&f.start, body, 0);
        f.begun = false;
    }
}
// Behind the last one: 2 where a thread took more than its stack.
static int end(unsigned int threads) {
    int status = 0;
    for (unsigned int t = 0; t < threads; ++t)
        if (std::memcmp(stacks[t], untouched, GUARD)) status = 2, std::memset(stacks[t], 0, GUARD);
    return status;
}
// Run one block; 1 where its threads wait for each other for ever.
QUICK static int block(unsigned int threads) {
    for (unsigned int t = 0; t < threads; ++t) {
        all[t].state = READY; all[t].shuffles = 0; vote_rounds[t] = 0;
        copies::waiting[t].clear(); copies::closed[t] = 0;
    }
    votes[0] = votes[1] = 0;
    for (;;) {
        bool moved = false;
        unsigned int done = 0, waiting = 0;
        for (unsigned int w = 0; w < threads; w += 32)
            for (bool again = true; again;) {
                again = false;
                unsigned int at_warp = 0;
                for (unsigned int t = w; t < w + 32 && t < threads; ++t) {
                    if (all[t].state == READY) { resume(t); moved = true; }
                    at_warp += all[t].state == AT_WARP;
                }
                if (at_warp == 32) {
                    for (unsigned int t = w; t < w + 32; ++t) all[t].state = READY;
                    again = true;
                }
            }
        for (unsigned int t = 0; t < threads; ++t) {
            done += all[t].state == DONE;
            waiting += all[t].state == AT_BLOCK;
        }
        if (done == threads) return 0;
        if (waiting == threads) {
            for (unsigned int t = 0; t < threads; ++t) all[t].state = READY;
        } else if (!moved) {
            return 1;
        }
    }
}
}  // namespace fibers

static inline void __syncthreads() { fibers::wait(fibers::AT_BLOCK); }
static inline int __syncthreads_or(int v) {
    const int round = fibers::vote_rounds[threadIdx.x]++ & 1;
    if (v) fibers::votes[round] = 1;
    fibers::wait(fibers::AT_BLOCK);
    const int found = fibers::votes[round];
    fibers::wait(fibers::AT_BLOCK);
    fibers::votes[round] = 0;
    return found;
}
static inline unsigned int atomicAdd(unsigned int* p, unsigned int v) { return __sync_fetch_and_add(p, v); }
static inline int atomicMax(int* p, int v) { const int before = *p; if (v > before) *p = v; return before; }
static inline void __threadfence_system() { __sync_synchronize(); }
QUICK static inline void __syncwarp() { fibers::wait(fibers::AT_WARP); }
template <class V> static unsigned long long* exchange(V v) {
    static_assert(sizeof(V) == 4 || sizeof(V) == 8, "what shuffles take");
    const unsigned int me = threadIdx.x;
    unsigned long long* slots = fibers::slots[fibers::all[me].shuffles++ & 1];
    std::memcpy(&slots[me], &v, sizeof v);
    fibers::wait(fibers::AT_WARP);
    return slots + (me & ~31u);
}
template <class V> static V __shfl_xor_sync(unsigned int, V v, int offset) {
    unsigned long long* warp = exchange(v);
    std::memcpy(&v, &warp[(threadIdx.x & 31) ^ offset], sizeof v);
    return v;
}
template <class V> static V __shfl_sync(unsigned int, V v, int lane) {
    unsigned long long* warp = exchange(v);
    std::memcpy(&v, &warp[lane & 31], sizeof v);
    return v;
}
static inline unsigned int __ballot_sync(unsigned int, int v) {
    unsigned long long* warp = exchange((int)!!v);
    unsigned int bits = 0;
    for (int i = 0; i < 32; ++i) bits |= (unsigned int)(warp[i] & 1) << i;
    return bits;
}

// How a kernel is called, for each list of parameters: what depends on it is as little code as may be.
using Function = void (*)();
template <class... A> struct Call {
    template <std::size_t... I> static void with(Function kernel, void** given, std::index_sequence<I...>) {
        ((void (*)(A...))kernel)(*(std::remove_reference_t<A>*)given[I]...);
    }
    static void now(Function kernel, void** given) { with(kernel, given, std::index_sequence_for<A...>()); }
};
static int launch(Function kernel, void (*call)(Function, void**), bool waits, const unsigned int* grid,
                  unsigned int threads, void** given) {
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {threads, 1, 1};
    fibers::kernel = kernel; fibers::call = call; fibers::given = given;
    if (waits) fibers::begin(threads);
    for (unsigned int z = 0; z < grid[2]; ++z) for (unsigned int y = 0; y < grid[1]; ++y)
        for (unsigned int x = 0; x < grid[0]; ++x) {
            blockIdx = {x, y, z};
            if (waits) {
                if (const int status = fibers::block(threads)) return status;
            } else {
                for (unsigned int t = 0; t < threads; ++t) { threadIdx = {t, 0, 0}; call(kernel, given); }
            }
        }
    return waits ? fibers::end(threads) : 0;
}
template <class... A>
static int run(void (*kernel)(A...), bool waits, const unsigned int* grid, unsigned int threads, void** given) {
    return launch((Function)kernel, Call<A...>::now, waits, grid, threads, given);
}
"""


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


_STAND_INS = """
template <class T> static void narrow_two(T* to, float low, float high) {
    to[0] = narrow<T>(low);
    to[1] = narrow<T>(high);
}
"""


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

    def asking(self, arrays: Any, run: Callable[..., None], ahead: Any = None) -> Any:
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
                library = self.loaded(missing) if missing else None
                KNOWN.update({self._known(key): (library, place) for key, place in missing.items()})
            self.places = {place: KNOWN[self._known(key)] for key, place in self.sources.items()}
        return self.places[number]

    def _known(self, key: tuple[str, str]) -> tuple[Any, ...]:
        """The stand-in for a kernel in KNOWN."""
        return (*key, self.shared, self.eager)

    def loaded(self, sources: Mapping[tuple[str, str], int]) -> Any:
        """A library of these kernels."""
        found = ctypes.PyDLL(str(self.build(sources)))
        ctypes.c_int.in_dll(found, "eager_copies").value = self.eager
        return found

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
        made = hashlib.sha256(text.encode()).hexdigest()
        path = self.folder / f"kernels_{made[:16]}.so"
        if made not in BUILT:
            path.with_suffix(".cpp").write_text(text)
            compile_cpp("-shared", "-include", headers(), "-o", str(path), str(path.with_suffix(".cpp")))
            BUILT[made] = path.read_bytes()
        path.write_bytes(BUILT[made])
        return path


def compile_cpp(*arguments: str) -> None:
    done = subprocess.run([*COMMAND, *arguments], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


@cache
def headers() -> str:
    """The headers that all libraries include, compiled once for all tests of this process: most of what a small library
    takes."""
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
