"""The gradients of `Call` and `If`.

Input:  `%3 = Call(%0, %para_w) {regions: @layer}`
Output: the same, whose graph also returns what its gradient reads, and
        `%9 = Call(%8, %7, %para_w) {regions: @layer_gradient}` of the gradient of its result, what was saved, and what
        was captured; its results are the gradients of %0 and %para_w.

An `If` saves for both of its branches; the one that did not run saves zeros that take no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mspc.ir.builder import Builder
from mspc.ir.graph import Parameter, Value
from mspc.ops.control.regions import Call, If
from mspc.passes.autodiff.region_plans import RegionGradient, Request, Source
from mspc.passes.autodiff.reverse_mode import Differentiate
from mspc.passes.autodiff.saved_values import saving_of
from mspc.passes.autodiff.split_joint import Split, joint_of
from mspc.passes.autodiff.stacks import placeholder


def gradient_of_branches(request: Request, differentiate: Differentiate) -> RegionGradient | None:
    """Of an `If`, whose operands are the condition and the parameters of both branches, or of a `Call`."""
    op, regions, wanted, given = request
    assert isinstance(op, If | Call)
    first = 1 if isinstance(op, If) else 0
    joints = [joint_of(region, [i - first for i in wanted], given, differentiate) for region in regions]
    numbers = sorted({number for joint in joints for number in joint.grads})
    if not numbers:
        return None
    savings = [saving_of(joint, joint.graph.parameters) for joint in joints]
    splits = [Split(joint, saving.again) for joint, saving in zip(joints, savings, strict=True)]
    sources = [Source("gradient", k) for k in given]
    parameters: list[list[Parameter]] = [[split.given[k] for k in given] for split in splits]
    for split in splits:
        _share_saved(split, splits, sources, parameters)
    grads: list[list[Value]] = []
    for split in splits:
        grads.append([split.gradient(n) for n in numbers])
    for number in range(len(regions[0].parameters)):
        if any(split.forward.parameters[number] in split.reads for split in splits):
            sources.append(Source("operand", number + first))
            for split, found in zip(splits, parameters, strict=True):
                found.append(split.placeholder(split.forward.parameters[number]))
    made = zip(splits, parameters, grads, strict=True)
    backward = tuple(split.backward(found, results) for split, found, results in made)
    if isinstance(op, If):
        sources.insert(0, Source("operand", 0))
    return RegionGradient(
        op,
        tuple(split.forward for split in splits),
        replace(op, mutates=(), has_side_effect=False),
        backward,
        tuple(sources),
        {number + first: place for place, number in enumerate(numbers)},
        "; ".join(saving.note for saving in savings),
    )


def _share_saved(
    split: Split, splits: Sequence[Split], sources: list[Source], parameters: Sequence[list[Parameter]]
) -> None:
    """Add what one branch saves to the results of all, and to what their gradients take."""
    captured = set(split.forward.parameters)
    for value in [value for value in split.reads if value not in captured]:
        if value in split.forward.results:
            number = split.forward.results.index(value)
        else:
            number = len(split.forward.results)
            for each in splits:
                own = value if each is split else placeholder(Builder(each.forward), value.tensor_type)
                each.forward.results.append(own)
                each.forward.returns_tuple = True
        sources.append(Source("result", number))
        for each, found in zip(splits, parameters, strict=True):
            found.append(split.reads[value] if each is split else Parameter(split.reads[value].name, value.type))
