"""What scripts say of the device that a part of a network runs on."""

from __future__ import annotations

from mspc.api import context
from mspc.api.setting import place_of_caller, say_once

DEVICES = ("CPU", "GPU", "Ascend")


def note_target(shown: str, target: str) -> None:
    """Say once that a target changes nothing, where it is another device than that of all."""
    device = context.get_context("device_target")
    if target in (device, "DEVICE"):
        return
    why = f"all of a rank runs on its one device, and device_target is {device}"
    say_once(f"target {shown}", f"{place_of_caller()}{shown} changes nothing here: {why}")
