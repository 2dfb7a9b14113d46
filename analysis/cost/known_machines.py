"""Machines whose rates are known: `--machine h200` names one of them, and one of them is assumed where none is named.

The shares of a data sheet that a machine reaches are those measured on the H200.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from mspc.analysis.cost.machine import HOST_COPIES, PRODUCTS, TF32, UNROUNDED, Link, Machine, Rate

HOST = 8
"""Ranks of one host."""


def _work(
    half: float, rounded: float, single: float, double: float, convolved: float
) -> Mapping[str, Mapping[str, Rate]]:  # fmt: skip
    """Operations per second of matrix products: of halves, of Float32 rounded to TF32 and as it is, and of Float64.
    convolved: of convolutions of Float32 as it is."""
    rates = {"Float16": half, "BFloat16": half, TF32: rounded, UNROUNDED: single, "Float64": double}
    products = MappingProxyType({name: Rate.of(rate) for name, rate in rates.items()})
    return MappingProxyType({PRODUCTS: products, "convolutions": MappingProxyType({UNROUNDED: Rate.of(convolved)})})


H200 = Machine(
    name="NVIDIA H200, NVLink 4",
    device="GPU",
    work=_work(600e12, 300e12, 50e12, 50e12, 33e12),
    other_products=Rate.of(50e12),
    memory=Rate.of(3.2e12),
    kernel=1.5e-6,
    link=Link(latency=12e-6, bandwidth=Rate.of(340e9)),
    ranks_per_host=HOST,
    network=Link(latency=20e-6, bandwidth=Rate.of(45e9)),
    traffic=MappingProxyType({HOST_COPIES: Rate.of(55e9)}),
    source="""\
Measured in 2026 with CUDA 13 and NCCL 2.27: products of 8192 by 8192 matrices at 811 TFLOP/s in Float16, of which those
of a transformer's layers reach three quarters; half of that where Float32 is rounded to TF32; those of Float32 as it is
at 51 TFLOP/s (67 by the data sheet), and convolutions of it at 33, derived from a step of ResNet-50 (64 images in
58 ms, and in 19 with TF32); a copy in memory at 4.2 TB/s, of which operators reach three quarters; 1.1 us
from one small kernel of a CUDA graph to the next, 1.5 us with their ramps; an AllReduce of a kilobyte in 9.5 us on 4
ranks, 12 us beside other work; large ones at 339 to 358 GB/s. Between hosts: a card of 400 Gbit/s for each GPU, nine
tenths of it (data sheet of NVIDIA's DGX H200, not measured). To the host's memory and from it: 16 lanes of PCI Express
5.0 (data sheet of the H200: 128 GB/s both ways together), seven eighths of it, not measured.""",
)
"""What is reckoned with where nobody names a machine."""
H100 = replace(
    H200,
    name="NVIDIA H100 SXM, NVLink 4",
    memory=Rate.of(2.2e12),
    source="""\
NVIDIA's data sheet of the H100 SXM (989 TFLOP/s in Float16, 495 in TF32, 67 in Float32 and Float64, 3.35 TB/s of
memory, 450 GB/s each way) by the shares that an H200 was measured to reach; a card of 400 Gbit/s for each GPU. Measured
on 4 of them in Float32 as it is: a transformer's step of 58.9 ms, 45 TFLOP/s a rank in all, estimated as 57.3.""",
)
A100 = Machine(
    name="NVIDIA A100 80 GB SXM, NVLink 3",
    device="GPU",
    work=_work(230e12, 95e12, 15e12, 15e12, 10e12),
    other_products=Rate.of(15e12),
    memory=Rate.of(1.4e12),
    kernel=1.5e-6,
    link=Link(latency=15e-6, bandwidth=Rate.of(225e9)),
    ranks_per_host=HOST,
    network=Link(latency=25e-6, bandwidth=Rate.of(22e9)),
    traffic=MappingProxyType({HOST_COPIES: Rate.of(27e9)}),
    source="""\
NVIDIA's data sheet of the A100 80 GB SXM (312 TFLOP/s in Float16, 156 in TF32, 19.5 in Float32 and Float64, 2.04 TB/s
of memory, 300 GB/s each way) by the shares that an H200 was measured to reach; a card of 200 Gbit/s for each GPU.""",
)
KNOWN_MACHINES: Mapping[str, Machine] = MappingProxyType({"a100": A100, "h100": H100, "h200": H200})
"""By the name that `--machine` takes."""
