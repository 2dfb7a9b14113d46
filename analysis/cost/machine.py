"""A machine is described by its rates: how fast it computes, reads and writes, and sends between ranks.

One description serves every comparison of costs: the order of a step's nodes, work beside a collective, the report, the
search. Nothing is measured at the time of a query, so that the answer is the same on every rank.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import Any

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType

PRODUCTS = "products"
DEEP, FLAT = "deep_products", "flat_products"
"""Matmuls that sum many more terms than their result has rows and columns, and matmuls whose result has a few rows or
columns, as in steps of recurrent networks."""
UNEVEN = {8: "products_of_8_bytes", 4: "products_of_4_bytes", 2: "products_of_2_bytes"}
"""Matmuls in which some row is no multiple of the 16 bytes that a kernel loads at once. The key is the number of bytes
of which all rows are multiples."""
POINTWISE, GROUPED, SHALLOW = "pointwise_", "grouped_", "shallow_"
"""Prefixes of kinds of convolutions: with a window of one place, in groups of channels, and of images with a few
channels."""
CAUSAL, MASKED, BIASED, DROPPED = "causal_", "masked_", "biased_", "dropped_"
"""Prefixes of kinds of attention: positions alone decide which keys a query sees; a mask or an addend of the scores is
the same for all queries; it differs between queries; weights are dropped. The last may follow MASKED or BIASED."""
ELEMENTWISE, DRAWS = "elementwise", "draws"
"""Arithmetic on single elements, and random numbers drawn for them, in kernels that also pass over memory."""
CONVOLUTIONS = {"convolutions": PRODUCTS, "convolution_inputs": "convolutions", "convolution_filters": "convolutions"}
ATTENTION = {"attention": PRODUCTS, "attention_gradients": "attention",
             "attention_addend_gradients": "attention_gradients"}  # fmt: skip
LIKE: Mapping[str, str] = MappingProxyType({
    DEEP: PRODUCTS, FLAT: PRODUCTS, UNEVEN[8]: PRODUCTS, UNEVEN[4]: UNEVEN[8], UNEVEN[2]: UNEVEN[4],
    **CONVOLUTIONS, **{form + kind: kind for form in (POINTWISE, GROUPED, SHALLOW) for kind in CONVOLUTIONS},
    **ATTENTION, **{form + kind: kind for form in (CAUSAL, MASKED, DROPPED) for kind in ATTENTION},
    **{BIASED + kind: MASKED + kind for kind in ATTENTION},
    **{MASKED + DROPPED + kind: DROPPED + kind for kind in ATTENTION},
    **{BIASED + DROPPED + kind: MASKED + DROPPED + kind for kind in ATTENTION},
})  # fmt: skip
"""Kinds of work that may have rates of their own, gradients of images and of filters among them. The value is the kind
whose rates are used if a kind has none."""
ALONE = (ELEMENTWISE, DRAWS)
"""Kinds of work that are hidden by memory traffic if they have no rates."""
ALIKE = {"Float16": "BFloat16", "BFloat16": "Float16"}
"""Element types that the same units compute at one rate. If one has no rate, the rate of the other is used."""
WIDENED = "Float32"
"""Element type in which CPUs compute Float16 and BFloat16. Its rate is used there if neither has one."""
TF32, UNROUNDED = "TF32", "Float32"
"""Names of rates that are not names of element types: Float32 with matmuls that a program lets GPUs round to TF32, and
plain Float32."""
NVFP4 = "NVFP4"
"""Name of the rate of matmuls of 4 bits with a scale for every 16."""
ROUNDS = "matmul_allow_tf32"
"""Header attribute of programs that let GPUs round to TF32."""
COLUMN_SUMS, UPDATES, ROW_SUMS, HOST_COPIES = "column_sums", "updates", "row_sums", "host_copies"
"""Kinds of traffic: sums over leading dimensions, which several blocks add up; updates of parameters; sums of rows with
the same index; and copies between a device's memory and its host's, whose bytes count once."""
TRAFFIC = (COLUMN_SUMS, UPDATES, ROW_SUMS, HOST_COPIES)
COLLECTIVES = ("AllReduce", "AllGather", "ReduceScatter", "AlltoAll", "AlltoAllV", "Broadcast", "Reduce",
               "CollectiveScatter", "CollectiveGather", "NeighborExchange", "NeighborExchangeV2", "Send", "Receive",
               "Barrier")  # fmt: skip
"""Operators for which a link may have rates of its own."""
PAIRWISE = frozenset({"AlltoAll", "AlltoAllV", "CollectiveScatter", "CollectiveGather", "NeighborExchange",
                      "NeighborExchangeV2", "Send", "Receive"})  # fmt: skip
"""Collectives in which every two ranks exchange data that no third rank forwards."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Rate per second that depends on an amount: bytes or operations.

    points: (amount, per second), by ascending amount; one point if the rate is the same for all amounts. Between two
    points the logarithm of the rate is linear in that of the amount, which fits a fixed time for small amounts. Outside
    the points the rate is that of the nearest.
    """

    points: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, per_second: float) -> Rate:
        """Return a rate that is the same for every amount."""
        return cls(((1.0, per_second),))

    def at(self, amount: float) -> float:
        """Return the rate per second at an amount."""
        low, first = self.points[0]
        for high, second in self.points[1:]:
            if amount < high:
                share = math.log(max(amount, low) / low) / math.log(high / low)
                return first * (second / first) ** share
            low, first = high, second
        return first

    def seconds(self, amount: float) -> float:
        """Return the time for an amount."""
        return amount / self.at(amount)

    def best(self, low: float, high: float) -> float:
        """Return the highest rate of any amount from `low` to `high`."""
        between = (amount for amount, _ in self.points if low < amount < high)
        return max(self.at(amount) for amount in (low, *between, high))


PCI_EXPRESS = Rate.of(27e9)
"""Bytes per second between a GPU's memory and its host's, in each direction, if a machine states none: seven eighths of
the rate of 16 lanes of PCI Express 4.0 (PCI-SIG's specification: 16 GT/s a lane, 31.5 GB/s)."""


@dataclass(frozen=True, slots=True)
class Link:
    """Network between ranks. latency: seconds of a collective of no bytes between two ranks. bandwidth: bytes per
    second that a rank sends, by the bytes that a collective sends. hop: seconds that every further rank of a group
    adds. own: links of collectives that are measured separately, by operator."""

    latency: float
    bandwidth: Rate
    hop: float = 0.0
    own: Mapping[str, Link] = field(default_factory=dict[str, "Link"])

    def seconds(self, operator: str, nbytes: float, ranks: int, cards: int = 1) -> float:
        """Return the time of a collective of `ranks` ranks in which each sends `nbytes` bytes.

        Args:
            cards: factor of `bandwidth` for a rank, as several rings run at once.
        """
        link = self.own.get(operator, self)
        return link.latency + link.hop * max(0, ranks - 2) + nbytes / (link.bandwidth.at(nbytes) * cards)


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates and latencies of one kind of machine.

    name: for people. device: "CPU" or "GPU", the target of programs. work: floating-point operations per second, by
    kind of work and element type (or `TF32`); a kind without an entry uses that of the kind in `LIKE`. other_products:
    the rate if no kind has one. memory: bytes per second that an operator reads and writes. traffic: the same for kinds
    in `TRAFFIC` that differ. kernel: seconds between the starts of two kernels that do nothing. link: joins ranks of
    one host. ranks_per_host: 0 if all ranks are on one host. network: joins hosts, by the bytes that one rank's card
    sends. source: origin of the figures. doubts: reasons not to trust the measurements, () if there are none. rounds:
    matmuls of Float32 are rounded to TF32, as a program allows. capacity: bytes of a rank's memory, 0 if unknown.
    """

    name: str
    device: str
    work: Mapping[str, Mapping[str, Rate]]
    other_products: Rate
    memory: Rate
    kernel: float
    link: Link
    ranks_per_host: int = 0
    network: Link | None = None
    source: str = ""
    doubts: tuple[str, ...] = ()
    traffic: Mapping[str, Rate] = field(default_factory=dict[str, Rate])
    rounds: bool = False
    capacity: int = 0

    def under(self, header: Mapping[str, Any]) -> Machine:
        """Return the machine as programs with this header use it. Every caller that combines a graph with a machine
        calls this; CPUs never round."""
        rounds = self.device == "GPU" and bool(header.get(ROUNDS))
        return self if rounds == self.rounds else replace(self, rounds=rounds)

    def work_seconds(self, kind: str, dtype: DType, operations: float) -> float:
        """Return the time of floating-point operations of one kind of work on an element type."""
        return self.work_rate(kind, dtype).seconds(operations)

    def work_rate(self, kind: str, dtype: DType) -> Rate:
        """Return the floating-point operations per second of one kind of work on an element type."""
        return self.known_rate(kind, dtype) or self._rate(kind, (dtype.name,)) or self.other_products

    def known_rate(self, kind: str, dtype: DType) -> Rate | None:
        """Return the operations per second, or None if no kind like this one has a rate for the element type."""
        name = self.name_of(kind, dtype)
        alike = ALIKE.get(name, "")
        return self._rate(kind, (name, alike, WIDENED) if alike and self.device == "CPU" else (name, alike))

    def name_of(self, kind: str, dtype: DType) -> str:
        """Return the name of the rates of a kind of work on an element type in the tables of `work`."""
        return TF32 if self.rounds and dtype.name == UNROUNDED and kind not in ALONE else dtype.name

    def _rate(self, kind: str, names: Sequence[str]) -> Rate | None:
        """Return the first of the named rates of the kind, or of the next similar kind that has one; None if there is
        none."""
        while True:
            rates = self.work.get(kind, {})
            rate = next((rates[name] for name in names if name in rates), None)
            if rate is not None or kind not in LIKE:
                return rate
            kind = LIKE[kind]

    def moving_seconds(self, nbytes: float, kind: str = "") -> float:
        """Return the time in which `nbytes` bytes are read and written, by one kind of `TRAFFIC` or as most operators
        do."""
        other = PCI_EXPRESS if kind == HOST_COPIES and self.device == "GPU" else self.memory
        return self.traffic.get(kind, other).seconds(nbytes)

    def collective_seconds(self, operator: str, nbytes: float, ranks: Sequence[int]) -> float:
        """Return the time of a collective of these ranks in which each sends `nbytes` bytes.

        Between hosts rings run through the cards of all ranks of the group on a host, so that each carries its share
        (Jeaugey, "Massively Scale Your Deep Learning Training with NCCL 2.4", 2019). Data between two ranks only goes
        through the sender's card.
        """
        hosts = Counter(rank // self.ranks_per_host for rank in ranks) if self.ranks_per_host else Counter[int]()
        if len(hosts) < 2 or self.network is None:
            return self.link.seconds(operator, nbytes, len(ranks))
        near = min(hosts.values())
        if operator not in PAIRWISE:
            inside = self.link.seconds(operator, nbytes, len(ranks))
            return max(inside, self.network.seconds(operator, nbytes, len(ranks), near))
        leaving = (len(ranks) - near) / max(1, len(ranks) - 1)
        return max(
            self.network.seconds(operator, nbytes * leaving, len(ranks)),
            self.link.seconds(operator, nbytes * (1 - leaving), len(ranks)),
        )


HOST = 8
"""Ranks of one host."""


def _work(
    half: float, rounded: float, single: float, double: float, convolved: float, four: float = 0.0
) -> Mapping[str, Mapping[str, Rate]]:  # fmt: skip
    """Return operations per second of matmuls: of halves, of Float32 rounded to TF32 and not rounded, and of Float64.
    convolved: of convolutions of plain Float32. four: of 4 bits, 0 for none."""
    rates = {"Float16": half, "BFloat16": half, TF32: rounded, UNROUNDED: single, "Float64": double}
    rates |= {NVFP4: four} if four else {}
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
    capacity=141 * 10**9,
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
"""Machine assumed if the user names none."""
H100 = replace(
    H200,
    name="NVIDIA H100 SXM, NVLink 4",
    memory=Rate.of(2.2e12),
    capacity=80 * 1024**3,
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
    capacity=80 * 1024**3,
    source="""\
NVIDIA's data sheet of the A100 80 GB SXM (312 TFLOP/s in Float16, 156 in TF32, 19.5 in Float32 and Float64, 2.04 TB/s
of memory, 300 GB/s each way) by the shares that an H200 was measured to reach; a card of 200 Gbit/s for each GPU.""",
)
_BLACKWELL = """\
NVIDIA's data sheets (2.25 PFLOP/s in BFloat16, in GB200 and GB300 2.5; 8 TB/s of memory, 900 GB/s each way on NVLink 5)
by the shares that an H200 was measured to reach; not measured. Four-bit matmuls have 4 times the operations of
BFloat16, in B300 and GB300 6 times; that they reach four fifths of it, because operands are also rotated and rounded at
random, is an assumption. A card of 400 Gbit/s for each GPU, 800 for B300 and GB300."""
B200 = replace(
    H200, name="NVIDIA B200 SXM, NVLink 5", work=_work(1365e12, 680e12, 48e12, 24e12, 33e12, 4370e12),
    memory=Rate.of(5.2e12), link=Link(latency=12e-6, bandwidth=Rate.of(680e9)), capacity=180 * 10**9, source=_BLACKWELL,
)  # fmt: skip
B300 = replace(
    B200, name="NVIDIA B300 SXM, NVLink 5", work=_work(1365e12, 680e12, 48e12, 24e12, 33e12, 6550e12),
    network=Link(latency=20e-6, bandwidth=Rate.of(90e9)), capacity=270 * 10**9,
)  # fmt: skip
GB200 = replace(
    B200, name="NVIDIA GB200 NVL72", work=_work(1230e12, 615e12, 48e12, 24e12, 33e12, 3940e12), ranks_per_host=64,
    capacity=186 * 10**9, source=_BLACKWELL + """ Matmuls at 0.81 of those of a GB300, whose power limit is higher:
the ratio of the published steps of LLaMA 3 70B and 405B on both (Megatron-Bridge's performance summary).""",
)  # fmt: skip
GB300 = replace(
    GB200, name="NVIDIA GB300 NVL72", work=_work(1517e12, 758e12, 48e12, 24e12, 33e12, 7280e12),
    network=Link(latency=20e-6, bandwidth=Rate.of(90e9)), capacity=278 * 10**9, source=_BLACKWELL,
)  # fmt: skip
KNOWN_MACHINES: Mapping[str, Machine] = MappingProxyType({
    "a100": A100, "h100": H100, "h200": H200, "b200": B200, "b300": B300, "gb200": GB200, "gb300": GB300,
})  # fmt: skip
"""Machines by the name that `--machine` takes."""
