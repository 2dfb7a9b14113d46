"""`mspc view` and `mspc.view`: what they take, what they write, what they say."""

import json
import webbrowser
from pathlib import Path

import pytest

import mspc
from mspc.cli import app
from mspc.commands.view import page as command
from mspc.commands.view.page import ViewOptions, facts_of
from tests.commands.view.reading import compiled, elements
from tests.commands.view.test_view_mistakes import NETWORK
from tests.compiler.test_rank_kinds import HEAD, RESHARDED


@pytest.fixture(autouse=True)
def net(own_folder: Path) -> None:
    """A script in the working folder."""
    Path("net.py").write_text(NETWORK)


def run(*arguments: str) -> None:
    app(["view", *arguments], standalone_mode=False)


def facts_in(page: str) -> dict[str, object]:
    return json.loads(page.split('id="facts">')[1].split("</script>")[0])


def test_a_script_is_compiled_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    run("net.py")
    page = Path("net.view.html").read_text(encoding="utf-8")
    facts = facts_in(page)
    assert (facts["title"], facts["ranks"]) == ("net.py", 2)
    assert capsys.readouterr().out.startswith("net.view.html: ")
    assert sorted(path.name for path in Path().iterdir()) == ["net.py", "net.view.html"]


def test_a_folder_is_shown_beside_it_and_opened(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    compiled(Path("net.py"), Path("graphs"))
    run("graphs", "--open", "--machine", "h100")
    assert opened == [Path("graphs.view.html").resolve().as_uri()]
    assert "NVIDIA H100" in str(facts_in(Path("graphs.view.html").read_text(encoding="utf-8"))["machine"])


def test_a_quiet_command_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    run("net.py", "--quiet", "--out", "page.html")
    assert capsys.readouterr() == ("", "")
    assert Path("page.html").stat().st_size > 0


def test_every_kind_of_many_ranks_of_a_script_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "RANKS", 1)
    Path("net.py").write_text(HEAD.format(ranks=12) + RESHARDED.format(ranks=12, other=2))
    script = facts_of("net.py", ViewOptions())
    folder = facts_of(str(compiled(Path("net.py"), Path("graphs"))), ViewOptions())
    assert [one["count"] for one in script["programs"]] == [one["count"] for one in folder["programs"]]
    assert sum(one["count"] for one in script["programs"]) == 12
    assert 1 < len(script["programs"]) < 12
    assert script["notes"] == []
    for name in ("graphs", "strings", "types", "layouts", "ways"):
        assert script[name] == folder[name]


def test_ranks_with_networks_of_their_own_are_shown_up_to_some() -> None:
    Path("net.py").write_text(
        "from mindspore.communication import get_rank, init\ninit()\n"
        + NETWORK.replace("device_num=2", "device_num=32").replace("x) * 2", "x) * (get_rank() % 3)")
        .replace("np.ones((4", "np.ones((64")
    )  # fmt: skip
    run("net.py", "--quiet")
    facts = facts_in(Path("net.view.html").read_text(encoding="utf-8"))
    assert [one["count"] for one in facts["programs"]] == [16]
    assert "the folder holds 16 of 32 ranks' programs" in facts["notes"]


def test_measured_times_stand_beside_predicted_ones() -> None:
    compiled(Path("net.py"), Path("graphs"))
    folder = mspc.view("graphs")
    assert facts_in(folder.html)["measured"] == {}
    graph = facts_in(folder.html)["graphs"][0]  # type: ignore[index]
    strings = facts_in(folder.html)["strings"]
    types = facts_in(folder.html)["types"]
    index = next(i for i, seconds in enumerate(graph["schedule"]["seconds"]) if seconds)
    instance = graph["nodes"]["instance"][index]
    label = strings[graph["nodes"]["op"][index]] + (f" '{strings[instance]}'" if instance >= 0 else "")  # type: ignore[index]
    result = types[graph["nodes"]["type"][index]][0]  # type: ignore[index]
    events = [
        {"name": label, "ph": "X", "pid": 1, "ts": begin, "dur": 2.0 * step,
         "args": {"step": step, "node": index, "result": result}}
        for step, begin in ((1, 0.0), (2, 50.0))
    ]  # fmt: skip
    Path("trace.json").write_text(json.dumps({"traceEvents": [{"ph": "M"}, *events]}))
    measured = facts_in(mspc.view("graphs", profile="trace.json").html)["measured"]
    assert measured == {"1": {"steps": 2, "nodes": {str(index): [0.0, 3e-06]}}}


def test_a_notebook_shows_a_script() -> None:
    shown = mspc.view("net.py", ranks=4)._repr_html_()
    ((tag, attributes),) = elements(shown)
    assert tag == "iframe"
    assert facts_in(str(attributes["srcdoc"]))["ranks"] == 4


def test_help_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    app(["--help"], standalone_mode=False)
    assert "view" in capsys.readouterr().out
