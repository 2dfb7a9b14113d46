"""Checks of the process on which a script places a part of a network."""

from __future__ import annotations

from mspc.mindspore_api import context
from mspc.mindspore_api.setting_kind import place_of_caller, say_once

DEVICES = ("CPU", "GPU", "Ascend")


def note_shard_options(function: str, device: str, level: int) -> None:
    """Warn once that the options of `shard` in MindSpore 2.0 change nothing."""
    for key, value, default in (("device", device, ""), ("level", level, 0)):
        if value != default:
            why = "networks run on the devices of their ranks, and all layouts are found in one way"
            say_once(f"shard {key}", f"{place_of_caller()}{function}({key}={value!r}) changes nothing here: {why}")


def note_target(shown: str, target: str) -> None:
    """Warn once that a target changes nothing, if it is another device than that of all."""
    device = context.get_context("device_target")
    if target in (device, "DEVICE"):
        return
    why = f"all of a rank runs on its one device, and device_target is {device}"
    say_once(f"target {shown}", f"{place_of_caller()}{shown} changes nothing here: {why}")
