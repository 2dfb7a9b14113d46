"""A script for many versions: what it is ready for is no gap."""

import importlib
from typing import TYPE_CHECKING

import mindspore as ms

try:
    from mindspore import _checkparam_of_then as validator  # note mindspore._checkparam_of_then
except ImportError:
    from mindspore import _checkparam_of_before as validator  # lacks mindspore._checkparam_of_before

try:
    from mindspore.ops import relu
except ImportError:
    from mindspore.ops import relu_of_before as relu  # note mindspore.ops.relu_of_before

try:
    import mindspore.hal_of_then as hal  # note mindspore.hal_of_then
except (ImportError, RuntimeError):
    hal = None

if ms.__version__ >= "2.9":
    from mindspore.ops import flash_attention_of_then as attention  # note mindspore.ops.flash_attention_of_then
else:
    attention = None

if hasattr(ms, "set_device_of_then"):
    ms.set_device_of_then("CPU")  # note mindspore.set_device_of_then

if TYPE_CHECKING:
    from mindspore.types_of_then import Kind  # note mindspore.types_of_then

try:
    from mindspore.train import SummaryOfThen  # lacks mindspore.train.SummaryOfThen
except ImportError as error:
    raise SystemExit("a newer MindSpore is needed") from error

try:
    count = ms.Tensor([1]).count_of_then()
except ValueError:
    count = 0


def moved(x: "Kind"):
    return validator.check(hal.something(attention(relu(x))))


def annotated(x: ms.KindOfThen):  # lacks mindspore.KindOfThen
    y: ms.KindOfThen = x
    return y


try:
    ms.set_context(max_call_depth=7)  # ignored mindspore.set_context(max_call_depth)
except AttributeError:
    ms.no_such_name_of_then()  # note mindspore.no_such_name_of_then

by_name = importlib.import_module("mindspore.nn")
by_name.Dense(3, 4, slope_of_then=1)
by_name.LayerOfThen()
gone = importlib.import_module("mindspore.module_of_then")
layer = getattr(ms.nn, "Dense")
layer(3, 4, of_then=1)
perhaps = getattr(ms.ops, "operator_of_then", None)
if perhaps is not None:
    perhaps(1)
config = {
    "mode": 0,
    "max_device_memory": "58GB",
    "key_of_then": 1,
}
ms.set_context(**config)
either = {"key_of_then": 1} if perhaps else {}
ms.set_context(**either)
