"""Options and fixtures of all tests."""

import contextlib
import gc
import linecache
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from mspc.mindspore_api import call_handler, state
from mspc.ops.op import load_operators
from mspc.passes.base import VERIFY
from tests import quick
from tests.serving import FOLDER
from tests.serving.client import SERVER
from tests.serving.server import PLANS, YOUNG, compile_plans
from tests.shares import THOROUGH, is_daily

ROOT = Path(__file__).resolve().parent.parent
LOADED = 10
"""How many times as long as on a machine of its own anything may take that a test times to tell it from a hang."""
BRIEF = 12
"""Plans that a search compiles if a test asks for brief searches."""


os.environ[VERIFY] = "1"  # for the processes that tests start, too
with contextlib.suppress(ImportError):
    import readline  # noqa: F401  # it sets the variables below for child processes, once
for _size in ("COLUMNS", "LINES"):
    # Tables have their own width, whoever runs the tests. Python does not know of variables that a library has set.
    os.environ.pop(_size, None)
    os.unsetenv(_size)
for _threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    # Threads of BLAS wait for each other by turning, which takes the cores from the other tests; workers of xdist and
    # the processes that tests start read this before they load NumPy.
    os.environ.setdefault(_threads, "1")
# As ranks of MPI do that wait for others; Open MPI has them give way by itself only where they are more than the cores.
os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
os.environ["MSPC_HANG_RECORDS"] = os.path.join(tempfile.gettempdir(), f"hang_records_of_tests_{os.getuid()}")
load_operators()

LONG = (
    "verify/scale/", "test_docs.py", "readers/pytorch/test_operators.py", "readers/pytorch/test_capture", "verify/",
    "search/plans/", "offload/", "data_parallel/", "oracle/test_judges.py", "passes/test_pass_manager.py",
    "test_planted_errors.py", "ops/test_ops.py",
    "test_conformance.py", "samples/", "compiler/test_rank_kinds.py", "compiler/test_vision_networks.py",
    "mindspore_api/common/test_public_names.py", "runtime/comm/test_mismatches.py", "readers/", "commands/",
    "checkpoint/test_resuming.py",
    "ops/collective/test_collectives.py", "engine/", "ops/cuda/", "pipelining/", "context/", "gpu/", "runtime/",
    "search/", "test_packaging.py", "test_recipes.py", "test_types.py", "test_benchmarks.py",
)  # fmt: skip
"""Files and folders of tests that take long, the longest first: they begin first, so that no core waits for one of them
at the end."""


settings.register_profile("mspc", derandomize=True)  # the same examples every time; --hypothesis-profile=default draws
settings.load_profile("mspc")
# Nor do examples hang on the modules that a process happens to have loaded, in all of which constants were looked for.
providers._get_local_constants = lambda: providers._local_constants


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="rewrite golden files that differ")
    parser.addoption("--every-case", action="store_true", help="run what takes long, too")
    parser.addoption("--thorough", action="store_true", help="take all cases that tests draw, not a share of them")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.thorough:
        os.environ[THOROUGH] = "1"  # files count their cases when they are loaded
    config.option.loadscopereorder = False  # xdist's own order is by the number of tests in a file
    gc.disable()  # until all is collected, of which nothing goes
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        stack = contextlib.ExitStack()
        stack.enter_context(server_of_commands())  # one for all processes of xdist, which inherit its address
        config.add_cleanup(stack.close)
    if hasattr(config, "workerinput") and config.option.verbose <= 0:
        from tests.distribution import send_less  # there is xdist

        send_less(config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores: tests of what waits, stands still or is killed leave a core idle."""
    return len(os.sched_getaffinity(0)) + 1 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """xdist says that a process has crashed; this says how, without which nobody understands why."""
    if error:
        from tests.distribution import how_it_ended

        reporter = node.config.pluginmanager.get_plugin("terminalreporter")
        reporter.write_line(f"[{node.gateway.id}] {how_it_ended(node)}", red=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadfile":
        return None
    from tests.distribution import Files

    return Files(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where quick tests alone are asked for, files without any need not be loaded."""
    if config.option.markexpr != "quick" or not collection_path.match("test_*.py"):
        return None
    return not quick.is_quick(collection_path) or None


def pytest_itemcollected(item: pytest.Item) -> None:
    if "quick" not in item.config.option.markexpr:
        return  # the marks would take seconds of every process
    if quick.is_first_case(item) and quick.is_quick(item.path, item.name.partition("[")[0]):
        item.add_marker(pytest.mark.quick)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests and cases that only `--thorough` runs, unless tests are given by their names. Files with long
    tests come first; the others stay as they were."""
    rare = [] if any("::" in word for word in config.args) else [item for item in items if not is_daily(item)]
    if rare:
        config.hook.pytest_deselected(items=rare)
        dropped = {*rare}
        items[:] = [item for item in items if item not in dropped]
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    file = item.nodeid.partition("::")[0].removeprefix("tests/")
    return next((place for place, begin in enumerate(LONG) if file.startswith(begin)), len(LONG))


def pytest_collection_finish() -> None:
    """Nothing that was collected goes before the end: the garbage collector need not look at it again and again."""
    gc.freeze()
    gc.set_threshold(YOUNG)
    gc.enable()


@pytest.fixture(autouse=True)
def session() -> Iterator[state.Session]:
    """Every test begins as a script under plain `python` does, whatever tests and wider fixtures left in place."""
    own = state.Session.from_environment()
    handler, before = call_handler.install(None), state.swap(own)
    yield own
    call_handler.install(handler)
    state.swap(before)


@pytest.fixture(scope="session", autouse=True)
def _served() -> Iterator[None]:
    """A server of commands, unless the process that started this one has one."""
    with contextlib.nullcontext() if SERVER in os.environ else server_of_commands():
        yield


@contextlib.contextmanager
def server_of_commands() -> Iterator[None]:
    """Start a process that runs commands of mspc for `tests.serving.SERVED`, and end it."""
    with tempfile.TemporaryDirectory() as folder:  # its name is short, as that of a socket must be
        path = f"{folder}/socket"
        command, alone = [sys.executable, str(FOLDER / "server.py"), path], {"OPENBLAS_NUM_THREADS": "1"}
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, env=os.environ | alone) as server:
            os.environ[SERVER] = path
            yield
            del os.environ[SERVER]
            server.kill()


@pytest.fixture(scope="module")
def brief_searches() -> Iterator[None]:
    """Searches of a module's tests compile few plans, in served commands too: for tests that need a search, but not its
    best plan. Under `--thorough` they compile as many as ever."""
    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get(THOROUGH):
            patch.setenv(PLANS, str(BRIEF))
            compile_plans(BRIEF, patch.setattr)
        yield


@pytest.fixture(scope="session")
def update_goldens(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten; never where CI is set: nobody reads the difference there."""
    wanted = bool(request.config.getoption("--update-goldens"))
    if wanted and os.environ.get("CI"):
        pytest.exit("--update-goldens is refused where CI is set: rewrite them at home and read the difference", 2)
    return wanted


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the test's temporary folder the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def script(own_folder: Path) -> Path:
    """The place of a script in the current folder, of which Python remembers no lines of other tests."""
    linecache.clearcache()
    return Path("net.py")


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def conformance() -> Path:
    """The folder with MindSpore's own answers, where it lies beside the checkout."""
    folder = ROOT.parent / "shared" / "conformance"
    if not folder.is_dir():
        pytest.skip(f"needs the conformance cases in {folder}")
    return folder
