"""The machine that costs are reckoned for: how fast it computes, reads and writes, and sends between ranks.

One description serves all that asks what is cheaper: the order of a step's nodes, what runs beside a collective, the
report. Other machines differ, but what is decided by it is right on all of them: only the order of independent nodes,
and the same one on every rank, since nothing is measured when it is decided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from mspc.ir.types import DType


@dataclass(frozen=True, slots=True)
class Link:
    """What joins ranks. latency: seconds of a collective of no bytes. bandwidth: bytes per second that a rank sends."""

    latency: float
    bandwidth: float

    def seconds(self, nbytes: float) -> float:
        """Time of a collective in which a rank sends so many bytes."""
        return self.latency + nbytes / self.bandwidth


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates and latencies of one kind of machine.

    name: for people. products: floating-point operations of matrix products per second, by the name of the element
    type. other_products: the same for element types that are not in it. memory: bytes per second that an operator reads
    and writes. kernel: seconds between the begins of two kernels that do nothing. link: joins the ranks of one host.
    """

    name: str
    products: Mapping[str, float]
    other_products: float
    memory: float
    kernel: float
    link: Link

    def product_rate(self, dtype: DType) -> float:
        """Floating-point operations per second of matrix products of an element type."""
        return self.products.get(dtype.name, self.other_products)

    def link_of(self, ranks: Sequence[int]) -> Link:
        """The slowest link that a collective of these ranks goes over; all ranks are taken to be of one host."""
        return self.link


H200 = Machine(
    name="NVIDIA H200, NVLink 4",
    products=MappingProxyType({"Float16": 600e12, "BFloat16": 600e12, "Float32": 300e12, "Float64": 50e12}),
    other_products=50e12,
    memory=3.2e12,
    kernel=1.5e-6,
    link=Link(latency=12e-6, bandwidth=340e9),
)
"""H200s of one host, joined by NVLink, with CUDA 13 and NCCL 2.27.

Measured there in 2026: products of 8192 by 8192 matrices at 811 TFLOP/s in Float16, of which those of a transformer's
layers reach three quarters; half of that where Float32 is rounded to TF32; a copy in memory at 4.2 TB/s, of which
operators reach three quarters; 1.1 us from one small kernel of a CUDA graph to the next, 1.5 us with their ramps; an
AllReduce of a kilobyte in 9.5 us on 4 ranks, 12 us beside other work; large ones at 339 to 358 GB/s.
"""
