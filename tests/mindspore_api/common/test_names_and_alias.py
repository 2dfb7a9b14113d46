"""Public names, and `import mindspore` resolved to mspc."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mspc
from mspc.mindspore_api import alias
from tests.aliases import uninstall


@pytest.fixture
def mindspore() -> Iterator[object]:
    alias.install()
    yield importlib.import_module("mindspore")
    uninstall()


@pytest.mark.parametrize(
    ("module", "name", "home"),
    [
        ("mindspore", "Tensor", "mspc.mindspore_api.common.tensor"),
        ("mindspore", "Layout", "mspc.mindspore_api.parallel.layout"),
        ("mindspore.nn", "Cell", "mspc.mindspore_api.nn.cell"),
        ("mindspore.nn.optim.momentum", "Momentum", "mspc.mindspore_api.nn.optim.gradient_descent"),
        ("mindspore.train.callback", "LossMonitor", "mspc.mindspore_api.train.callback"),
        ("mindspore.train.model", "Model", "mspc.mindspore_api.train.model"),
        ("mindspore.context", "ParallelMode", "mspc.mindspore_api.context"),
        ("mindspore.common.parameter", "Parameter", "mspc.mindspore_api.common.parameter"),
        ("mindspore.common.initializer", "initializer", "mspc.mindspore_api.common.initializer"),
        ("mindspore.communication.management", "get_rank", "mspc.mindspore_api.communication.group"),
        ("mindspore.dataset.vision.c_transforms", "Rescale", "mspc.mindspore_api.dataset.vision.operations"),
        ("mindspore.dataset.transforms.c_transforms", "TypeCast", "mspc.mindspore_api.dataset.transforms"),
        ("mindspore.parallel.auto_parallel", "AutoParallel", "mspc.mindspore_api.parallel.auto_parallel"),
        ("mindspore.nn.utils", "no_init_parameters", "mspc.mindspore_api.nn.utils"),
        ("mindspore.ops.operations", "MatMul", "mspc.ops"),
        ("mindspore.runtime", "set_memory", "mspc.mindspore_api.runtime"),
        ("mindspore.ops.auto_generate.gen_ops_prim", "SumExt", "mspc.ops"),
        ("mindspore.ops.operations.nn_ops", "Softmax", "mspc.ops"),
        ("mindspore.parallel.shard", "Layout", "mspc.mindspore_api.parallel.layout"),
        ("mindspore.ops.operations.comm_ops", "_VirtualDataset", "mspc.mindspore_api.nn.wrap"),
        ("mindspore.nn.wrap.cell_wrapper", "_VirtualDatasetCell", "mspc.mindspore_api.nn.wrap"),
    ],
)
def test_names_of_scripts_are_mspcs_own(mindspore, module, name, home):
    assert getattr(importlib.import_module(module), name).__module__ == home


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            "mindspore.rewrite",
            "mspc does not support mindspore.rewrite; networks are not rewritten from outside; write them in Python",
        ),
        ("mindspore.zyxwv", "mspc does not support the module 'mindspore.zyxwv' of mindspore"),
        (
            "mindspore.common._stub_tensor",
            "mspc does not support the module 'mindspore.common._stub_tensor' of mindspore; tensors have their values "
            "always",
        ),
        (
            "mindspore.nn.optim.momentm",
            "mspc does not support the module 'mindspore.nn.optim.momentm' of mindspore; "
            "did you mean 'mindspore.nn.optim.momentum'?",
        ),
    ],
)
def test_unsupported_modules_are_named(mindspore, module, message):
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module(module)
    assert str(caught.value) == message


def test_unsupported_names_are_named(mindspore):
    with pytest.raises(AttributeError, match=r"mspc does not support mindspore\.nn\.Conv9d"):
        mindspore.nn.Conv9d  # noqa: B018  # the access is what is tested
    with pytest.raises(ImportError, match=r"mspc does not support mindspore\.nn\.Conv9d; did you mean Conv"):
        from mindspore.nn import Conv9d  # noqa: F401
    with pytest.raises(ImportError, match=r"mspc does not support mindspore\.SymbolTree; networks are not rewritten"):
        from mindspore import SymbolTree  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name 'Zyxwv'"):
        from mindspore import Zyxwv  # noqa: F401
    with pytest.raises(AttributeError, match=r"module 'mspc' has no attribute 'Tensr'; did you mean Tensor or"):
        mspc.Tensr  # noqa: B018  # the access is what is tested


def test_what_is_no_name_is_not_there(mindspore):
    for name in (".", "nn.", "a b"):
        assert not hasattr(mspc, name)
        assert not hasattr(mindspore, name)


def test_uninstall_forgets():
    alias.install()
    alias.install()
    importlib.import_module("mindspore.nn")
    uninstall()
    assert not [name for name in sys.modules if name.split(".")[0] == "mindspore"]


def test_import_mspc_loads_no_numpy():
    """Nor does looking at the names of its modules."""
    code = (
        "import sys, mspc, mspc.mindspore_api.index.module; from mspc import mint, nn, train; "
        "[dir(each) for each in (mspc, nn, mint, train)]; print('numpy' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


def test_an_old_folder_without_code_hides_no_module(tmp_path):
    """As `nn/__pycache__` that is left of a checkout from before the move."""
    (tmp_path / "mspc").symlink_to(Path(mspc.__file__).parent)
    code = (
        "import os, mspc; mspc.__path__.append(os.getcwd()); os.makedirs('nn/__pycache__'); import mspc.nn as nn;"
        "print(nn.Dense.__module__)"
    )
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert found.stdout == "mspc.mindspore_api.nn.basic\n"
