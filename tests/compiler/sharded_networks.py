"""Sharded networks for 8 ranks: the beginning of their scripts, tables of them, their compile and their proof."""

from pathlib import Path

from tests.compiled_scripts import Compiled, CompileOptions, compiled_text, verify_target
from tests.texts import table_of

HEAD = """
import mindspore as ms, numpy as np
from mindspore import nn, ops, Layout, Parameter, Tensor
from mindspore.ops import operations as P, composite as C
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8, full_batch=True)
random = np.random.default_rng(3)
def tensor(*shape):
    return Tensor(random.uniform(0.5, 1.5, shape), ms.float32)
layout = Layout((2, 2, 2), ("dp", "sp", "mp"))
"""


def networks(table: str) -> dict[str, str]:
    """Return the scripts of a table in `sharded_networks.toml`, without HEAD."""
    return table_of(Path(__file__).with_suffix(".toml"), table)


def compiled(folder: Path, text: str) -> Compiled:
    """Compile a script, written without HEAD, for 8 ranks."""
    return compiled_text(folder, HEAD + text, 8)


def check_equals_one_device(folder: Path, text: str, head: str = HEAD) -> None:
    """Raise MspcError if the ranks of a script do not compute what one device does."""
    (folder / "net.py").write_text(head + text)
    verify_target(str(folder / "net.py"), CompileOptions(), seed=1)
