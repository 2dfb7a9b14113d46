"""A machine is described by its rates: how fast it computes, reads and writes, and sends between ranks.

One description serves every comparison of costs: the order of a step's nodes, work beside a collective, the report, the
search. Nothing is measured at the time of a query, so that the answer is the same on every rank.
"""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.parsing import check_keys, table_in
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import BFLOAT16, DTYPES, EIGHTS, DType

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
EIGHT_BIT_SHARE = 2.0
"""Rate of matmuls of 8 bits relative to BFloat16, as NVIDIA's data sheets have it, on machines that have no rate of
them; also of 4 bits."""
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
    adds. own: links of collectives that are measured separately, by operator. protocols: shares of the time without
    bytes and of the bandwidth that each protocol has; a collective takes the fastest. tree: share of the bandwidth that
    a sum in a tree reaches, whose hops are the binary logarithm of the ranks; 0 if there are rings only. wires: other
    ranks to which a rank is wired one by one, so that few ranks use few wires; 0 if a switch joins them."""

    latency: float
    bandwidth: Rate
    hop: float = 0.0
    own: Mapping[str, Link] = field(default_factory=dict[str, "Link"])
    protocols: tuple[tuple[float, float], ...] = ((1.0, 1.0),)
    tree: float = 0.0
    wires: int = 0

    def seconds(self, operator: str, nbytes: float, ranks: int, cards: float = 1, inside: float = 0.0) -> float:
        """Return the time of a collective of `ranks` ranks in which each sends `nbytes` bytes. cards: factor of
        `bandwidth` for a rank, as several rings run at once. inside: seconds of the hops on other links."""
        link = self.own.get(operator, self)
        algorithms = [(link.latency + link.hop * max(0, ranks - 2) + inside, 1.0)]
        if link.tree and operator == "AllReduce":
            algorithms.append((link.latency + link.hop * max(0.0, math.log2(ranks) - 1), link.tree))
        cards *= min(1.0, max(1, ranks - 1) / self.wires) if self.wires else 1.0
        moving = nbytes / (link.bandwidth.at(nbytes) * cards)
        return min(begin * a + moving / (share * b) for begin, share in algorithms for a, b in link.protocols)


def of_eight_bits(rate: Rate) -> Rate:
    """Return the rate of matmuls of 8 bits by that of BFloat16."""
    return Rate(tuple((amount, per * EIGHT_BIT_SHARE) for amount, per in rate.points))


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates and latencies of one kind of machine.

    name: for people. device: "CPU" or "GPU", the target of programs. work: floating-point operations per second, by
    kind of work and element type (or `TF32`); a kind without an entry uses that of the kind in `LIKE`. other_products:
    the rate if no kind has one. memory: bytes per second that an operator reads and writes. traffic: the same for kinds
    in `TRAFFIC` that differ. kernel: seconds between the starts of two kernels that do nothing. link: joins ranks of
    one host, or of one NVLink domain. ranks_per_host: of these; 0 if all ranks are on one. network: joins hosts, by the
    bytes that one card sends. cards: of a host, 0 if each rank has its own. ranks_per_pod: ranks that share a switch of
    the network; 0 if all do. oversubscription: bandwidth of a pod's cards by that of its uplinks. source: origin of the
    figures. doubts: reasons not to trust the measurements, () if there are none. rounds: matmuls of Float32 are rounded
    to TF32, as a program allows. capacity: bytes of a rank's memory, 0 if unknown. peak: rates of the data sheet, which
    no device exceeds: dense matmuls by element type, `memory` and `vector` (Float32 operations); empty if unknown.
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
    cards: int = 0
    ranks_per_pod: int = 0
    oversubscription: float = 1.0
    peak: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def card_share(self) -> float:
        """Number of cards for each rank of a host; all ranks of a host use them at once, each in a group of its own."""
        return self.cards / self.ranks_per_host if self.cards and self.ranks_per_host else 1.0

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
        if dtype in EIGHTS:
            found, wide = self._rate(kind, (dtype.name,)), self.known_rate(kind, BFLOAT16)
            return found or (of_eight_bits(wide) if wide and self.device == "GPU" else wide)
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

    def hosts(self, ranks: Sequence[int]) -> Counter[int]:
        """Return how many of the ranks are on each host; {} if a network does not join hosts."""
        joined = self.ranks_per_host and self.network is not None
        return Counter(rank // self.ranks_per_host for rank in ranks) if joined else Counter[int]()

    def collective_seconds(self, operator: str, nbytes: float, ranks: Sequence[int]) -> float:
        """Return the time of a collective of these ranks in which each sends `nbytes` bytes.

        Between hosts rings run through the cards of all ranks of the group on a host, so that each carries its share
        (Jeaugey, "Massively Scale Your Deep Learning Training with NCCL 2.4", 2019). Data between two ranks only goes
        through the sender's card. A ring leaves a pod once, with one flow for each of its cards: groups with few
        ranks in each pod, of which there are many beside each other, share the uplinks.
        """
        hosts = self.hosts(ranks)
        if len(hosts) < 2 or self.network is None:
            return self.link.seconds(operator, nbytes, len(ranks))
        near, most, count = min(hosts.values()), max(hosts.values()), len(ranks)
        inside = self.link.own.get(operator, self.link).hop * (count - len(hosts))
        pods = Counter(rank // (self.ranks_per_pod or 1 << 30) for rank in ranks)
        podmates, over = min(pods.values()), self.oversubscription if len(pods) > 1 else 0.0
        if operator not in PAIRWISE:
            crowded = max(1.0, over * near / podmates)
            outside = self.network.seconds(operator, nbytes, len(hosts), near * self.card_share / crowded, inside)
            return max(self.link.seconds(operator, nbytes, most), outside)
        leaving, crossing = ((count - own) / max(1, count - 1) for own in (near, podmates))
        sent = nbytes * max(leaving, crossing * over)
        return max(
            self.network.seconds(operator, sent, len(hosts), self.card_share),
            self.link.seconds(operator, nbytes * (1 - leaving), most),
        )


ROUNDED = "products of Float32 rounded to TF32"
"""In the source of a file if its rates of Float32 are those of rounded matmuls."""
WORK = (PRODUCTS, *LIKE, *ALONE)
LINK = ("latency", "bandwidth", "hop", "protocols", "tree", "wires")
COUNTS = {"ranks_per_host": (1 << 20, "ranks"), "capacity": (1 << 50, "bytes"), "cards": (1 << 20, "cards"),
          "ranks_per_pod": (1 << 20, "ranks")}  # fmt: skip
"""Keys with a whole number, its limit and its unit."""
KEYS = ("name", "device", "source", "doubts", "memory", "kernel", "other_products", *COUNTS, "oversubscription", *WORK,
        "traffic", "link", "network", "peak")  # fmt: skip
PEAKS = ("BFloat16", NVFP4, "memory", "vector")
"""Keys of the table of rates of the data sheet; all but NVFP4 are needed."""


class MachineReader:
    """Reader of the tables of one file of machines; the name of the file is in every message."""

    def __init__(self, shown: str) -> None:
        self.shown = shown

    def machine(self, found: Mapping[str, Any], name: str) -> Machine:
        check_keys(self.shown, found, KEYS, "a machine")
        device = found.get("device", "GPU")
        if device not in ("GPU", "CPU"):
            raise MspcError(f'{self.shown}: device is {device!r}, not "GPU" or "CPU"')
        counts = {key: self._count(found, key, limit, unit) for key, (limit, unit) in COUNTS.items()}
        per_host = counts["ranks_per_host"]
        if counts["ranks_per_pod"] % max(1, per_host):
            raise MspcError(f"{self.shown}: ranks_per_pod is no multiple of ranks_per_host {per_host}")
        over = self._number(found, "oversubscription") if "oversubscription" in found else 1.0
        if per_host and "network" not in found:
            raise MspcError(f"{self.shown}: there are ranks_per_host, and no table [network] of links between hosts")
        return Machine(
            name=str(found.get("name", name)), device=device, work=self._every_work(found),
            other_products=self._rate(found, "other_products"), memory=self._rate(found, "memory"),
            kernel=self._number(found, "kernel"), link=self._link(found, "link"),
            network=self._link(found, "network") if "network" in found else None,
            source=str(found.get("source", "")).strip(), doubts=self._doubts(found), oversubscription=over,
            traffic=self._rates(found, "traffic", TRAFFIC, "kinds of traffic") if "traffic" in found else {},
            peak=self._peak(found) if "peak" in found else {}, **counts,
        )  # fmt: skip

    def _count(self, found: Mapping[str, Any], key: str, limit: int, unit: str) -> int:
        value = found.get(key, 0)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < limit:
            raise MspcError(f"{self.shown}: {key} is {value!r}, not a number of {unit}")
        return value

    def _doubts(self, found: Mapping[str, Any]) -> tuple[str, ...]:
        value = found.get("doubts", [])
        entries = cast("list[Any]", value) if isinstance(value, list) else None
        if entries is None or not all(isinstance(entry, str) for entry in entries):
            raise MspcError(f"{self.shown}: doubts is {value!r}, not a list of texts")
        return tuple(entries)

    def _every_work(self, found: Mapping[str, Any]) -> Mapping[str, Mapping[str, Rate]]:
        """Return the rates of all kinds of work."""
        types = {kind: (*DTYPES, *(() if kind in ALONE else (TF32, NVFP4))) for kind in WORK}
        kinds = [kind for kind in WORK if kind in found or kind == PRODUCTS]
        work = {kind: self._rates(found, kind, types[kind], "element types") for kind in kinds}
        if ROUNDED not in str(found.get("source", "")) or any(TF32 in rates for rates in work.values()):
            return work
        for kind in [kind for kind in work if kind not in ALONE]:
            named = {TF32 if name == UNROUNDED else name: rate for name, rate in work[kind].items()}
            work[kind] = MappingProxyType(named)
        return work

    def _rates(self, found: Mapping[str, Any], key: str, names: Sequence[str], kinds: str) -> Mapping[str, Rate]:
        table = table_in(self.shown, found, key)
        check_keys(self.shown, table, names, kinds)
        return MappingProxyType({name: self._rate(table, name, f"{key}.") for name in table})

    def _peak(self, found: Mapping[str, Any]) -> Mapping[str, float]:
        table = table_in(self.shown, found, "peak")
        check_keys(self.shown, table, PEAKS, "rates of the data sheet")
        return {key: self._number(table, key, "peak.") for key in PEAKS if key in table or key not in (NVFP4, "vector")}

    def _link(self, found: Mapping[str, Any], key: str) -> Link:
        table = table_in(self.shown, found, key)
        check_keys(self.shown, table, (*LINK, *COLLECTIVES), "a link")
        own = {name: self._plain_link(table_in(self.shown, table, name), f"{key}.{name}.")
               for name in COLLECTIVES if name in table}  # fmt: skip
        return self._plain_link(table, f"{key}.", own)

    def _plain_link(self, table: Mapping[str, Any], where: str, own: Mapping[str, Link] | None = None) -> Link:
        if own is None:
            check_keys(self.shown, table, LINK, "a collective's link")
        return Link(
            self._number(table, "latency", where), self._rate(table, "bandwidth", where),
            hop=self._number(table, "hop", where, zero=True) if "hop" in table else 0.0,
            own=MappingProxyType(dict(own or {})), wires=self._count(table, "wires", 1 << 20, "wires"),
            protocols=self._pairs(table["protocols"], f"{where}protocols") if "protocols" in table else ((1.0, 1.0),),
            tree=self._number(table, "tree", where) if "tree" in table else 0.0,
        )  # fmt: skip

    def _rate(self, found: Mapping[str, Any], key: str, where: str = "") -> Rate:
        value = found.get(key)
        if not isinstance(value, list):
            return Rate.of(self._number(found, key, where))
        points = self._pairs(value, where + key)
        if not points or any(low[0] >= high[0] for low, high in pairwise(points)):
            raise MspcError(f"{self.shown}: {where}{key} lists amounts that do not rise")
        return Rate(points)

    def _pairs(self, value: Any, where: str) -> tuple[tuple[float, float], ...]:
        points: list[tuple[float, float]] = []
        for entry in cast("list[Any]", value) if isinstance(value, list) else [value]:
            pair = cast("list[Any]", entry) if isinstance(entry, list) else []
            if len(pair) != 2 or not all(_above(number) for number in pair):
                raise MspcError(f"{self.shown}: {where} has the entry {entry!r}, not two numbers above 0")
            points.append((float(pair[0]), float(pair[1])))
        return tuple(points)

    def _number(self, found: Mapping[str, Any], key: str, where: str = "", zero: bool = False) -> float:
        """Return a number above 0, or 0 if `zero` allows it. Raise MspcError for others, or if it is missing."""
        if key not in found:
            raise MspcError(f"{self.shown}: {where}{key} is missing")
        value = found[key]
        if not _above(value) and not (zero and value == 0 and not isinstance(value, bool)):
            raise MspcError(f"{self.shown}: {where}{key} is {value!r}, not a number above 0")
        return float(value)


def _above(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 < value < 1e30


def _known() -> Mapping[str, Machine]:
    """Return the machines of `machines.toml`, in which each is a table with the keys of a machine file."""
    file = Path(__file__).with_name("machines.toml")
    reader = MachineReader(file.name)
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    return MappingProxyType({name: reader.machine(table, name) for name, table in tables.items()})


KNOWN_MACHINES = _known()
"""Machines by the name that `--machine` takes."""
H200 = KNOWN_MACHINES["h200"]
"""Machine assumed if the user names none."""
