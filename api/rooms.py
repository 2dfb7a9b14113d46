"""The folders whose modules scripts import: what networks are made of, and what they read."""

from __future__ import annotations

ROOMS = ("api", "data")
PUBLIC = tuple(f"mspc.{room}." for room in ROOMS)
"""What the full names of such modules begin with."""


def public_name(module: str) -> str:
    """`nn.loss` of `mspc.api.nn.loss`: the name of a public module without the room that it lies in."""
    room = next((room for room in PUBLIC if module.startswith(room)), "")
    return module.removeprefix(room)
