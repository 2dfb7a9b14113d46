"""Checks of the process on which a script places a part of a network."""

from __future__ import annotations

from typing import Any

from mspc.mindspore_api import context
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.setting_kind import place_of_caller, say_once
from mspc.ops.operator_arguments import describe

EVERYWHERE = "every rank runs its share of all operators"
"""Why an operator is in no process of its own."""
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


def note_place(function: str, role: Any, rank: Any) -> None:
    """Warn once that a process for an operator or a cell changes nothing. Raise TypeError if `role` is no string,
    ValueError for an invalid rank."""
    if not isinstance(role, str):
        raise ApiTypeError(f"{function}: role must be a string, not {describe(role)}")
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0:
        raise ApiValueError(f"{function}: rank_id must be 0 or more, and is {rank!r}")
    shown = f"{function}({role!r}, {rank})"
    say_once(function, f"{place_of_caller()}{shown} changes nothing here: {EVERYWHERE}")
