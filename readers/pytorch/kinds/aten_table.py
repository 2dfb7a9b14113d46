"""The table of all kinds, kinds that write into an argument, and the message about unknown ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cache

from mspc.ir.diagnostics import MspcError
from mspc.readers.pytorch.exported_program import CONTROL, ExportedNode, ExportedProgram, all_nodes
from mspc.readers.pytorch.kinds.collectives import COLLECTIVES
from mspc.readers.pytorch.kinds.complex_numbers import with_complex_numbers
from mspc.readers.pytorch.kinds.creation import CREATION, RANDOM
from mspc.readers.pytorch.kinds.gradients import GRADIENTS
from mspc.readers.pytorch.kinds.indexing import BAGS, INDEXING
from mspc.readers.pytorch.kinds.kind import NEEDED, Kind, KindArgument
from mspc.readers.pytorch.kinds.library import DECOMPOSITIONS, PIECES, SPECIAL, STATISTICS
from mspc.readers.pytorch.kinds.linear import ATTENTION, EXPERTS, MATRICES, PRODUCTS
from mspc.readers.pytorch.kinds.lists import LISTS
from mspc.readers.pytorch.kinds.nn_layers import NORMS, RECURRENT
from mspc.readers.pytorch.kinds.pointwise import COMPLEX, ELEMENTWISE
from mspc.readers.pytorch.kinds.reductions import LOSSES, REDUCTIONS
from mspc.readers.pytorch.kinds.shapes import BOOKKEEPING, SHAPES
from mspc.readers.pytorch.kinds.spatial import IMAGES

THEMES: tuple[Iterable[list[Kind]], ...] = (
    ELEMENTWISE, SHAPES, CREATION, REDUCTIONS, PRODUCTS, NORMS, ATTENTION, INDEXING, IMAGES, LOSSES, RANDOM,
    GRADIENTS, LISTS, COLLECTIVES, EXPERTS, BAGS, COMPLEX, MATRICES, RECURRENT, BOOKKEEPING,
    DECOMPOSITIONS, STATISTICS, PIECES, SPECIAL,
)  # fmt: skip

OVERWRITTEN = "self"
"""The name of the first argument of a kind that writes into it."""
GIVEN = "out"
"""The name of the tensor, and the overload, if a kind writes its result into one that it is given."""
STOPPED = "aten.detach_.default"
"""The kind that takes a tensor's gradient away, and leaves its numbers."""


ALIASES = {
    "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan", "arctan2": "atan2",
    "arctanh": "atanh", "clip": "clamp", "concatenate": "cat", "divide": "div", "fix": "trunc", "ger": "outer",
    "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne",
    "linalg_matmul": "matmul", "multiply": "mul", "row_stack": "vstack", "special_digamma": "digamma",
    "special_psi": "digamma", "special_erf": "erf", "special_erfc": "erfc", "special_erfinv": "erfinv",
    "special_exp2": "exp2", "special_expm1": "expm1", "special_gammaln": "lgamma", "special_log1p": "log1p",
    "special_logit": "logit", "special_logsumexp": "logsumexp", "special_polygamma": "polygamma",
    "special_sinc": "sinc", "subtract": "sub", "special_multigammaln": "mvlgamma", "_conj_physical": "conj",
    "conj_physical": "conj", "special_gammainc": "igamma",
    "special_gammaincc": "igammac", "special_softmax": "softmax", "special_log_softmax": "log_softmax",
    "special_xlogy": "xlogy", "linalg_matrix_exp": "matrix_exp",
}  # fmt: skip
"""Operators under other names, with the same arguments."""
OVERLOADS = {
    ("softmax", "default"): "int", ("log_softmax", "default"): "int", ("xlogy", "default"): "Tensor",
    ("xlogy", "other_scalar"): "Scalar_Other", ("xlogy", "self_scalar"): "Scalar_Self",
}  # fmt: skip
"""Overloads of an operator that have another name under the operator's other name."""
GENERATORS = {"generator": "default", "low_generator": "low"}
"""Overloads of random operators with PyTorch's generator as another argument, which is not read."""
_COPY = "_copy"
"""The end of names of views that are copied."""


def _plain(library: str, operator: str, overload: str) -> Kind | None:
    """Return the row of an operator, of one under another name, or of a view that is copied."""
    name = ALIASES.get(operator, operator)
    found = kinds().get(f"{library}.{name}.{OVERLOADS.get((name, overload), overload)}")
    if found is None and operator.endswith(_COPY):
        view = kinds().get(f"{library}.{operator.removesuffix(_COPY)}.{overload}")
        return None if view is None else replace(view, name=f"{library}.{operator}.{overload}", put=None)
    return found


@cache
def kinds() -> dict[str, Kind]:
    """Return the rows by the names of their kinds."""
    found = with_complex_numbers(kind for theme in THEMES for rows in theme for kind in rows)
    return {kind.name: kind for kind in found}


def kind_of(name: str) -> Kind | None:
    """Return the row of a kind; that of `aten.add.Tensor` for `aten.add_.Tensor`, which writes its first argument, for
    `aten.add.out`, which writes its last one, and for `aten.t_.default`, after which that has another shape. None if
    there is none."""
    library, _, rest = name.partition(".")
    operator, _, overload = rest.partition(".")
    found = kinds().get(name) or _plain(library, operator, overload)
    if found is not None:
        return found
    if overload in GENERATORS:
        plain = kinds().get(f"{library}.{operator}.{GENERATORS[overload]}")
        generator = KindArgument("generator", None, is_read=False)
        return None if plain is None else replace(plain, name=name, arguments=(*plain.arguments, generator))
    if overload == GIVEN:
        plain = kinds().get(f"{library}.{operator}.default") or kinds().get(f"{library}.{operator}.Tensor")
        if plain is None or plain.writes:
            return None
        given = KindArgument(GIVEN, NEEDED, is_read=False)
        return replace(plain, name=name, arguments=(*plain.arguments, given), put=None, writes=(GIVEN,))
    if not operator.endswith("_") or operator.endswith("__"):
        return None
    plain = _plain(library, operator[:-1], overload) or kinds().get(f"{library}.{operator[:-1]}.int")
    if plain is None:
        return None
    first = replace(plain.arguments[0], name=OVERWRITTEN)
    if plain.put is not None and name != STOPPED:  # another shape of the same elements, which stay
        return replace(plain, arguments=(first, *plain.arguments[1:]))
    return replace(plain, name=name, arguments=(first, *plain.arguments[1:]), put=None, writes=(OVERWRITTEN,))


DEPENDENT = ("aten._local_scalar_dense.default", "aten.item.default")
"""Kinds whose results are numbers outside of tensors, which are known only when they run."""
WAY_OUT = "torch.export.export(module, inputs).run_decompositions({}) writes most other kinds in terms of these"
FUNCTIONALIZED = "higher_order.auto_functionalized"
"""Calls of a custom operator that overwrites operands, their first argument."""
_MAX_LISTED = 20
"""Kinds that are reported each by a line."""


def check_kinds(program: ExportedProgram) -> None:
    """Raise MspcError if there are unknown kinds."""
    first: dict[str, ExportedNode] = {}
    counts: Counter[str] = Counter()
    for node in all_nodes(program.graph):
        if node.target not in CONTROL and kind_of(node.target) is None:
            if node.target.startswith(FUNCTIONALIZED) and node.arguments:
                node = replace(node, target=str(node.arguments[0][1]).removeprefix("torch.ops."))
            first.setdefault(node.target, node)
            counts[node.target] += 1
    if not counts:
        return
    lines = [_told(node, counts[name]) for name, node in list(first.items())[:_MAX_LISTED]]
    if len(first) > _MAX_LISTED:
        lines.append(f"and {len(first) - _MAX_LISTED} more kinds")
    one = next(iter(first))
    location = next((node.user_line for node in first.values() if node.user_line is not None), None)
    if first.keys() <= set(DEPENDENT):
        raise MspcError(f"{program.name} takes numbers out of tensors, which are known only when it runs: "
                        f"{', '.join(first)}", location, [*lines, "compute with the tensor"])  # fmt: skip
    if len(first) == 1 and (found := related(one)):
        lines.append(f"read are {', '.join(found)}")
    libraries = {"higher_order", *(name.partition(".")[0] for name in kinds())}
    custom = [name for name in first if name.partition(".")[0] not in libraries]
    if custom:
        lines.append(f"{custom[0]} is a custom operator, whose code is not in the file: export a function of PyTorch's "
                     "operators in its place, or, if it overwrites nothing, run_decompositions({torch.ops."
                     f"{custom[0]}: function}})")  # fmt: skip
    if len(custom) < len(first):
        lines.append(WAY_OUT)
    what = "an operator that is" if len(first) == 1 else f"{len(first)} kinds of operators that are"
    raise MspcError(f"{program.name} has {what} not known: {', '.join(first)}", location, lines, code="E0702")


_WORDLESS = frozenset(
    "copy backward forward functional with no static for of new like default cpu special linalg fft tensor".split())
"""Words of names that do not describe an operator's function."""


def related(name: str) -> list[str]:
    """Return up to three kinds that compute something related: other overloads, else kinds of the same library that
    share the most words of their names."""
    library, operator, _ = f"{name}..".split(".", 2)
    words = _words(operator)
    found = list[tuple[float, str]]()
    for each in kinds():
        own, other, _ = each.split(".", 2)
        shared = words & _words(other)
        if own == library and shared:
            rest = len(words ^ _words(other))
            found.append((100.0 * (other.strip("_") == operator.strip("_")) + 2 * len(shared) - rest, each))
    best = max(found, default=(0.0, ""))[0]
    return [each for score, each in sorted(found, key=lambda one: (-one[0], one[1])) if score == best][:3]


def _words(operator: str) -> frozenset[str]:
    return frozenset(word for word in operator.rstrip("_0123456789d").split("_") if word) - _WORDLESS


def _told(node: ExportedNode, count: int) -> str:
    line = node.user_line
    where = f", first at {line}: {line.text.strip()}" if line is not None else ""
    return f"{node.target}: {count} time{'s' if count > 1 else ''}{where}{f' ({node.scope})' if node.scope else ''}"
