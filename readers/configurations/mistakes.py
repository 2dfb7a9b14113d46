"""Mistakes in configurations: the rules that Megatron Core enforces when it starts, and slips that it does not notice.

Each is named by setting, with the value that works. The rules are those of `validate_args` in
megatron/training/arguments.py, `TransformerConfig.__post_init__`, and megatron/core/parallel_state.py.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from mspc.analysis.cost.training.model_shape import AttentionShape, TrainingRun
from mspc.ir.diagnostics import nearest
from mspc.readers.configurations.settings import CHOICES, ConfigurationSettings, is_stated, tables_of

_ARGUMENTS, _TRAINERS = tables_of("megatron_arguments"), tables_of("trainer_settings")
WORDS = {
    "integers": (r"[-+]?[\d_]+", "an integer"),
    "numbers": (r"[-+]?(\d[\d_]*\.?\d*|\.\d+)(e[-+]?\d+)?|inf|nan", "a number"),
    "patterns": (r"[-\d()\[\]+*]+", "a number or an expression such as ([0]*1+[1]*3)"),
    "switches": ("true|false|1|0|yes|no", "true or false"),
}
"""Words that an argument of each type may be, as a regular expression and in words."""
TYPES = {
    family: {name: kind for kind in (*WORDS, "lists", "texts") for name in tables.get(kind, "").split()}
    for family, tables in {"arguments": _ARGUMENTS, **_TRAINERS}.items()
}
"""The type of the values of each setting of a family; of Megatron-LM's arguments."""
KNOWN = frozenset((*TYPES["arguments"], *_ARGUMENTS["others"].split(), *_ARGUMENTS["launcher"].split()))
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
        name, checks = setting.lstrip("!@"), conditions.split()
        found = value(name)
        # `!name` is a setting that is missing, `@name` any one. Zero is a value if the rule compares it.
        compared = any(check.startswith((f"{name}<", f"{name}>")) for check in checks)
        unset = found is None or found is False if compared else found in UNSET
        fits = {"!": found is None, "@": True}.get(setting[0], not unset)
        if fits and all(_holds(each, value) for each in checks):
            yield name, *_filled((problem, right), _numbers(conditions, value), value)


def _filled(texts: Iterable[str], numbers: Mapping[str, int], value: Callable[[str], Any]) -> Iterator[str]:
    """Yield texts with numbers and the values of settings in place of their names in braces."""
    for text in texts:
        yield re.sub(r"{([\w-]*)}", lambda name: str(numbers.get(name[1]) or value(name[1])), text)


def _numbers(conditions: str, value: Callable[[str], Any]) -> dict[str, int]:
    """Return the numbers for the text of a rule: the product of `<>` by "", and of `%` the next multiple, and the
    largest divisor."""
    match = re.search(r"(\S+)(<>|%)(\S+)", conditions)
    if match is None:
        return {}
    number, unit = (int(_product(name, value)) for name in (match[1], match[3]))
    return {"": unit, "multiple": -(-number // unit) * unit, "divisor": largest_divisor(number, unit)}


def _product(names: str, value: Callable[[str], Any]) -> float:
    """Return a number, or the product of settings such as `a*b`. Counts that are not set, 0 or -1 are 1."""
    given = {name: name if re.fullmatch(r"-?[\d.]+", name) else value(name) for name in names.split("*")}
    found = [float(DEFAULTS.get(name, 1) if each is None else each) for name, each in given.items()]
    return found[0] if len(found) == 1 else math.prod(max(1.0, number) for number in found)


def _holds(condition: str, value: Callable[[str], Any]) -> bool:
    """Return if a condition holds. Texts that should be numbers fulfil none: the readers of numbers report them."""
    match = re.fullmatch(r"(!?)([\w.-]+)(?:(<>|!=|>=|=|<|>|%|~)(.+))?", condition)
    assert match is not None, condition
    absent, name, operator, right = match.groups()
    if not operator:
        return (value(name) in UNSET) == bool(absent)
    found = DEFAULTS.get(name) if value(name) is None else value(name)
    if operator == "~":
        return (right in re.split(r"[\s,\[\]']+", str(found))) != bool(absent)
    if operator in ("=", "!="):
        return found is not None and (str(found) in right.split(",")) == (operator == "=")
    try:
        number, unit = _product(name, value), _product(right, value)
    except (TypeError, ValueError, OverflowError):
        return False
    return {"<": number < unit, ">": number > unit, ">=": number >= unit, "<>": number != unit,
            "%": bool(unit and number % unit)}[operator]  # fmt: skip


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
    elif ranks % sparse:
        name = EXPERT if EXPERT in found else EXPERT_TENSOR
        right = largest_divisor(ranks // (pipeline * expert_tensor) or 1, expert)
        product = f"{expert} x expert tensor {expert_tensor} x pipeline {pipeline} = {sparse}"
        found.mistake(name, f"{product} does not divide {ranks} ranks",
                      f"{EXPERT} {right} works, or --ranks {-(-ranks // sparse) * sparse}")  # fmt: skip
    _check_pairs(found, tensor, ranks)
    _check_names(found, KNOWN, IGNORED_PREFIXES)
    return ranks


def _check_pairs(found: ConfigurationSettings, tensor: int, ranks: int) -> None:
    """Record settings that contradict each other."""

    def value(name: str) -> Any:
        # YAML's `none` is a value of some settings.
        return ("none" if found.by_name[name].value is None else found.by_name[name].value) if name in found else None

    if found.core:
        check_rules(found, "megatron", value, ranks)
    if found.prefix and any(setting.line for setting in found.by_name.values()):
        check_rules(found, "arguments", value, ranks)
    if found.prefix:
        _check_types(found, TYPES["arguments"])
    found.check_choices(CHOICES)
    unused = [each[:2] for each in broken("unused", "megatron", value)]
    lines = {name: setting.line for name, setting in found.by_name.items()}
    found.notes += [f"{found.shown(name)} {note}" for name, note in unused if found.prefix or lines.get(name)]
    trains = found.prefix and not any(name.startswith("inference-") for name in found.by_name)
    if found.count("num-experts") and tensor > 1 and trains and not found.flag("sequence-parallel"):
        found.mistake("sequence-parallel", "is not set, but experts with tensor parallelism need it", "set it")


def check_rules(found: ConfigurationSettings, family: str, value: Callable[[str], Any], ranks: int | None) -> None:
    """Record the settings that break a rule of a family, with their values. ranks: the value of `world-size`."""
    for setting, problem, right in broken(
        "refused", family, lambda name: ranks if name == "world-size" else value(name)
    ):
        words = " ".join(map(str, each if isinstance(each := value(setting), list | tuple) else [each]))
        stated = value(setting) in (True, None, "true") or re.match(r"is -?\d|gives|makes", problem)
        found.mistake(setting, problem if stated else f"{words} {problem}", right)


def check_file(found: ConfigurationSettings, family: str, value: Callable[[str], Any], ranks: int | None) -> None:
    """Record mistakes in the settings of a file by the names of its own trainer. value: of a path, or None."""
    check_rules(found, family, value, ranks)
    _check_types(found, TYPES.get(family, {}))
    found.check_choices({name: words.split() for name, words in _TRAINERS.get(family, {}).get("choices", {}).items()})
    found.notes += [f"{found.shown(name)} {note}" for name, note, _ in broken("unused", family, value)]
    _check_names(found, TYPES.get(family, {}), (), f"refused by {family}")


def _check_types(found: ConfigurationSettings, types: Mapping[str, str]) -> None:
    """Record settings whose values are of another type."""
    for name, kind in types.items():
        if kind == "lists" and found.names(name) and not isinstance(found.raw(name), list):
            found.mistake(name, f"is {found.raw(name)!r}", "it is a list")
        pattern, shown = WORDS.get(kind, ("", ""))
        whole = isinstance(number := found.raw(name), float) and number.is_integer()
        words = [word for word in found.names(name) if not (whole or re.fullmatch(pattern, word.lower()))]
        if words and pattern and is_stated(words[0]):
            found.mistake(name, f"is {words[0]!r}", f"it is {shown}")


def _check_names(
    found: ConfigurationSettings, known: Collection[str], ignored: tuple[str, ...], fate: str = "ignored"
) -> None:
    """Record settings that look like a slip of the pen for a known one, and note those that are not known. Sections
    without any known setting are left out. fate: the consequence for these."""
    unknown: list[str] = []
    sections = {name.rpartition(".")[0] for name in known}
    for name, setting in found.by_name.items():
        if name in known or name.startswith(ignored) or name.rpartition(".")[0] not in sections:
            continue
        near = nearest(name, known)[:1]
        # One letter differs, or two change places.
        if setting.line and len(name) > 6 and difflib.get_close_matches(name, near, 1, 1 - 1.001 / len(name)):
            found.mistake(name, "is no setting", f"{found.prefix}{near[0]} is one")
        else:
            unknown.append(found.shown(name) + f" on line {setting.line}" * (setting.line > 0))
    if unknown:
        found.notes.append(f"not known, so {fate}: {', '.join(sorted(unknown))}")


def check_run(found: ConfigurationSettings, run: TrainingRun) -> None:
    """Record sizes that the degrees do not divide, by the rules of the family "sizes"."""
    model, rows = run.model, run.tokens(run.model.sequence) // run.rows
    layers, feeds = model.layers, [layer.feed for layer in model.layers if layer.feed is not None]
    attention = next((m for each in layers for m in each.mixers if isinstance(m, AttentionShape)), None)
    experts = next((feed for feed in feeds if feed.experts), None)
    dense = next((feed for feed in feeds if not feed.experts), None)
    sizes: dict[str, Any] = {
        "hidden": model.hidden, "sequence": model.sequence, "padded-sequence": -(-model.sequence // 64) * 64,
        "positions": model.positions, "sequence-shares": run.rows * (2 * run.context if run.context > 1 else 1),
        "rows": rows, "8-bit": bool(run.eight), "core": found.core, "micro-batch": run.micro_batch, "data": run.data,
        "batch": run.global_batch, "replica-batch": run.micro_batch * run.data, "micro-batches": run.micro_batches,
        "least-batch": run.micro_batch * run.data * run.pipeline, "chunks": run.chunks, "stages": run.pipeline,
        "tensor": run.tensor, "expert": run.expert, "expert-tensor": run.expert_tensor, "context": run.context,
        "replicas": run.data * run.context,
        "levels": math.prod(int(size) for size in found.names(HIERARCHY) if size.isdecimal()),
    }  # fmt: skip
    if attention is not None and "num-attention-heads" in found:
        sizes |= {"heads": attention.heads, "groups": attention.groups, "latent": attention.key_rank > 0}
    if experts is not None:
        sizes |= {"experts": experts.experts, "choices": experts.choices, "expert-width": experts.width}
    if dense is not None:
        sizes |= {"width": dense.width, "width-on-rank": dense.width // run.tensor}
    if not run.stages and not model.encoders:
        sizes["stage-layers"] = len(layers) // run.pipeline
    check_rules(found, "sizes", lambda name: sizes[name] if name in sizes else found.raw(name), run.ranks)
    found.notes += [f"{found.shown(name)} {note}" for name, note, _ in broken("unused", "sizes", sizes.get)]
    _check_layers(found, run)


def _check_layers(found: ConfigurationSettings, run: TrainingRun) -> None:
    count = len(run.model.layers)
    first, last = run.first_layers, run.last_layers
    between = run.pipeline - bool(first) - bool(last)
    rest = count - first - last
    if not run.stages and (first or last) and (rest < between or (between <= 0 and rest)):
        name = "decoder-first-pipeline-num-layers" if first else "decoder-last-pipeline-num-layers"
        found.mistake(name, f"leaves {rest} of {count} layers to {max(between, 0)} other stages", "leave it out")
        return
    accounted = sum(found.flag(f"account-for-{part}-in-pipeline-split") for part in ("embedding", "loss"))
    # Recipes of rows state only that the stages are uneven.
    if run.model.encoders or (run.stages and not (accounted and found.prefix)):
        return
    if between and (rest + accounted) % (between * (1 if first or last else run.chunks)):
        right = largest_divisor(count, run.pipeline)
        found.mistake("num-layers", f"is {count}, which {run.pipeline} stages of {run.chunks} chunks do not divide",
                      f"{PIPELINE} {right} works, or {-(-count // run.pipeline) * run.pipeline} layers")  # fmt: skip
