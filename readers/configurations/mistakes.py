"""Mistakes in configurations: the rules that Megatron Core enforces when it starts, and slips that it does not notice.

Each is named by setting, with the value that works. The rules are those of `validate_args` in
megatron/training/arguments.py, `TransformerConfig.__post_init__`, and megatron/core/parallel_state.py.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mspc.analysis.cost.training.model_shape import AttentionShape, TrainingRun
from mspc.ir.diagnostics import nearest
from mspc.readers.configurations.settings import ConfigurationSettings, tables_of

_ARGUMENTS = tables_of("megatron_arguments")
KNOWN = frozenset(_ARGUMENTS["known"].split() + _ARGUMENTS["others"].split())
"""Names of Megatron-LM's arguments, and of settings that it has no argument for."""
IGNORED_PREFIXES = tuple(_ARGUMENTS["ignored_prefixes"].split())
"""Beginnings of the names of arguments that change neither memory nor the time of a step."""
HOST_RANKS = 8
"""Ranks of a host, if the number of ranks is not stated."""
TENSOR, PIPELINE, CONTEXT = "tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size"
EXPERT, EXPERT_TENSOR = "expert-model-parallel-size", "expert-tensor-parallel-size"
PER_CHUNK, HIERARCHY = "num-layers-per-virtual-pipeline-stage", "hierarchical-context-parallel-sizes"
_MISTAKES = tables_of("mistakes")
DEFAULTS: Mapping[str, Any] = _MISTAKES["defaults"]
"""Values of settings that are not set."""
UNSET = (False, 0, None, "", "0", "false", "none", "None")
"""Values that leave a setting out."""


def rules(kind: str, family: str) -> Iterator[list[str]]:
    """Yield the setting, the conditions, the problem and the remedy of each rule of a family in `mistakes.toml`.

    kind: "refused" or "unused".
    """
    for line in _MISTAKES[kind].get(family, "").splitlines():
        if line:
            yield [part.strip() for part in line.split("|")]


def broken(kind: str, family: str, value: Callable[[str], Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the setting, the problem and the remedy of each rule that is broken. value: of a setting, or None."""
    for setting, conditions, problem, right in rules(kind, family):
        if value(setting) not in UNSET and all(_holds(each, value) for each in conditions.split()):
            yield setting, problem, right


def _holds(condition: str, value: Callable[[str], Any]) -> bool:
    """Return if a condition holds. Texts that should be numbers fulfil none: the readers of numbers report them."""
    match = re.fullmatch(r"(!?)([\w.-]+)(?:(!=|>=|=|<|>|%|~)(.+))?", condition)
    assert match is not None, condition
    absent, name, operator, right = match.groups()
    if not operator:
        return (value(name) in UNSET) == bool(absent)
    found, other = (DEFAULTS.get(each) if value(each) is None else value(each) for each in (name, right))
    if operator == "~":
        return (right in re.split(r"[\s,\[\]']+", str(found))) != bool(absent)
    if operator in ("=", "!="):
        return found is not None and (str(found) in right.split(",")) == (operator == "=")
    try:
        # Counts that are not set are 1.
        unit = int(right) if right.isdigit() else int(1 if other is None else other)
        number = float(1 if found is None else found)
    except (TypeError, ValueError, OverflowError):
        return False
    return {"<": number < unit, ">": number > unit, ">=": number >= unit, "%": bool(unit and number % unit)}[operator]


def largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number that is at most `most`, at least 1."""
    return next((d for d in range(max(1, min(number, most)), 1, -1) if number % d == 0), 1)


def check_settings(found: ConfigurationSettings, ranks: int | None) -> int:
    """Record mistakes in single settings and pairs of them; return the number of ranks: as stated, or the fewest whole
    hosts that the degrees divide."""
    tensor, pipeline, context = found.count(TENSOR, 1), found.count(PIPELINE, 1), found.count(CONTEXT, 1)
    expert = found.count(EXPERT, 1)
    expert_tensor = found.count(EXPERT_TENSOR, tensor)
    dense, sparse = tensor * pipeline * context, expert * expert_tensor * pipeline
    stated = found.count("world-size") or None
    ranks = ranks or stated
    if ranks is None:
        ranks = HOST_RANKS
        while (ranks % dense or ranks % sparse) and ranks < 1 << 24:
            ranks += HOST_RANKS
        samples = found.count("global-batch-size") // found.count("micro-batch-size", 1)
        fewer = dense * largest_divisor(samples, ranks // dense) if samples and ranks % dense == 0 else 0
        if fewer and samples % (ranks // dense) and fewer % sparse == 0:
            ranks = fewer
        found.notes.append(f"the number of ranks is not stated: {ranks}, the fewest hosts that fit; --ranks states it")
    if ranks % dense:
        product = f"{tensor} x pipeline {pipeline} x context {context} = {dense}"
        found.mistake(TENSOR, f"{product} does not divide {ranks} ranks",
                      f"--ranks {-(-ranks // dense) * dense} works")  # fmt: skip
    elif ranks % sparse and found.count("num-experts"):
        name = EXPERT if EXPERT in found else EXPERT_TENSOR
        right = largest_divisor(ranks // (pipeline * expert_tensor) or 1, expert)
        product = f"{expert} x expert tensor {expert_tensor} x pipeline {pipeline} = {sparse}"
        found.mistake(name, f"{product} does not divide {ranks} ranks",
                      f"{EXPERT} {right} works, or --ranks {-(-ranks // sparse) * sparse}")  # fmt: skip
    _check_pairs(found, tensor)
    _check_names(found)
    return ranks


def _check_pairs(found: ConfigurationSettings, tensor: int) -> None:
    """Record settings that contradict each other."""

    def value(name: str) -> Any:
        # YAML's `none` is a value of some settings.
        return ("none" if found.by_name[name].value is None else found.by_name[name].value) if name in found else None

    for setting, problem, right in broken("refused", "megatron", value):
        found.mistake(setting, problem, right)
    found.check_choices()
    for setting, problem, _ in broken("unused", "megatron", value):
        found.notes.append(f"{found.shown(setting)} {problem}")
    trains = found.prefix and not any(name.startswith("inference-") for name in found.by_name)
    if found.count("num-experts") and tensor > 1 and trains and not found.flag("sequence-parallel"):
        found.mistake("sequence-parallel", "is not set, but experts with tensor parallelism need it", "set it")
    if found.number("min-lr") > found.number("lr", 1e9):
        found.mistake("min-lr", f"is {found.raw('min-lr')}, more than lr {found.raw('lr')}", "a smaller one works")


def _check_names(found: ConfigurationSettings) -> None:
    """Record settings that look like a slip of the pen for a known one, and note those that are not known."""
    unknown: list[str] = []
    for name, setting in found.by_name.items():
        if name in KNOWN or name.startswith(IGNORED_PREFIXES):
            continue
        near = nearest(name, KNOWN)[:1]
        # One letter differs, or two change places.
        if setting.line and len(name) > 6 and difflib.get_close_matches(name, near, 1, 1 - 1.001 / len(name)):
            found.mistake(name, "is no setting", f"{found.prefix}{near[0]} is one")
        else:
            unknown.append(found.shown(name))
    if unknown:
        found.notes.append(f"not known, so ignored: {', '.join(sorted(unknown))}")


def check_run(found: ConfigurationSettings, run: TrainingRun) -> None:
    """Record sizes that the degrees do not divide."""
    _check_attention(found, run)
    _check_layers(found, run)
    _check_batch(found, run)
    model = run.model
    sequence = "seq-length" if "seq-length" in found else "encoder-seq-length"
    parts = run.rows * (2 * run.context if run.context > 1 else 1)
    _check_multiple(found, sequence, model.sequence, parts, "{}, the shares of tensor and context parallelism")
    if model.positions and model.positions < model.sequence:
        found.mistake("max-position-embeddings", f"is {model.positions}, less than {model.sequence} tokens",
                      f"{model.sequence} works")  # fmt: skip
    for f in dict.fromkeys(layer.feed for layer in model.layers if layer.feed is not None):
        name, degree = ("moe-ffn-hidden-size", run.expert_tensor) if f.experts else ("ffn-hidden-size", run.tensor)
        if f.width % degree:
            _check_multiple(found, name, f.width, degree, "tensor parallelism {}")
            break
    instances = found.count("num-distributed-optimizer-instances", 1)
    _check_divisor(found, "num-distributed-optimizer-instances", instances, run.data * run.context, "{} replicas")
    levels = math.prod(int(size) for size in found.names(HIERARCHY) if size.isdecimal())
    if HIERARCHY in found and levels != run.context:
        found.mistake(HIERARCHY, f"makes {levels} of {run.context} ranks", f"{run.context} works")
    _check_experts(found, run)
    _check_units(found, run)


def _check_units(found: ConfigurationSettings, run: TrainingRun) -> None:
    """Record sizes that 8-bit matmuls refuse, and note those that leave tensor cores partly idle."""
    model, rows = run.model, run.tokens(run.model.sequence) // run.rows
    widths = [("hidden-size", model.hidden)]
    feeds = {layer.feed for layer in model.layers if layer.feed is not None and not layer.feed.experts}
    widths += [("ffn-hidden-size", width) for width in sorted({feed.width // run.tensor for feed in feeds})]
    for name, width in widths:
        if run.eight and width % 16:
            _check_multiple(found, name, width, 16, "{}, which 8-bit matmuls need", " on a rank")
        elif width % 64:
            found.notes.append(f"{found.shown(name)} is {width} on a rank: tensor cores work best with multiples of 64")
    if run.eight and rows % 8:
        found.mistake("seq-length", f"gives {rows} rows on a rank, no multiple of 8, which 8-bit matmuls need",
                      f"{-(-model.sequence // 64) * 64} works")  # fmt: skip


def _check_divisor(found: ConfigurationSettings, name: str, number: int, size: int, of: str) -> None:
    """Record a number that does not divide a size. of: the size in words, as "{} experts"."""
    if size % number:
        right = largest_divisor(size, number)
        found.mistake(name, f"is {number}, no divisor of {of.format(size)}", f"{right} works")


def _check_multiple(found: ConfigurationSettings, name: str, number: int, unit: int, of: str, where: str = "") -> None:
    """Record a number that is no multiple of a unit. of: the unit in words, as "{}, the ranks of a host"."""
    if number % unit:
        right = -(-number // unit) * unit
        found.mistake(name, f"is {number}{where}, no multiple of {of.format(unit)}", f"{right}{where} works")


def _check_experts(found: ConfigurationSettings, run: TrainingRun) -> None:
    f = next((layer.feed for layer in run.model.layers if layer.feed is not None and layer.feed.experts), None)
    if f is None:
        return
    _check_divisor(found, EXPERT, run.expert, f.experts, "{} experts")
    if f.choices > f.experts:
        found.mistake("moe-router-topk", f"is {f.choices}, more than {f.experts} experts", f"{f.experts} works")
    _check_divisor(found, "moe-router-num-groups", found.count("moe-router-num-groups", 1), f.experts, "{} experts")


def _check_attention(found: ConfigurationSettings, run: TrainingRun) -> None:
    mixers = [m for layer in run.model.layers for m in layer.mixers if isinstance(m, AttentionShape)]
    if not mixers:
        return
    a, tensor = mixers[0], run.tensor
    if a.heads % tensor:
        _check_divisor(found, TENSOR, tensor, a.heads, "{} attention heads")
    elif not a.key_rank and a.groups % tensor and tensor % a.groups:
        _check_divisor(found, TENSOR, tensor, a.groups, "{} query groups")
    elif not a.key_rank and a.groups < tensor and not found.core:
        found.mistake(TENSOR, f"is {tensor}, more than {a.groups} query groups", f"{a.groups} works")
    _check_divisor(found, "num-query-groups", a.groups, a.heads, "{} attention heads")
    if "kv-channels" not in found and not a.key_rank:
        _check_divisor(found, "num-attention-heads", a.heads, run.model.hidden, "hidden size {}")


def _check_layers(found: ConfigurationSettings, run: TrainingRun) -> None:
    count = len(run.model.layers)
    first, last = run.first_layers, run.last_layers
    between = run.pipeline - bool(first) - bool(last)
    rest = count - first - last
    if not run.stages and (first or last) and (rest < between or (between <= 0 and rest)):
        name = "decoder-first-pipeline-num-layers" if first else "decoder-last-pipeline-num-layers"
        found.mistake(name, f"leaves {rest} of {count} layers to {max(between, 0)} other stages", "leave it out")
        return
    if run.stages or run.model.encoders:
        return
    if run.pipeline > 1:
        _check_divisor(found, PER_CHUNK, found.count(PER_CHUNK, 1), count // run.pipeline, "the {} layers of a stage")
    uneven = found.flag("account-for-embedding-in-pipeline-split") or found.flag("account-for-loss-in-pipeline-split")
    if between and rest % (between * (1 if first or last else run.chunks)) and not uneven:
        right = largest_divisor(count, run.pipeline)
        found.mistake("num-layers", f"is {count}, which {run.pipeline} stages of {run.chunks} chunks do not divide",
                      f"{PIPELINE} {right} works, or {-(-count // run.pipeline) * run.pipeline} layers")  # fmt: skip


def _check_batch(found: ConfigurationSettings, run: TrainingRun) -> None:
    least = run.micro_batch * run.data
    if run.global_batch % least and "step-batch-size-schedule" not in found:
        found.mistake("global-batch-size", f"is {run.global_batch}, no multiple of micro-batch {run.micro_batch} x "
                      f"{run.data} data-parallel ranks", f"{-(-run.global_batch // least) * least} works")  # fmt: skip
    elif run.chunks > 1 and run.micro_batches < run.pipeline:
        few = f"gives {run.micro_batches} micro-batches, fewer than {run.pipeline} stages"
        found.mistake("global-batch-size", f"{few}, which interleaving needs", f"{least * run.pipeline} works")
