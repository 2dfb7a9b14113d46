"""What scripts say of the device that a part of a network runs on."""

from __future__ import annotations

from mspc.api import context
from mspc.api.setting import place_of_caller, say_once

DEVICES = ("CPU", "GPU", "Ascend")


def note_shard_options(function: str, device: str, level: int) -> None:
    """Say once what the options of `shard` in MindSpore 2.0 change: nothing."""
    for key, value, default in (("device", device, ""), ("level", level, 0)):
        if value != default:
            why = "networks run where their ranks do, and all layouts are found in one way"
            say_once(f"shard {key}", f"{place_of_caller()}{function}({key}={value!r}) changes nothing here: {why}")


def note_target(shown: str, target: str) -> None:
    """Say once that a target changes nothing, where it is another device than that of all."""
    device = context.get_context("device_target")
    if target in (device, "DEVICE"):
        return
    why = f"all of a rank runs on its one device, and device_target is {device}"
    say_once(f"target {shown}", f"{place_of_caller()}{shown} changes nothing here: {why}")
