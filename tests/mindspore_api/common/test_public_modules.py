"""Every public module under both names, by attribute and by statement, before and after a network ran; what `dir`
lists."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import ModuleType

import pytest

import mspc
from mspc.mindspore_api import alias, rooms
from mspc.mindspore_api.index.module import names_of
from tests.shares import PARTS, share_of

WALK = '''
import gc, importlib, os, sys
import lark, networkx, numpy as np, ml_dtypes
import mspc
from mspc.mindspore_api import alias, rooms
from mspc.ops.op import load_operators

load_operators()  # once for all
gc.disable()
gc.freeze()  # hundreds of processes are forked: none touches what it does not use

def check(name):
    first, _, rest = name.partition(".")
    if before == "attribute":
        found = mspc
        for part in name.split("."):
            found = getattr(found, part)
    exec(f"import mspc.{name}")
    module = importlib.import_module(f"mspc.{name}")
    assert sys.modules[f"mspc.{name}"] is module
    parent, _, last = f"mspc.{name}".rpartition(".")
    namespace = {}
    exec(f"from {parent} import {last} as found", namespace)
    assert getattr(sys.modules[parent], last) is namespace["found"]

def said(name):
    try:
        check(name)
    except BaseException as error:
        print(f"{name}: {type(error).__name__}: {error}", flush=True)

def forked(work):
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    work()
    os._exit(0)

def walk(some):
    """Each in a process of its own; those below, whose import begins with its own, each in one that goes on there."""
    for name in some:
        if name.rpartition(".")[0] not in some:
            below = [other for other in some if other.startswith(f"{name}.")]
            forked(lambda: (said(name), walk(below)))

def walk_before(module, some):
    """Load the module that most others import, after all were walked that it imports itself. Those left lie in no
    circle with any of these: had one loaded them itself, it would have begun their circles where they begin alone.

    Returns:
        those left.
    """
    read, write = os.pipe()
    forked(lambda: (importlib.import_module(module), os.write(write, " ".join(homes()).encode())))
    os.close(write)
    loaded = os.read(read, 1 << 16).decode().split()
    walk([name for name in some if rooms.home_of(name) in loaded])
    importlib.import_module(module)
    return [name for name in some if rooms.home_of(name) not in loaded]

def homes():
    return [home for home in map(rooms.home_of, names) if home in sys.modules]

before, parts = sys.argv[1], int(sys.argv[2])
alias.install()
names = [name for name in rooms.public_modules() if name]
packages = {name.rpartition(".")[0] for name in names}
leaves = [name for name in names if name not in packages]
names = [name for name in names if name in packages or name in leaves[::parts]]
if before == "network":
    mspc.nn.Dense(4, 4)(mspc.Tensor(np.ones((2, 4), np.float32)))
    for name in names:
        said(name)
else:
    left = walk_before("mspc.mindspore_api.common", names)
    walk(walk_before("mspc.mindspore_api.train.model", left))
'''


@pytest.mark.share(2)
@pytest.mark.parametrize("before", ["statement", "attribute", "network"])
def test_every_module_imports_alone(before):
    """Each in a process where nothing was asked for but the packages that it lies in, and what imports none of it: all
    packages, and a share of the modules in them."""
    parts = {"statement": 4, "attribute": PARTS, "network": 1}[before] if share_of(PARTS) == 1 else 1
    command = [sys.executable, "-c", WALK, before, str(parts)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_a_module_hides_no_function_of_its_name():
    """As `mspc.parallel.shard`, whichever is asked for first."""
    found = []
    for name in filter(None, rooms.public_modules()):
        package, _, last = f"mspc.{name}".rpartition(".")
        home = importlib.import_module(rooms.home_of(package.partition(".")[2]) or "")
        if last in dir(home) and not isinstance(getattr(home, last), ModuleType):
            importlib.import_module(f"mspc.{name}")
            assert getattr(importlib.import_module(package), last) is alias.public(getattr(home, last))
            found.append(name)
    assert "parallel.shard" in found


def test_what_is_set_on_a_public_module_counts_until_it_is_deleted():
    import mspc.dataset.sources as sources

    behind = importlib.import_module("mspc.mindspore_api.dataset.sources")
    before = behind.LIMIT
    sources.LIMIT = 1
    sources.LIMIT = 2
    assert behind.LIMIT == 2
    del sources.LIMIT
    assert sources.LIMIT == behind.LIMIT == before
    sources.fresh = 1
    assert behind.fresh == 1
    del sources.fresh
    assert not hasattr(behind, "fresh")


@pytest.mark.parametrize("module", ["checks", "errors", "launch", "index", "setting", "state"])
def test_what_no_script_imports_is_no_public_module(module):
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"mspc.{module}")


def test_dir_lists_the_public_names():
    assert {*names_of("mspc"), "nn", "ops", "mint", "runtime", "dataset", "train"} <= set(dir(mspc))
    assert {"Dense", "Cell", "Adam", "MSELoss"} <= set(dir(mspc.nn))
    assert {"relu", "ReLU", "matmul", "MatMul"} <= set(dir(mspc.ops))
    assert {"add", "cat", "nn"} <= set(dir(mspc.mint))
    assert {"Linear", "ReLU", "functional"} <= set(dir(mspc.mint.nn))
    own = {"Any", "importlib", "annotations", "functools", "install_public", "Members", "sys"}
    for module in (mspc, mspc.nn, mspc.ops, mspc.mint, mspc.mint.nn, mspc.runtime, mspc.train):
        assert own.isdisjoint(dir(module))


@pytest.mark.parametrize(("module", "name"), [
    ("mspc", "Tensor"), ("mspc.nn", "Dense"), ("mspc.ops", "relu"), ("mspc.mint", "add"), ("mspc.mint.nn", "Linear"),
    ("mspc.runtime", "set_memory"),
])  # fmt: skip
def test_a_star_takes_the_public_names(module, name):
    namespace: dict[str, object] = {}
    exec(f"from {module} import *", namespace)
    assert namespace[name] is getattr(importlib.import_module(module), name)
    assert "importlib" not in namespace
