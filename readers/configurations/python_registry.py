"""Reader of torchtitan's registries of configurations and Megatron-Bridge's recipes, Python files, as data: nothing in
them runs.

A configuration is a function that returns `Trainer.Config(...)`, or that changes the result of another function.
Functions of other registries are read from their files. Keyword arguments become dotted paths; values that are no
constants are left out.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from mspc.ir.diagnostics import MspcError, did_you_mean
from mspc.ir.files.atomic_writing import shown_path
from mspc.ir.files.parsing import parsing_python
from mspc.readers.configurations.settings import Setting, Values

CHECKPOINTS = {"SelectiveAC": "selective", "FullAC": "full", "MemoryBudgetAC": "memory_budget"}
"""Classes of activation checkpoints, and the modes of older files that do the same."""
REGISTRY = "model_registry"
"""Name of the functions that return a model of a flavor, and end of the names of functions that call one."""
MODULES = ("config_registry", "recipes")
"""Parts of the names of modules with functions that make configurations."""
TOKENS = "num_tokens_per_microbatch_per_dp_rank"
TextOf = Callable[[Path], str]
DEEPEST = 16
"""Most functions that take their configuration from one another."""


class Registry:
    """The functions of a registry's file, and the module and name of each import. file: its name in messages."""

    def __init__(self, file: str, path: Path, text: str) -> None:
        with parsing_python(file):
            tree = ast.parse(text)
        self.file, self.path = file, path.resolve()
        self.others: dict[str, Registry | None] = {}
        self.functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self.imports = {
            each.asname or each.name: ("." * node.level + (node.module or ""), each.name)
            for node in tree.body if isinstance(node, ast.ImportFrom) for each in node.names
        }  # fmt: skip

    def defining(self, name: str, read: TextOf) -> tuple[Registry | None, str]:
        """Return the registry that defines a function, and its name there: this one, or that of the module it is
        imported from, in this folder for a relative import or below a folder above; None if it is not there."""
        module, original = self.imports.get(name, ("", ""))
        if name in self.functions or not any(word in module for word in MODULES):
            return self if name in self.functions else None, name
        if module not in self.others:
            plain = module.lstrip(".")
            up = len(module) - len(plain)
            folders = [self.path.parents[up - 1]] if up else self.path.parents
            files = (folder.joinpath(*plain.split(".")).with_suffix(".py") for folder in folders)
            file = next((each for each in files if each.is_file()), None)
            self.others[module] = Registry(shown_path(file), file, read(file)) if file is not None else None
        other = self.others[module]
        return other.defining(original, read) if other is not None else (None, name)

    def model(self, called: str) -> str:
        """Return the name of the model whose `model_registry` a name stands for, or that a function calls."""
        names = {called}
        if called in self.functions:
            names = {each.id for each in ast.walk(self.functions[called]) if isinstance(each, ast.Name)}
        modules = [self.imports[name][0] for name in names if self.imports.get(name, "..")[1] == REGISTRY]
        return next((module.rpartition(".")[2] for module in modules), "") or self.path.parent.name


def registry_values(file: str, path: Path, text: str, name: str, read: TextOf) -> Values:
    """Return the values of a function of a registry, with the names of torchtitan's TOML files. Raise MspcError if the
    file is not valid Python or has no such function. read: returns the text of a file that is imported."""
    registry = Registry(file, path, text)
    if name not in registry.functions:
        known = [each for each in registry.functions if not each.startswith("_")]
        notes = [*did_you_mean(name, known), f"configurations of the file: {', '.join(known)}"] if known else []
        raise MspcError(f"{file} has no configuration {name!r}", notes=notes)
    found: dict[str, Setting] = {}
    _read(registry, name, found, read, 0)
    found.setdefault("model.name", Setting("model.name", registry.path.parent.name))
    found["recipe"] = Setting("recipe", name)
    tokens, length = (found.get(f"training.{key}") for key in (TOKENS, "max_context_length"))
    if length is not None:
        found["training.seq_len"] = Setting("training.seq_len", length.value, length.line)
    if tokens is not None and length is not None and length.value:
        size = max(1, int(tokens.value) // int(length.value))
        found["training.local_batch_size"] = Setting("training.local_batch_size", size, tokens.line)
    return Values(file, found)


def _read(registry: Registry, name: str, found: dict[str, Setting], read: TextOf, depth: int) -> None:
    """Add the values of a function; those that it changes replace those of the functions it takes them from."""
    flavors: dict[str, list[Setting]] = {}
    for node in registry.functions[name].body if name in registry.functions and depth < DEEPEST else ():
        match node:
            case ast.Assign(targets=[ast.Name(id=variable)], value=ast.Call() as call):
                _read_called(registry, call, found, read, depth)
                flavors[variable] = list(_flavor(registry, call))
            case ast.Assign(targets=[ast.Attribute() as target], value=value):
                path = ast.unparse(target).partition(".")[2]
                inner: dict[str, Setting] = {}
                _read_called(registry, value, inner, read, depth)
                found.update((f"{path}.{key}", each) for key, each in inner.items())
                found.update((each.name, each) for each in _values(registry, path, value, flavors))
            case ast.AnnAssign(value=ast.Dict() as table) | ast.Assign(targets=[ast.Name()], value=ast.Dict() as table):
                # Keyword arguments of a function that makes the configuration.
                for key, value in zip(table.keys, table.values, strict=True):
                    path = f"model.{key.value}" if isinstance(key, ast.Constant) else "model"
                    found.update((each.name, each) for each in _values(registry, path, value, flavors))
            case ast.Expr(value=ast.Call() as call):
                _read_called(registry, call, found, read, depth)
            case ast.Return(value=ast.Call() as call):
                _read_called(registry, call, found, read, depth)
                found.update((each.name, each) for each in _values(registry, "", call, flavors))
            case _:
                continue


def _read_called(registry: Registry, call: ast.expr, found: dict[str, Setting], read: TextOf, depth: int) -> None:
    """Add the values of the functions that a call and its arguments call, the innermost first."""
    for called in reversed([each.func.id for each in ast.walk(call) if isinstance(each, ast.Call)
                            and isinstance(each.func, ast.Name)]):  # fmt: skip
        other, name = (None, "") if called.endswith(REGISTRY) else registry.defining(called, read)
        if other is registry:
            _read(registry, called, found, read, depth + 1)
        elif other is not None:
            inner: dict[str, Setting] = {}
            _read(other, name, inner, read, depth + 1)
            # Lines of another file are no lines of this one.
            found.update((key, replace(setting, line=0)) for key, setting in inner.items())


def _values(registry: Registry, path: str, value: ast.expr, flavors: dict[str, list[Setting]]) -> Iterator[Setting]:
    """Yield the constants of an expression by dotted path."""
    if isinstance(value, ast.Call):
        called = ast.unparse(value.func)
        if called.endswith(REGISTRY):
            yield from _flavor(registry, value)
        elif path == "activation_checkpoint":
            mode = CHECKPOINTS.get(called.split(".")[0])
            if mode:
                yield Setting("activation_checkpoint.mode", mode, value.lineno)
        else:
            # `cfg.mixed_precision = precision("bf16")`
            yield from (Setting(path, constant, value.lineno) for constant in map(_constant, value.args) if constant)
            for keyword in value.keywords:
                if keyword.arg is not None:
                    # The trainer of a controller of reinforcement learning has the settings of other trainers.
                    inner = f"{path}.{keyword.arg}".lstrip(".").removeprefix("trainer.")
                    yield from _values(registry, inner, keyword.value, flavors)
        return
    if path == "model_spec" and isinstance(value, ast.Name) and value.id in flavors:
        yield from flavors[value.id]
        return
    constant = _constant(value)
    if path == "activation_checkpoint" and constant is None:
        yield Setting("activation_checkpoint.mode", "none", value.lineno)
    elif constant is not None or (isinstance(value, ast.Constant) and path):
        yield Setting(path, constant, value.lineno)


def _flavor(registry: Registry, call: ast.Call) -> Iterator[Setting]:
    """Yield the model and the flavor of a call of `model_registry`."""
    called = ast.unparse(call.func)
    if called.endswith(REGISTRY) and call.args:
        yield Setting("model.flavor", _constant(call.args[0]), call.lineno)
        yield Setting("model.name", registry.model(called), call.lineno)
        converters = (keyword.value for keyword in call.keywords if keyword.arg == "converters")
        yield from (Setting("model.converters", _constant(value), call.lineno) for value in converters)


def _constant(value: ast.expr) -> int | float | str | bool | list[Any] | None:
    """Return the value of a constant, a list of them or a product of integers, or None."""
    match value:
        case ast.List(elts=items):
            return [_constant(item) for item in items]
        case ast.Constant(value=bool() | int() | float() | str() as constant):
            return constant
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="Config")):
            return name
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as constant)):
            return -constant
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            first, second = _constant(left), _constant(right)
            return first * second if isinstance(first, int) and isinstance(second, int) else None
        case _:
            return None
