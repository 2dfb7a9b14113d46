"""What is added up along a row, in C++: how it begins, takes an element and ends on all threads of the row."""

from __future__ import annotations

from mspc.ops.cuda.row_chain import RowLine
from mspc.ops.cuda.source import accumulating_type, neutral
from mspc.ops.device import computing_type


def kind_of(line: RowLine) -> str:
    """The C++ type of a line's total."""
    assert line.total is not None
    return accumulating_type(line.total.accumulates)


def neutral_of(line: RowLine) -> str:
    """C++ of what a line's total begins with."""
    assert line.total is not None
    return f"({kind_of(line)})({neutral(line.total.how, line.total.accumulates)})"


def merged_update(line: RowLine, most: RowLine) -> str:
    """C++ by which a sum of exponentials, and the largest element of the row, take an element."""
    kind, name, top, value = kind_of(line), f"r_{line.name}", f"r_{most.name}", f"({kind_of(most)}){most.reads[0]}"
    return (
        f"const {kind} top_{line.name} = Largest::of({top}, {value}); "
        f"if (top_{line.name} != {top}) {{ {name} *= exp({top} - top_{line.name}); {top} = top_{line.name}; }} "
        f"{name} += exp({value} - ({top} == {neutral_of(most)} ? 0 : {top}));"
    )


def end_of_total(line: RowLine, group: int, most: RowLine | None) -> str:
    """C++ of a line's end result from every thread's own total. most: the largest element of a row, to whose
    exponential a thread's sum of exponentials is scaled."""
    assert line.total is not None
    how, kind = line.total.how, kind_of(line)
    own = f"r_{line.name}" if most is None else f"r_{line.name} * exp(r_{most.name} - {most.name})"
    if group <= 32:
        value = f"over_group<{how}, GROUP>({own})"
    else:
        value = f"over_block<{how}, {kind}>({own}, shared_{kind.replace(' ', '_')}, {neutral_of(line)})"
    if line.total.count > 1:
        value = f"{value} / ({kind}){line.total.count}"
    return f"({computing_type(line.dtype)})({value})"
