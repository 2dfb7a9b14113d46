"""Random training steps of PyTorch on ranks are proved equal to one device."""

from pathlib import Path
from typing import Any

import pytest

from mspc.commands.captured_offsets import graphs_of
from mspc.commands.verify_capture import _kinds, _program
from tests.shares import share_of
from tests.verify.drawn_captures import captured, differences
from tests.verify.drawn_plans import AXES, drawn

pytest.importorskip("torch")
FIRST = (15, 4, 20, 5, 0, 1)
"""One of every way: gradients that tensor parallelism leaves as parts of sums, and accumulated gradients in HSDP."""
SEEDS = (*FIRST, *(seed for seed in range(48) if seed not in FIRST))


    assert len({drawn(seed).way for seed in taken}) == min(len(taken), len(AXES))
    captured(taken, tmp_path)
    assert {seed: found for seed in taken if (found := differences(tmp_path, seed))} == {}
    assert_offsets_are_read_once(tmp_path / "15" / "ranks")


def assert_offsets_are_read_once(folder: Path) -> None:
    """Ranks that have other words of an embedding differ in offsets: one is read, and the others as if they were."""
    steps = [step for _, step, *_ in _kinds(folder)]
    sizes: list[int] = []

    def read(step: Any) -> Any:
        sizes.append(len(step.program.graph.nodes))
        return _program(step, folder)

    found = [graph for graph, _ in graphs_of(steps, read)]
    assert len(steps) == 4
    assert sum(size == len(steps[0].program.graph.nodes) for size in sizes) == 1
    for graph, step in zip(found, steps, strict=True):
        for made, own in zip(graph.nodes, _program(step, folder)[0].nodes, strict=True):
            assert (made.op, made.type, made.frames) == (own.op, own.type, own.frames)
            numbers = [[str(v.value) for v in node.inputs if hasattr(v, "value")] for node in (made, own)]
            assert numbers[0] == numbers[1], made.label
