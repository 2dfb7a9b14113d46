"""Reader of torchtitan's registries of configurations, Python files, as data: nothing in them runs.

A configuration is a function that returns `Trainer.Config(...)`, or that changes what another function returns. Keyword
arguments become dotted paths; values that are no constants are left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from mspc.ir.diagnostics import MspcError, did_you_mean
from mspc.readers.configurations.settings import Setting, Values, error_at

CHECKPOINTS = {"SelectiveAC": "selective", "FullAC": "full", "MemoryBudgetAC": "memory_budget"}
"""Classes of activation checkpoints, and the modes of older files that do the same."""
DEEPEST = 16
"""Most functions that take their configuration from one another."""


def registry_values(file: str, path: Path, text: str, name: str) -> Values:
    """Return the values of a function of a registry, with the names of torchtitan's TOML files. Raise MspcError if the
    file is not valid Python or has no such function."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise error_at(file, getattr(error, "lineno", 0) or 0, f"the file is not valid Python: {error}") from None
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if name not in functions:
        known = [each for each in functions if not each.startswith("_")]
        notes = [*did_you_mean(name, known), f"configurations of the file: {', '.join(known)}"] if known else []
        raise MspcError(f"{file} has no configuration {name!r}", notes=notes)
    found: dict[str, Setting] = {}
    _read(functions, name, found, 0)
    found["model.name"] = Setting("model.name", path.resolve().parent.name)
    tokens, length = (found.get(f"training.{key}") for key in (
        "num_tokens_per_microbatch_per_dp_rank", "max_context_length"
    ))  # fmt: skip
    if length is not None:
        found["training.seq_len"] = Setting("training.seq_len", length.value, length.line)
    if tokens is not None and length is not None and length.value:
        size = max(1, int(tokens.value) // int(length.value))
        found["training.local_batch_size"] = Setting("training.local_batch_size", size, tokens.line)
    return Values(file, found)


def _read(functions: dict[str, ast.FunctionDef], name: str, found: dict[str, Setting], depth: int) -> None:
    """Add the values of a function; those that it changes replace those of the function it takes them from."""
    flavors: dict[str, Setting] = {}
    for node in functions[name].body if depth < DEEPEST else ():
        match node:
            case ast.Assign(targets=[ast.Name(id=variable)], value=ast.Call(func=ast.Name(id=called)) as call):
                if called in functions:
                    _read(functions, called, found, depth + 1)
                elif called == "model_registry":
                    flavors[variable] = _flavor(call)
            case ast.Assign(targets=[ast.Attribute() as target], value=value):
                path = ast.unparse(target).partition(".")[2]
                found.update((each.name, each) for each in _values(path, value, flavors))
            case ast.Return(value=ast.Call() as call):
                found.update((each.name, each) for each in _values("", call, flavors))
            case _:
                continue


def _values(path: str, value: ast.expr, flavors: dict[str, Setting]) -> Iterator[Setting]:
    """Yield the constants of an expression by dotted path."""
    if isinstance(value, ast.Call):
        called = ast.unparse(value.func)
        if called == "model_registry":
            yield _flavor(value)
        elif path == "activation_checkpoint":
            mode = CHECKPOINTS.get(called.split(".")[0])
            if mode:
                yield Setting("activation_checkpoint.mode", mode, value.lineno)
        else:
            for keyword in value.keywords:
                if keyword.arg is not None:
                    yield from _values(f"{path}.{keyword.arg}".lstrip("."), keyword.value, flavors)
        return
    if path == "model_spec" and isinstance(value, ast.Name) and value.id in flavors:
        yield flavors[value.id]
        return
    constant = _constant(value)
    if path == "activation_checkpoint" and constant is None:
        yield Setting("activation_checkpoint.mode", "none", value.lineno)
    elif constant is not None:
        yield Setting(path, constant, value.lineno)


def _flavor(call: ast.Call) -> Setting:
    """Return the flavor of a call of `model_registry`."""
    argument = _constant(call.args[0]) if call.args else None
    return Setting("model.flavor", argument, call.lineno)


def _constant(value: ast.expr) -> int | float | str | bool | None:
    """Return the value of a constant or of a product of integers, or None."""
    match value:
        case ast.Constant(value=bool() | int() | float() | str() as constant):
            return constant
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as constant)):
            return -constant
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            first, second = _constant(left), _constant(right)
            return first * second if isinstance(first, int) and isinstance(second, int) else None
        case _:
            return None
