"""Classes of MindSpore's operators that are a function of `ops` with arguments given ahead: `Cross(1)(x, y)` is
`cross(x, y, dim=1)`."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiTypeError
from mspc.api.ops.composed_marks import Composed
from mspc.ir.types import FLOAT32, INT32, INT64

_NEEDED = inspect.Parameter.empty


class _Function(Composed):
    """A function of `ops`, with what the operator is made with."""

    function: str
    fields: dict[str, Any]
    """Names that the operator has for what it is made with, and the defaults."""
    renamed: dict[str, str]
    """Those that the function calls otherwise, "" for what it takes no notice of as nothing comes of it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        name = type(self).__name__
        try:
            bound = _signature(type(self)).bind(*args, **kwargs)
        except TypeError as error:
            takes = ", ".join(self.fields) or "nothing"
            raise ApiTypeError(f"{name}: {error}", [f"it is made with {takes}"]) from None
        bound.apply_defaults()
        given = {self.renamed.get(field, field): value for field, value in bound.arguments.items()}
        given.pop("", None)
        function = getattr(ops, self.function)
        self.applied = functools.partial(function, **given) if given else function
        self.__dict__.update(bound.arguments)

    def __call__(self, *inputs: Any) -> Any:
        return self.applied(*inputs)


@functools.cache
def _signature(operator: type[_Function]) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(n, kind, default=d) for n, d in operator.fields.items()])


def _of(function: str, /, fields: dict[str, Any] | None = None, **renamed: str) -> tuple[Any, ...]:
    return function, fields or {}, renamed


_LOCKED = {"use_locking": False}
_INDICES = {"row": _NEEDED, "col": _NEEDED, "offset": 0, "dtype": INT32}
_WINDOW = {"periodic": True, "dtype": FLOAT32}
_REDUCED = {"reduction": "mean"}
_CLASSES: dict[str, tuple[Any, ...]] = {
    "AddV2": _of("add"),
    "Addcdiv": _of("addcdiv"),
    "Addcmul": _of("addcmul"),
    "AffineGrid": _of("affine_grid", {"align_corners": False}),
    "BartlettWindow": _of("bartlett_window", _WINDOW),
    "BlackmanWindow": _of("blackman_window", _WINDOW),
    "CeLU": _of("celu", {"alpha": 1.0}),
    "ChannelShuffle": _of("channel_shuffle", {"group": _NEEDED}, group="groups"),
    "CholeskyInverse": _of("cholesky_inverse", {"upper": False}),
    "CholeskySolve": _of("cholesky_solve", {"upper": False}),
    "Cross": _of("cross", {"dim": None}),
    "Dense": _of("dense"),
    "Fmax": _of("fmax"),
    "Fmin": _of("fmin"),
    "GLU": _of("glu", {"axis": -1}),
    "Ger": _of("ger"),
    "HammingWindow": _of("hamming_window", {"periodic": True, "alpha": 0.54, "beta": 0.46, "dtype": FLOAT32}),
    "Heaviside": _of("heaviside"),
    "InTopK": _of("intopk", {"k": _NEEDED}),
    "IndexAdd": _of("index_add", {"axis": _NEEDED, "use_lock": True, "check_index_bound": True}),
    "IndexFill": _of("index_fill"),
    "InplaceIndexAdd": _of("inplace_index_add", {"axis": _NEEDED}),
    "Lcm": _of("lcm"),
    "LogSigmoid": _of("logsigmoid"),
    "MaskedSelect": _of("masked_select"),
    "MatrixBandPart": _of("matrix_band_part"),
    "MatrixPower": _of("matrix_power", {"n": _NEEDED}),
    "MultinomialWithReplacement": _of(
        "multinomial_with_replacement", {"numsamples": _NEEDED, "replacement": False}
    ),
    "Mvlgamma": _of("mvlgamma", {"p": _NEEDED}),
    "NonZero": _of("nonzero"),
    "Padding": _of("padding", {"pad_dim_size": 8}),
    "Pdist": _of("pdist", {"p": 2.0}),
    "Polygamma": _of("polygamma"),
    "RandomCategorical": _of("random_categorical", {"dtype": INT64}),
    "RandpermV2": _of("randperm", {"seed": 0, "offset": 0, "dtype": INT64}),
    "Renorm": _of("renorm", {"p": _NEEDED, "dim": _NEEDED, "maxnorm": _NEEDED}, dim="axis"),
    "Roll": _of("roll", {"shifts": _NEEDED, "dims": None}),
    "ScatterNdDiv": _of("scatter_nd_div", _LOCKED),
    "ScatterNdMax": _of("scatter_nd_max", _LOCKED),
    "ScatterNdMin": _of("scatter_nd_min", _LOCKED),
    "ScatterNdMul": _of("scatter_nd_mul", _LOCKED),
    "Sinc": _of("sinc"),
    "SoftMarginLoss": _of("soft_margin_loss", _REDUCED),
    "TensorScatterElements": _of("tensor_scatter_elements", {"axis": 0, "reduction": "none"}),
    "Trace": _of("trace"),
    "TrilIndices": _of("tril_indices", _INDICES),
    "TriuIndices": _of("triu_indices", _INDICES),
    "TripletMarginLoss": _of(
        "triplet_margin_loss", {"p": 2, "swap": False, "eps": 1e-06, "reduction": "mean"}
    ),
    "Unique": _of("unique"),
    "UniqueConsecutive": _of("unique_consecutive", {"return_inverse": False, "return_counts": False, "dim": None}),
    "UniqueWithPad": _of("unique_with_pad"),
}  # fmt: skip


def names() -> frozenset[str]:
    """The classes."""
    return frozenset(_CLASSES)


def __getattr__(name: str) -> Any:
    if name not in _CLASSES:
        raise AttributeError(name)
    function, fields, renamed = _CLASSES[name]
    described = f"`ops.{function}`, made with {', '.join(fields) or 'nothing'}; called with its tensors."
    body = {"function": function, "fields": fields, "renamed": renamed, "__doc__": described, "__module__": __name__}
    made = globals()[name] = type(name, (_Function,), body)
    return made
