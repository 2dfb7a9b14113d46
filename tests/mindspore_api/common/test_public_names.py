"""No public name is lost, and none changes what it is or takes: `public_names.txt` holds all there were."""

import ast
import importlib
import inspect
import math
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

import mspc
from mspc import Tensor
from mspc.mindspore_api import alias, index, mint, nn, rooms, train
from mspc.mindspore_api.index.functions import is_expression, tree_of
from mspc.mindspore_api.index.module import defined_in, modules_in, names_of, said_of
from mspc.mindspore_api.index.table import IndexRow, module_of, rows_of
from mspc.mindspore_api.rooms import ROOMS
from tests.aliases import uninstall
from tests.serving import run_process, succeed
from tests.shares import PARTS, share_of
from tests.test_omissions import excepted

THERE = Path(__file__).with_name("public_names.txt")
IN_NUMPY = ("numpy.array_creations", "numpy.array_ops", "numpy.logic_ops", "numpy.math_ops")
"""Files that MindSpore has, too."""


UNKNOWN = "(?)"
"""A signature of which Python knows nothing."""
UNSAID = re.compile(r" at 0x[0-9a-f]+|: 'Any'| -> 'Any'")
"""Names that a signature need not say to be known."""


def described(found: Any) -> str:
    """The kind of an object and what it is called with, on one line."""
    if isinstance(found, ModuleType):
        return "module"
    if not callable(found):
        return type(found).__name__
    kind = "class" if isinstance(found, type) else "function"
    try:
        signature = str(inspect.signature(found))
    except (TypeError, ValueError):
        signature = UNKNOWN
    return f"{kind} {UNSAID.sub('', signature)}"


@cache
def described_once(found: Any) -> str:
    return described(found)


def members(name: str) -> Iterator[tuple[str, str]]:
    """(name, description) of what a script may have of a public module; of a file without `__all__` what it defines."""
    module = importlib.import_module(f"mspc.{name}".rstrip("."))
    home = importlib.import_module(rooms.home_of(name) or "")
    listed = getattr(home, "__all__", ()) if name else dir(module)
    if not listed and "__dir__" in vars(home):
        listed = dir(home)
    if not listed:
        found = vars(home).items()
        listed = [n for n, its in found if n[0] != "_" and getattr(its, "__module__", "") == home.__name__]
    for member in listed:
        found = getattr(module, member)
        is_hashed = isinstance(found, FunctionType | type)
        if not member.startswith("__"):
            yield member, described_once(found) if is_hashed else described(found)


def methods() -> Iterator[tuple[str, str]]:
    """(name, description) of what tensors have."""
    for name in dir(Tensor([1.0])):
        if not name.startswith("_"):
            static = inspect.getattr_static(Tensor, name, None)
            yield name, "property" if isinstance(static, property) else described(getattr(Tensor, name))


FIRST = ("amp", "context", "device", "dtype", "runtime")
FILES = (
    "common.dtype", "common.initializer", "common.parameter", "common.seed", "common.tensor",
    "communication.comm_func", "communication.management", "dataset.config", "dataset.transforms", "dataset.vision",
    "mint.distributed", "mint.nn.functional", "nn.loss", "ops.functional",
    "ops.operations", "train.amp", "train.callback", "train.metrics", "train.model", "train.serialization",
)  # fmt: skip
"""Public modules that are no folders of mindspore_api/."""


def known_modules() -> list[str]:
    """Public modules but for the files that only mspc has; those of docs/reference/names.md are among them."""
    modules = rooms.public_modules()
    folders = {m for m in modules if not m or hasattr(importlib.import_module(rooms.home_of(m) or ""), "__path__")}
    judged = {m for m in rows_of("mindspore", "lists") if m not in ("mspc", "Tensor") and not said_of(m)}
    return sorted({*folders, *judged, *rooms.other_names(), *FIRST, *FILES, *IN_NUMPY})


def public_names() -> dict[str, dict[str, str]]:
    """Description by name, for every public module and for `Tensor`."""
    return {**{module: dict(members(module)) for module in known_modules()}, "Tensor": dict(methods())}


def text_of(found: dict[str, dict[str, str]]) -> str:
    """Which modules have the same names; then for each description the modules that have it and their names that it
    fits."""
    same: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for module, names in found.items():
        same.setdefault(tuple(names.items()), []).append(module or "mspc")
    lines = [f"{' '.join(modules)} =" for modules in same.values() if len(modules) > 1]
    for description in sorted({d for names in found.values() for d in names.values()}):
        lines.append(description)
        places: dict[str, list[str]] = {}
        for names, modules in same.items():
            there = " ".join(sorted(name for name, its in names if its == description))
            if there:
                places.setdefault(there, []).append(modules[0])
        lines += [f"  {' '.join(modules)}: {names}" for names, modules in places.items()]
    return "\n".join(lines) + "\n"


def read(text: str) -> dict[str, dict[str, str]]:
    """The text that `text_of` wrote."""
    found: dict[str, dict[str, str]] = {}
    description = ""
    for line in text.splitlines():
        if line.endswith(" ="):
            names: dict[str, str] = {}
            found |= {module: names for module in line.split()[:-1]}
        elif not line.startswith("  "):
            description = line
        else:
            modules, _, there = line.strip().partition(": ")
            for module in modules.split():
                found.setdefault(module, {}).update(dict.fromkeys(there.split(), description))
    return {"" if module == "mspc" else module: names for module, names in found.items()}


def test_every_name_of_before_is_there_and_takes_the_same(update_goldens: bool) -> None:
    """`--update-goldens` takes new names in."""
    found = public_names()
    if update_goldens:
        THERE.write_text(text_of(found), encoding="utf-8")
    wrong: list[str] = []
    for module, names in read(THERE.read_text(encoding="utf-8")).items():
        for name, description in names.items():
            now = found.get(module, {}).get(name)
            if now is None:
                there = importlib.import_module(f"mspc.{module}".rstrip("."))
                now = described(getattr(there, name)) if hasattr(there, name) else None
            if now != description and not (now and description.endswith(UNKNOWN)):
                wrong.append(f"{module}.{name} was {description}, is {now or 'missing'}")
    assert not wrong, "\n".join(wrong[:50])


def test_a_lost_name_and_a_changed_one_are_told() -> None:
    found = {"": {"a": "function (x)", "b": "class ()"}, "nn": {"a": "function (x)", "b": "class ()"}}
    assert read(text_of(found)) == found
    assert text_of(found) == "mspc nn =\nclass ()\n  mspc: b\nfunction (x)\n  mspc: a\n"


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
    found = succeed(sys.executable, "-c", code)
    assert found.stdout == "False\n"


def test_an_old_folder_without_code_hides_no_module(tmp_path):
    """As `nn/__pycache__` that is left of a checkout from before the move."""
    (tmp_path / "mspc").symlink_to(Path(mspc.__file__).parent)
    code = (
        "import os, mspc; mspc.__path__.append(os.getcwd()); os.makedirs('nn/__pycache__'); import mspc.nn as nn;"
        "print(nn.Dense.__module__)"
    )
    found = succeed(sys.executable, "-c", code, cwd=tmp_path)
    assert found.stdout == "mspc.mindspore_api.nn.basic\n"


def test_names_are_classes_and_functions_or_what_all_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shelf" / "inner").mkdir(parents=True)
    (tmp_path / "shelf" / "__init__.py").write_text("")
    (tmp_path / "shelf" / "cups.py").write_text(
        "class Cup:\n    pass\n\n\ndef fill(cup):\n    pass\n\n\npour = fill\n_BIG = 3\n\n\ndef _wash(cup):\n    pass\n"
    )
    (tmp_path / "shelf" / "plates.py").write_text(
        '__all__ = ["Plate"]\n\n\nclass Plate:\n    pass\n\n\nclass Saucer:\n    pass\n'
    )
    (tmp_path / "shelf" / "hidden.py").write_text("__all__: tuple[str, ...] = ()\n\n\nclass Mould:\n    pass\n")
    (tmp_path / "shelf" / "inner" / "__init__.py").write_text("")
    (tmp_path / "shelf" / "inner" / "spoons.py").write_text("class Spoon:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("shelf")
    cups = dict.fromkeys(["Cup", "fill", "pour"], "shelf.cups")
    assert defined_in("shelf") == cups | {"Plate": "shelf.plates"}
    assert modules_in("shelf") == ["cups", "hidden", "inner", "plates"]
    assert defined_in("shelf.cups") == cups
    assert defined_in("shelf.inner") == {"Spoon": "shelf.inner.spoons"}
    assert [name for name in sys.modules if name.startswith("shelf.")] == []


def test_a_package_answers_by_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of its files, of other modules, of every name of another, and modules; none that the table hides is shown,
    and no file hides a function."""
    (tmp_path / "drawer").mkdir()
    opening = "from mspc.mindspore_api.index.module import answers\n__getattr__, __dir__ = answers(__name__)\n"
    (tmp_path / "drawer" / "__init__.py").write_text(opening)
    (tmp_path / "drawer" / "knife.py").write_text("def knife(): ...\ndef sharpen(): ...\nclass Fork: ...\n")
    (tmp_path / "tables").mkdir()
    table = "all: drawer\nmodules: knife\nhidden from math: pi _tau=tau\nfrom math: root=sqrt\neach: *_ext = mint.*\n"
    (tmp_path / "tables" / "drawer.txt").write_text(table)
    monkeypatch.setattr(index, "__path__", [*index.__path__, str(tmp_path / "tables")])
    monkeypatch.syspath_prepend(tmp_path)
    drawer = importlib.import_module("drawer")
    importlib.import_module("drawer.knife")
    assert drawer.__all__ == dir(drawer) == ["Fork", "knife", "root", "sharpen"]
    assert drawer.knife is sys.modules["drawer.knife"].knife
    assert drawer.Fork.__module__ == "drawer.knife"
    assert (drawer.pi, drawer._tau, drawer.root) == (math.pi, math.tau, math.sqrt)
    assert drawer.abs_ext is mint.abs
    with pytest.raises(AttributeError, match=r"drawer has no 'Fok'; did you mean Fork\?"):
        drawer.Fok  # noqa: B018  # the access is what is tested


def test_a_module_that_was_imported_hides_no_function() -> None:
    """Both stand in files of their names."""
    code = "from mspc import common, parallel, recompute; import mspc.mindspore_api.parallel.layout as there; "
    code += "print(common.recompute is recompute, parallel.shard.__name__)"
    found = succeed(sys.executable, "-c", code)
    assert found.stdout == "True shard\n"


@pytest.mark.parametrize("package", [nn, nn.optim, train])
def test_every_public_name_is_there_and_has_a_docstring(package: object) -> None:
    names = package.__all__  # type: ignore[attr-defined]  # found by the package's __getattr__
    assert set(names) <= set(dir(package))
    assert [name for name in names if not getattr(package, name).__doc__] == []


def test_looking_for_a_name_imports_its_module_only() -> None:
    code = "import sys; from mspc import nn; nn.ReLU; print('mspc.mindspore_api.nn.loss' in sys.modules)"
    found = succeed(sys.executable, "-c", code)
    assert found.stdout == "False\n"


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
    done = run_process(sys.executable, "-c", WALK, before, str(parts))
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


(API,) = (Path(mspc.__file__).parent / room for room in ROOMS)
Owner = ast.ClassDef | None


def functions(tree: ast.AST, owner: Owner = None) -> Iterator[tuple[Owner, ast.FunctionDef]]:
    """Public functions and methods, constructors and calls."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from functions(node, node)
        elif isinstance(node, ast.FunctionDef) and (node.name[0] != "_" or node.name in ("__init__", "__call__")):
            yield owner, node


def unread(owner: Owner, function: ast.FunctionDef) -> Iterator[str]:
    """Arguments that the body does not read, and that no docstring names."""
    given = function.args
    names = [arg.arg for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg) if arg]
    body = [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    if not body or isinstance(body[0], ast.Raise):
        return
    read = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    about = f"{ast.get_docstring(function) or ''} {ast.get_docstring(owner) or '' if owner else ''}"
    for name in names:
        if name not in ("self", "cls") and name[0] != "_" and name not in read | {"locals", "vars"}:
            if not re.search(rf"\b{name}\b", about):
                yield name


def found() -> set[str]:
    names: set[str] = set()
    for file in sorted(API.rglob("*.py")):
        place = file.relative_to(API).as_posix()
        for owner, function in functions(ast.parse(file.read_text(encoding="utf-8"))):
            full = f"{owner.name}.{function.name}" if owner else function.name
            names |= {f"{place}:{full}.{name}" for name in unread(owner, function)}
    return names | {f"{row.module}:{row.names[0]}.{name}" for row in all_rows() for name in unread_of_row(row)}


def all_rows() -> set[IndexRow]:
    """Every row of the index that is a function."""
    modules = {module_of(path.name) for path in (API / "index").glob("*.txt")}
    found = {row for module in modules for row in rows_of(module).values()}
    return {row for row in found if row.kind != "class" and is_expression(row)}


def unread_of_row(row: IndexRow) -> Iterator[str]:
    tree = tree_of(row)
    tree.body.insert(0, ast.Expr(ast.Constant(row.doc)))
    yield from unread(None, tree)
    del tree.body[0]


def test_every_argument_is_read_or_spoken_of() -> None:
    known = [name for names in excepted()["unread_arguments"].values() for name in names]
    names = found()
    assert [n for n in sorted(names) if not any(n == k or n.startswith(f"{k}.") for k in known)] == []
    assert [k for k in known if not any(n == k or n.startswith(f"{k}.") for n in names)] == [], "they are read by now"
