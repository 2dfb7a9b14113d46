"""CUDA C++ kernels, compiled on all cores in parallel until their first launch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from mspc.ops.device import source_text

_OPTIONS = ("--std=c++17",)
_WARP_GROUPS = "-arch=sm_90a"
"""Compiler option for kernels with instructions specific to sm_90a."""
_ORDINARY_SHARED = 48 << 10
"""Bytes of shared memory that a block gets without opting in."""
_MAX_THREADS = 16


class KernelCache:
    """Modules of a GPU, each source compiled once; CuPy caches them on disk by content.

    threads: maximum number of compiling threads. xp: CuPy. index: of the GPU among those visible to this process.
    """

    def __init__(self, xp: Any, index: int) -> None:
        self._xp = xp
        self._modules: dict[str, Future[Any]] = {}
        self._kernels: dict[tuple[str, str], LateKernel] = {}
        self.node: Any = None
        """Node for which launches are being made; errors of its kernels' compiler have it as `.node`."""
        self.threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)))
        self._pool = ThreadPoolExecutor(self.threads, "kernels", initializer=lambda: xp.cuda.Device(index).use())

    def kernel(self, source: str, name: str) -> LateKernel:
        """See `Device.kernel`. The compiler's errors are raised when the kernel is loaded."""
        kernel = self._kernels.get((source, name))
        if kernel is None:
            module = self._modules.get(source)
            if module is None:
                module = self._modules[source] = self._pool.submit(self._compiled, source, name)
            kernel = self._kernels[source, name] = LateKernel(module, name, self.node)
        return kernel

    def _compiled(self, source: str, name: str) -> Any:
        options = _OPTIONS if "wgmma" not in source else (*_OPTIONS, _WARP_GROUPS)
        module = self._xp.RawModule(code=source_text("ops/cuda/prelude.cuh") + source, options=options)
        module.get_function(name)  # CuPy compiles at the first request for a function
        return module

    def wait(self) -> None:
        """Return when all kernels are loaded: loading one disturbs a capture."""
        for kernel in self._kernels.values():
            kernel.load()


class LateKernel:
    """Kernel whose first launch waits until it is compiled."""

    __slots__ = ("_function", "_module", "_name", "_node")

    def __init__(self, module: Future[Any], name: str, node: Any) -> None:
        self._module, self._name, self._node = module, name, node
        self._function: Any = None

    def load(self) -> Any:
        """Wait for the compilation and return the function."""
        if self._function is None:
            try:
                self._function = self._module.result().get_function(self._name)
            except Exception as error:
                error.node = self._node  # type: ignore[attr-defined]  # for the message
                raise
        return self._function

    def __call__(self, grid: int | tuple[int, ...], block: int, arguments: Sequence[Any], shared: int = 0) -> None:
        function = self._function or self.load()
        if shared > _ORDINARY_SHARED and function.max_dynamic_shared_size_bytes < shared:
            function.max_dynamic_shared_size_bytes = shared
        function((grid,) if isinstance(grid, int) else grid, (block,), tuple(arguments), shared_mem=shared)
