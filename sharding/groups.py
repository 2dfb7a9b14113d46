"""Names of rank groups as MindSpore's dumps print them: `"<size>-<hash of the ranks>"`."""

from __future__ import annotations

from functools import lru_cache

WORLD_GROUPS = ("hccl_world_group", "nccl_world_group", "mccl_world_group")
"""Names that scripts use for the group of all ranks."""

_MASK = (1 << 64) - 1
_MULTIPLIER = 0xC6A4A7935BD1E995
_SEED = 0xC70F6907


def string_hash(text: str) -> int:
    """Return the 64-bit Murmur hash that libstdc++'s `std::hash<std::string>` computes of `text` (UTF-8)."""
    data = text.encode()
    aligned = len(data) & ~7
    value = _SEED ^ (len(data) * _MULTIPLIER & _MASK)
    for start in range(0, aligned, 8):
        word = int.from_bytes(data[start : start + 8], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 47) * _MULTIPLIER & _MASK
        value = (value ^ word) * _MULTIPLIER & _MASK
    if len(data) > aligned:
        value = (value ^ int.from_bytes(data[aligned:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 47) * _MULTIPLIER & _MASK
    return value ^ value >> 47


@lru_cache(maxsize=65536)
def group_name(ranks: tuple[int, ...]) -> str:
    """Return the name of a group: its size and the hash of its ranks in ascending order, joined by "-"."""
    return f"{len(ranks)}-{string_hash('-'.join(map(str, sorted(ranks))))}"
