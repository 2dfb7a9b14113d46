"""Computes what a search reckons with for a machine."""

from __future__ import annotations

from mspc.analysis.cost.machine import PRODUCTS, Machine
from mspc.ir.types import FLOAT16, FLOAT32
from mspc.passes.lib.plan_header import OPERATIONS, Terms

LARGE = 1 << 24
"""Bytes at which the search's one bandwidth is read from a machine's rates."""
MANY = 1e12
"""Operations at which the rate of products is read."""


def terms_for(machine: Machine) -> Terms:
    """What a search for a machine reckons with, as bytes sent inside of a host."""
    bandwidth = machine.link.bandwidth.at(LARGE)
    network = machine.network if machine.ranks_per_host else None
    return Terms(
        latency=int(machine.link.latency * bandwidth),
        touch=int(1000 * bandwidth / machine.memory.at(LARGE)),
        compute=int(bandwidth * machine.work_seconds(PRODUCTS, FLOAT32, MANY) * OPERATIONS / MANY),
        compute_half=int(bandwidth * machine.work_seconds(PRODUCTS, FLOAT16, MANY) * OPERATIONS / MANY),
        hosts=machine.ranks_per_host,
        network=0 if network is None else int(1000 * bandwidth / network.bandwidth.at(LARGE)),
    )
