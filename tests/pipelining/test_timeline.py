"""Timelines of schedules and of compiles: durations, copies to the host, idle time."""

import itertools
from pathlib import Path
from typing import Any

import pytest

import mspc as ms
from mspc import nn
from mspc.analysis.cost.machine import H200
from mspc.analysis.cost.nodes import seconds
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import WORK, Graph, Node
from mspc.ops.collective.point_to_point import SendToStage
from mspc.output.stage_times import stage_times
from mspc.passes.lib.schedules import FORWARD, Action, Schedule, named_schedule
from mspc.passes.lib.timeline import ScheduleTimeline, Task, TaskCopies, copies_of, equal_durations, leaving, timeline
from tests.compiled_scripts import compiled_script
from tests.errors import error_of
from tests.grouped import grouped
from tests.pipelining.staged_script import printed
from tests.texts import IMPORTS

# Copies to the host and back pace a schedule: nodes that wait for them do so in order, everything else hides.

STAGES, PARTS = 4, 12


def paced(schedule: Schedule, seconds: float, waits: bool = True) -> ScheduleTimeline:
    """Forwards and both gradients take one each, copies one way so long."""
    copies: dict[Task, TaskCopies] = {}
    for stage in range(STAGES):
        own = dict.fromkeys(schedule.chunks_of(stage), seconds)
        copies |= copies_of(schedule, stage, own, waits)
    return timeline(schedule, equal_durations(schedule), copies=copies)


def made(name: str) -> Schedule:
    return named_schedule(name, STAGES, PARTS, None)


@pytest.mark.parametrize("waits", [True, False])
def test_copies_of_a_micro_batch_hide_behind_the_work_on_others(waits: bool) -> None:
    schedule = made("1f1b")
    alone = timeline(schedule, equal_durations(schedule)).makespan
    assert paced(schedule, 2.5, waits).makespan == pytest.approx(alone)
    assert paced(schedule, 4, waits).makespan > alone + 1, "the bus has no time for so much"


def test_forwards_wait_for_all_but_the_last_that_leave() -> None:
    spans = [span for span in paced(made("gpipe"), 3).spans[0] if span.action.kind == FORWARD]
    assert [span.start for span in spans[:5]] == [0, 1, 4, 7, 10]
    assert [span.start for span in paced(made("gpipe"), 3, False).spans[0][:5]] == [0, 1, 2, 3, 4]


def test_what_comes_back_at_once_stays() -> None:
    schedule = made("1f1b")
    assert not [*leaving(schedule, STAGES - 1)]
    assert len([*leaving(schedule, 0)]) == PARTS - 2, "behind the last two there are no forwards"


def test_fetches_run_one_behind_another_from_their_places_on() -> None:
    schedule = named_schedule("gpipe", 1, 2, None)
    copied = [(0, 0, 0), (0, 1, 0)]
    copies = {
        ("F", 0, 0): TaskCopies(left=[(copied[0], 5.0)]),
        ("F", 0, 1): TaskCopies(left=[(copied[1], 1.0)]),
        ("B", 0, 0): TaskCopies(ahead=[(copied[0], 0.0), (copied[0], 2.0), (copied[1], 3.0)], read=copied[:1]),
        ("B", 0, 1): TaskCopies(read=copied[1:]),
    }
    spans = timeline(schedule, equal_durations(schedule), copies=copies).spans[0]
    # The first is gone at 6 and back at 8, the second comes until 11.
    assert [(str(span.action), span.start) for span in spans] == [("0F0", 0), ("0F1", 1), ("0B0", 8), ("0B1", 11)]


def test_copies_of_other_chunks_are_alike() -> None:
    own = TaskCopies([((0, 3, 1), 0.0)], [(0, 2, 0)], [((0, 4, 0), 1.5)])
    assert own.like({0: 7}) == TaskCopies([((7, 3, 1), 0.0)], [(7, 2, 0)], [((7, 4, 0), 1.5)])


# The timeline of a compile: from the times of its graphs' nodes, which may be measured, and of messages by border.

SCRIPT = IMPORTS + """
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True, pipeline_stages=3)
class Layer(nn.Cell):
    def __init__(self, stage, width):
        super().__init__()
        self.w = Parameter(Tensor(np.ones((4, width), np.float32)))
        self.back = Parameter(Tensor(np.ones((width, 4), np.float32)))
        self.pipeline_stage = stage
    def construct(self, x):
        return ops.matmul(x, self.w)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = Layer(0, 32), Layer(1, 2), Layer(2, 4)
        self.back = Parameter(Tensor(np.ones((32, 4), np.float32)))
        self.more = Parameter(Tensor(np.ones((2, 4), np.float32)))
    def construct(self, x):
        x = ops.tanh(self.first(x))
        x = self.second(ops.MatMul().set_stage(1)(x, self.back))
        return self.last(ops.MatMul().set_stage(2)(ops.tanh(x), self.more)).sum()
cell = nn.PipelineCell(Net(), 4)
step = nn.TrainOneStepCell(cell, nn.SGD(cell.trainable_params(), 0.1))
step(Tensor(np.ones((8, 4), np.float32)))
"""


@pytest.fixture
def graphs(tmp_path: Path) -> list[Graph]:
    """The times of the ranks of three stages, between which 2 x 32 and 2 x 2 numbers go."""
    (tmp_path / "net.py").write_text(SCRIPT)
    compiled = compiled_script(tmp_path / "net.py", 3)
    return [compiled.rank_graph(rank) for rank in range(3)]


def test_nodes_and_messages_take_what_is_measured(graphs: list[Graph]) -> None:
    """A forward of 1 and a backward of 2; messages of 0.25 a number of the border, which the first one hides."""

    def own(node: Node) -> float:
        return {"F": 1.0, "B": 2.0}.get(node.attrs.get(WORK, ""), 0.0)

    found = stage_times(graphs, own=own, way=lambda node: node.inputs[0].type.nbytes / 16)
    starts = [spans[0].start for spans in found.spans]
    assert starts == [0, 1 + 16, 17 + 1 + 1]
    assert found.spans[1][-1].end - found.spans[2][-1].end == 1 + 2
    assert found.spans[0][-1].end - found.spans[1][-1].end == 16 + 2
    assert [tail.end - tail.start for tail in found.tails.values()] == [0, 0, 0]
    assert stage_times(graphs, own=own, way=lambda _: 0.0).makespan == 6 * 3


def test_updates_are_behind_the_last_micro_batch(graphs: list[Graph]) -> None:
    """Each takes 1 here; the first stages wait for the loss, which the last one sends behind its own work."""
    updates = [sum(node.phase == "update" and not node.op.is_view for node in graph.nodes) for graph in graphs]

    def own(node: Node) -> float:
        return {"F": 1.0, "B": 2.0}.get(node.attrs.get(WORK, ""), float(node.phase == "update"))

    found = stage_times(graphs, own=own, way=lambda _: 0.0)
    assert all(updates)
    assert [tail.end - tail.start for tail in found.tails.values()] == updates
    assert [tail.start for tail in found.tails.values()] == [18, 16, 14]
    assert found.makespan == 18 + updates[0]


def test_a_machine_says_what_is_not_measured(graphs: list[Graph]) -> None:
    found = stage_times(graphs)
    calls = [node for node in graphs[1].nodes if WORK in node.attrs]
    busy = found.busy(1)
    assert busy > sum(seconds(node) for node in calls)
    assert busy < sum(seconds(node) for node in graphs[1].nodes)
    (slow, quick) = (
        max(seconds(n) for n in graph.nodes if isinstance(n.op, SendToStage)) for graph in (graphs[0], graphs[2])
    )
    assert slow == H200.collective_seconds("Send", 256, range(2))
    assert slow > quick


# Idle time and memory of schedules are those of the formulas in their papers, for equal stages.

STAGE_COUNTS = (2, 3, 4, 8)
TIMES = [(1, 1, 1), (2, 2, 2), (3, 4, 2), (5, 5, 1), (2, 3, 2)]
"""The seconds of a forward, a gradient for inputs and a gradient for weights of one chunk."""


def of_equal_stages(schedule: Schedule, times: tuple[int, int, int] = (1, 1, 1)) -> ScheduleTimeline:
    return timeline(schedule, equal_durations(schedule, *times))


def idle(made: ScheduleTimeline, *, postponed: bool = False) -> set[float]:
    """The idle times of all stages."""
    return {made.idle(stage, postponed=postponed) for stage in range(made.schedule.stages)}


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("stages", STAGE_COUNTS)
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_idle_time_of_whole_stages(name: str, stages: int, times: tuple[int, int, int]) -> None:
    """(p - 1) (F + B)."""
    for micro_batches in range(stages, 17):
        made = of_equal_stages(named_schedule(name, stages, micro_batches), times)
        assert idle(made) == {(stages - 1) * sum(times)}


@grouped([*itertools.product(("gpipe", "interleaved"), STAGE_COUNTS, (1, 2, 3, 4), TIMES)])
def test_idle_time_of_several_chunks(name: str, stages: int, chunks: int, times: tuple[int, int, int]) -> None:
    """(p - 1) (F + B) / v, where F and B are of all chunks of a stage: here they are of one. For numbers of
    micro-batches that the stages do not divide, too."""
    for micro_batches in range(stages, 17, 3):
        made = of_equal_stages(named_schedule(name, stages, micro_batches, chunks), times)
        assert idle(made) == {(stages - 1) * sum(times)}


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("stages", STAGE_COUNTS)
def test_idle_time_of_zero_bubble_h1(stages: int, times: tuple[int, int, int]) -> None:
    """(p - 1) (F + I - W), a third of 1F1B's where F = I = W."""
    forward, input_gradient, weight_gradient = times
    for micro_batches in range(stages, 17):
        made = of_equal_stages(named_schedule("zero_bubble_h1", stages, micro_batches), times)
        assert idle(made) == {(stages - 1) * (forward + input_gradient - weight_gradient)}


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("stages", STAGE_COUNTS)
def test_idle_time_of_dual_pipe_v(stages: int, times: tuple[int, int, int]) -> None:
    """At most (p - 1) (F + 2 B - 3 W) for 2 p - 1 micro-batches and more; p actions if all take equally long."""
    forward, backward, weight_gradient = times[0], times[1] + times[2], times[2]
    for micro_batches in range(2 * stages - 1, 2 * stages + 9):
        (found,) = idle(of_equal_stages(named_schedule("dual_pipe_v", stages, micro_batches), times))
        assert found <= (stages - 1) * (forward + 2 * backward - 3 * weight_gradient)
        if len(set(times)) == 1:
            assert found == stages * forward


@pytest.mark.parametrize("stages", STAGE_COUNTS)
@pytest.mark.parametrize("name", ["zero_bubble_2p", "zero_bubble_v"])
def test_no_idle_time(name: str, stages: int) -> None:
    """For m of 2 p - 1 and more: with fewer, a stage has not as many forwards as the first gradient takes time."""
    for micro_batches in range(2 * stages - 1, 2 * stages + 17):
        assert idle(of_equal_stages(named_schedule(name, stages, micro_batches)), postponed=True) == {0}
    for micro_batches in range(1, stages):
        assert max(idle(of_equal_stages(named_schedule(name, stages, micro_batches)), postponed=True)) > 0


@pytest.mark.parametrize("stages", STAGE_COUNTS)
def test_memory_is_within_its_bound(stages: int) -> None:
    """In micro-batches of one chunk. The bounds are reached with so many micro-batches."""
    bounds = {
        "1f1b": [stages - stage for stage in range(stages)],
        "zero_bubble_h1": [stages] * stages,
        "zero_bubble_2p": [2 * stages - 1] * stages,
        "zero_bubble_v": [2 * stages] * stages,
        "dual_pipe_v": [2 * stages + 1] * stages,
    }
    for name, bound in bounds.items():
        for micro_batches in range(1, 17):
            made = of_equal_stages(named_schedule(name, stages, micro_batches))
            kept = [made.kept(stage) for stage in range(stages)]
            assert all(each <= most for each, most in zip(kept, bound, strict=True))
            assert kept == bound or micro_batches <= 2 * stages


@pytest.mark.parametrize("stages", STAGE_COUNTS)
@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_memory_of_rounds(stages: int, chunks: int) -> None:
    """GPipe keeps all; interleaved 1F1B p (1 + (p - 1) / (p v)) of a stage, where p divides m."""
    for micro_batches in range(stages, 17, stages):
        made = of_equal_stages(named_schedule("gpipe", stages, micro_batches, chunks))
        assert {made.kept(stage) for stage in range(stages)} == {micro_batches * chunks}
        made = of_equal_stages(named_schedule("interleaved", stages, micro_batches, chunks))
        bound = (chunks - 1) * stages + 2 * stages - 1
        assert made.kept(0) == min(bound, micro_batches * chunks)
        assert made.kept(0) <= stages * chunks * (1 + (stages - 1) / (stages * chunks))


def test_bytes_are_those_of_chunks() -> None:
    made = of_equal_stages(named_schedule("zero_bubble_v", 2, 4))
    assert made.kept_bytes(0, [10, 0, 0, 1]) <= 4 * 10
    assert made.kept_bytes(1, [0, 5, 5, 0]) == 5 * made.kept(1)


def test_messages_take_time() -> None:
    """The first micro-batch of two stages: F, a message, F, B, a message, B."""
    schedule = named_schedule("1f1b", 2, 1)
    made = timeline(schedule, equal_durations(schedule), message=0.5)
    assert [(span.start, span.end) for span in made.spans[0]] == [(0, 1), (5, 7)]
    assert [(span.start, span.end) for span in made.spans[1]] == [(1.5, 2.5), (2.5, 4.5)]
    assert made.makespan == 7
    assert made.idle_share(0) == pytest.approx(4 / 7)


def test_messages_take_time_by_their_chunks() -> None:
    """The border after chunk 0 of three stages is slow forward, the one after chunk 1 backward."""
    schedule = named_schedule("gpipe", 3, 1)
    made = timeline(schedule, equal_durations(schedule), {(0, 1): 10, (2, 1): 20})
    assert [span.start for span in made.spans[1]] == [11, 11 + 4 + 20]
    assert [span.start for span in made.spans[2]] == [12, 13]
    assert made.spans[0][1].start == 37
    alike = {(chunk, chunk + each): 0.5 for chunk in range(3) for each in (1, -1)}
    assert timeline(schedule, equal_durations(schedule), alike) == timeline(schedule, equal_durations(schedule), 0.5)


def test_updates_follow_the_last_action() -> None:
    """They count as work; those that need something of another stage wait for its last action."""
    schedule = named_schedule("1f1b", 2, 1)
    made = timeline(schedule, equal_durations(schedule), behind={0: 3, 1: 4})
    assert [(tail.start, tail.end) for tail in made.tails.values()] == [(6, 9), (4, 8)]
    assert (made.makespan, made.period, made.busy(0), made.idle(1)) == (9, 9, 6, 9 - 3 - 4)
    made = timeline(schedule, equal_durations(schedule), behind={0: 3, 1: 4}, awaited={1: {(0, None)}})
    assert [(tail.start, tail.end) for tail in made.tails.values()] == [(6, 9), (6, 10)]
    assert (made.makespan, made.end(0), made.end(1)) == (10, 9, 10)


def test_chunks_of_one_stage_send_no_messages() -> None:
    """The bottom of the V."""
    schedule = named_schedule("zero_bubble_v", 1, 1)
    made = timeline(schedule, equal_durations(schedule), message=5)
    assert made.makespan == 6


def test_uneven_stages() -> None:
    """The slow stage works nearly always: 8 micro-batches of 3 + 6, a forward before them, a backward behind."""
    schedule = named_schedule("1f1b", 2, 8)
    durations = equal_durations(schedule) | {(1, "F"): 3, (1, "B"): 6}
    made = timeline(schedule, durations)
    assert made.makespan == 1 + 8 * 9 + 2
    assert made.idle(1) == 3
    assert made.idle(0) == made.makespan - 8 * 3


def test_what_does_not_run_has_no_times() -> None:
    schedule = Schedule("mine", 1, (0, 1), ((), (Action(FORWARD, 1, 0),)))
    with pytest.raises(MspcError, match="is missing"):
        timeline(schedule, equal_durations(schedule))


STEP = "nn.TrainOneStepCell(cell, nn.Momentum(cell.trainable_params(), 0.1, 0.9))(*batch({rows}))\n"


def trained(stages: str = "", made: str = "nn.PipelineCell(net, 4)", rows: int = 8, more: str = "") -> str:
    return f"settings({more})\nnet = staged({stages})\ncell = {made}\n" + STEP.format(rows=rows)


@pytest.mark.parametrize(("text", "kind", "message", "line", "note"), [
    (trained(made="nn.PipelineCell(net, 1)"), ValueError, "micro_size is 1, and there are 2 stages",
     "cell = nn.PipelineCell(net, 1)", "give at least 2 micro-batches"),
    (trained(rows=10), ValueError,
     "input 0 of shape (10, 8) must have a number of rows that is a multiple of micro_size=4",
     "cell = nn.PipelineCell(net, 4)", "10 rows can be cut into 2 micro-batches"),
    (trained(rows=11), ValueError, "input 0 of shape (11, 8) must have a number of rows",
     "cell = nn.PipelineCell(net, 4)", "give 8 or 12 rows; if they are the last ones of a data set, batch("),
    (trained("0, 1, 2"), ValueError, "Layer is of stage 2, and there are stages 0 to 1", "cell.pipeline_stage = stage",
     "pipeline_stages is 2"),
    (trained("1, 0, 1"), ValueError, "is in a cell of stage 0, but reads Tanh of stage 1: values flow forward",
     "return ops.tanh(ops.matmul(x, self.w))", "give its cell stage 1 or a later one"),
    (trained(made="net"), RuntimeError, "a network of 2 stages is trained in micro-batches, and there are none",
     "y) ** 2).mean()", "PipelineCell(network, micro_size)"),
    (trained(made="Both(net)").replace("settings", """
class Both(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.one, self.other = nn.PipelineCell(net, 2), nn.PipelineCell(net, 4)

    def construct(self, x, y):
        return self.one(x, y) + self.other(x, y)

settings""", 1), RuntimeError, "a program with several stages has one loop over micro-batches, and this is the second",
     "self.one(x, y) + self.other(x, y)", "call one PipelineCell in a step"),
    (trained(more="pipeline_stages=3"), RuntimeError, "pipeline_stages is 3, which does not divide 2 ranks",
     "ms.set_auto_parallel_context", "every stage has as many ranks"),
    (trained(more="parallel_mode='stand_alone'"), RuntimeError, "pipeline_stages is 2, and the mode is stand_alone",
     "ms.set_auto_parallel_context", "set parallel_mode to semi_auto_parallel"),
    (trained(more="parallel_mode='data_parallel', full_batch=False"), RuntimeError, "the mode is data_parallel",
     "ms.set_auto_parallel_context", "set parallel_mode to semi_auto_parallel"),
])  # fmt: skip
def test_a_launch_says_what_is_wrong(
    tmp_path: Path, text: str, kind: type[Exception], message: str, line: str, note: str
) -> None:
    error = error_of(printed, tmp_path, text)
    told = error.render()
    first, source, caret = told.splitlines()[:3]
    assert issubclass(error.kind or type(error), kind)
    assert "script_2.py:" in first
    assert message in first
    assert line in source
    assert set(caret.strip()) == {"^"}
    assert note in told.partition("note: ")[2]


def test_parts_of_a_batch_leave_no_rows_out_in_one_stage_either(tmp_path: Path) -> None:
    with pytest.raises(MspcError, match=r"must be a multiple of the number of parts, not 10 of \d"):
        printed(tmp_path, trained(rows=10), ranks=1, stages=1)


class Wrapped(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Dense(2, 2)

    def construct(self, x: Any) -> Any:
        return self.layer1(x)


@pytest.mark.parametrize(("arguments", "kind", "message"), [
    (("4",), TypeError, r"PipelineCell: micro_size must be an int, not '4'"),
    ((2.0,), TypeError, r"PipelineCell: micro_size must be an int, not 2\.0"),
    ((0,), ValueError, r"PipelineCell: micro_size 0 must be at least 1"),
    ((-2,), ValueError, r"PipelineCell: micro_size -2 must be at least 1"),
    ((2, [0]), TypeError, r"PipelineCell: stage_config must be a dict or None, not list"),
    ((2, {"_backbone.layer1": -1}), ValueError, r"pipeline_stage=-1 must be at least 0"),
    ((2, {"_backbone.layer1": "0"}), TypeError, r"pipeline_stage must be an integer, not '0'"),
    ((2, {"layer1": 0}), KeyError, r"names 'layer1', and WithLossCell has no such cell(.|\n)*mean '_backbone\.layer1'"),
    ((2, {"_backbone.layer2": 0}), KeyError, r"names '_backbone\.layer2'(.|\n)*did you mean '_backbone\.layer1'"),
    ((2, None, {"layer1": 0}), KeyError, r"segment_config names 'layer1'"),
])  # fmt: skip
def test_arguments_of_a_pipeline_cell(arguments: tuple[Any, ...], kind: type[Exception], message: str) -> None:
    error = error_of(lambda: nn.PipelineCell(nn.WithLossCell(Wrapped(), nn.MSELoss()), *arguments))
    assert isinstance(error, kind)
    assert "test_timeline.py" in error.render()
    with pytest.raises(kind, match=message):
        raise kind(error.render())


@pytest.mark.parametrize(("scheduler", "message"), [
    ("1F1B", r"'1F1B' is no schedule; there are 1f1b, "),
    ("zero_bubble", r"is no schedule; there are zero_bubble_"),
    ("seqpipe", r"'seqpipe' cuts sequences into parts, and micro-batches are the only parts here"),
    ("seqsmartvpp", r"cuts sequences into parts"),
])  # fmt: skip
def test_names_of_schedules(scheduler: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        ms.set_auto_parallel_context(pipeline_config={"pipeline_scheduler": scheduler})
    assert isinstance(refused.value, MspcError)
