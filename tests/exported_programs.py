"""Exported programs made by hand, as `torch.export.save` writes them: tests of readers need no PyTorch."""

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float16": 6, "float32": 7, "float64": 8,
         "bool": 12}  # fmt: skip
Size = int | str
"""A number, or an expression of symbols."""


class Exported:
    """A program to which inputs, nodes and outputs are put one after the other.

    content: of `models/<name>.json`. members: of the archive beside it, by their names inside of the folder.
    """

    def __init__(self, name: str = "model") -> None:
        self.name = name
        self.graph: dict[str, Any] = {
            "inputs": [], "outputs": [], "nodes": [], "tensor_values": {}, "sym_int_values": {}, "sym_bool_values": {},
            "sym_float_values": {}, "is_single_tensor_return": False, "custom_obj_values": {},
        }  # fmt: skip
        self.signature: dict[str, Any] = {"input_specs": [], "output_specs": []}
        self.call: dict[str, Any] = {"inputs": [], "outputs": [], "forward_arg_names": []}
        self.paths: list[str] = []
        self.content: dict[str, Any] = {
            "graph_module": {
                "graph": self.graph, "signature": self.signature, "metadata": {}, "treespec_namedtuple_fields": {},
                "module_call_graph": [{"fqn": "", "signature": self.call}],
            },
            "opset_version": {"aten": 10}, "range_constraints": {}, "schema_version": {"major": 8, "minor": 20},
            "verifiers": ["TRAINING"], "torch_version": "2.13.0", "guards_code": [],
        }  # fmt: skip
        self.configs: dict[str, dict[str, Any]] = {"weights": {}, "constants": {}}
        self.members: dict[str, bytes] = {
            "archive_format": b"pt2", "archive_version": b"0", ".data/version": b"6\n", "byteorder": b"little",
        }  # fmt: skip

    def tensor(self, name: str, dtype: str, shape: Sequence[Size], trains: bool = False) -> str:
        """Says what a value is."""
        self.graph["tensor_values"][name] = meta(dtype, shape, trains)
        return name

    def stored(self, qualified: str, array: Any, kind: str = "parameter", trains: bool = True) -> str:
        """An input that the module has, with its values."""
        prefix = {"parameter": "p_", "buffer": "b_", "tensor_constant": "c_"}[kind]
        name = self.tensor(prefix + qualified.replace(".", "_"), array.dtype.name, array.shape, trains)
        folder = "constants" if kind == "tensor_constant" else "weights"
        member = f"{'tensor' if kind == 'tensor_constant' else 'weight'}_{len(self.configs[folder])}"
        self.members[f"data/{folder}/{member}"] = np.ascontiguousarray(array).tobytes()
        self.configs[folder][qualified] = {
            "path_name": member, "is_param": kind == "parameter", "use_pickle": False,
            "tensor_meta": meta(array.dtype.name, array.shape, trains),
        }  # fmt: skip
        self.graph["inputs"].append({"as_tensor": {"name": name}})
        spec: dict[str, Any] = {"arg": {"name": name}, f"{kind}_name": qualified}
        self.signature["input_specs"].append({kind: spec | ({"persistent": True} if kind == "buffer" else {})})
        return name

    def user(self, name: str, dtype: str, shape: Sequence[Size]) -> str:
        """An input of the caller."""
        self.tensor(name, dtype, shape)
        self.graph["inputs"].append({"as_tensor": {"name": name}})
        self.signature["input_specs"].append({"user_input": {"arg": {"as_tensor": {"name": name}}}})
        self.call["forward_arg_names"].append(name)
        return name

    def node(
        self, target: str, arguments: Mapping[str, Any], results: Mapping[str, tuple[str, Sequence[Size]]],
        scope: str = "", line: int = 1,
    ) -> str:  # fmt: skip
        """A call; results: names with element types and shapes. Gives the name of the first."""
        outputs = [{"as_tensor": {"name": self.tensor(name, *about)}} for name, about in results.items()]
        place = f'File "net.py", line {line}, in forward\n    line {line} of the network'
        modules = f"L__self__,,__main__.Net;L__{scope},{scope},nn.Part"
        self.graph["nodes"].append({
            "target": f"torch.ops.{target}",
            "inputs": [{"name": name, "arg": argument(value), "kind": 1} for name, value in arguments.items()],
            "outputs": outputs,
            "metadata": {"stack_trace": place, "nn_module_stack": modules},
            "is_hop_single_tensor_return": None,
            "name": next(iter(results), ""),
        })  # fmt: skip
        return next(iter(results), "")

    def output(self, name: str, path: str = "") -> None:
        """Something that the caller gets."""
        self.graph["outputs"].append({"as_tensor": {"name": name}})
        self.signature["output_specs"].append({"user_output": {"arg": {"as_tensor": {"name": name}}}})
        self.paths.append(path)

    def all_members(self) -> dict[str, bytes]:
        """The content of the archive."""
        leaf = {"type": None, "context": None, "children_spec": []}
        count = len(self.call["forward_arg_names"])
        places = {"type": "builtins.tuple", "context": "null", "children_spec": [leaf] * count}
        words = {"type": "builtins.dict", "context": "[]", "children_spec": []}
        both = {"type": "builtins.tuple", "context": "null", "children_spec": [places, words]}
        named = {"type": "builtins.dict", "context": json.dumps(self.paths), "children_spec": [leaf] * len(self.paths)}
        self.call["in_spec"] = json.dumps([1, both])
        self.call["out_spec"] = json.dumps([1, named if any(self.paths) else leaf])
        configs = {
            f"data/{folder}/{self.name}_{folder}_config.json": json.dumps({"config": config}).encode()
            for folder, config in self.configs.items()
        }
        return {f"models/{self.name}.json": json.dumps(self.content).encode(), **configs, **self.members}

    def save(self, path: Path) -> Path:
        """Write the archive."""
        return write_archive(path, {f"{self.name}/{name}": content for name, content in self.all_members().items()})


def write_archive(path: Path, members: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    """A zip file with these members."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, compression)
    return path


def meta(dtype: str, shape: Sequence[Size], trains: bool = False) -> dict[str, Any]:
    """The entry of the file for a tensor whose elements follow each other."""
    strides: list[Any] = []
    step: Any = 1
    for n in reversed(shape):
        strides.insert(0, {"as_int": step if isinstance(step, int) else 1})
        step = step * n if isinstance(n, int) and isinstance(step, int) else "?"
    return {
        "dtype": CODES[dtype], "sizes": [size(n) for n in shape], "requires_grad": trains, "layout": 7,
        "device": {"type": "cpu", "index": None}, "strides": strides, "storage_offset": {"as_int": 0},
    }  # fmt: skip


def size(value: Size, example: int = 6) -> dict[str, Any]:
    """A size as the file has it."""
    if isinstance(value, int):
        return {"as_int": value}
    return {"as_expr": {"expr_str": value, "hint": {"as_int": example}}}


def argument(value: Any) -> dict[str, Any]:
    """An argument as the file has it: a text is the name of a value, a dictionary is taken as it is."""
    if isinstance(value, dict):
        return value
    if isinstance(value, str):
        return {"as_tensor": {"name": value}}
    if value is None or isinstance(value, bool):
        return {"as_none": True} if value is None else {"as_bool": value}
    if isinstance(value, list):
        numbers = all(isinstance(n, int) for n in value)
        return {"as_ints": value} if numbers else {"as_tensors": [{"name": name} for name in value]}
    return {"as_int": value} if isinstance(value, int) else {"as_float": value}


def two_layers(rows: Size = 6) -> Exported:
    """`relu(x @ w.T + b) @ v.T`, its second layer without a bias; its output is called `y`."""
    made = Exported()
    values = np.random.default_rng(3)
    w, b, v = (values.normal(size=shape).astype(np.float32) for shape in ((8, 4), (8,), (2, 8)))
    names = made.stored("first.weight", w), made.stored("first.bias", b), made.stored("second.weight", v)
    x = made.user("x", "float32", (rows, 4))
    first = {"input": x, "weight": names[0], "bias": names[1]}
    made.node("aten.linear.default", first, {"linear": ("float32", (rows, 8))}, "first", 11)
    made.node("aten.relu.default", {"self": "linear"}, {"relu": ("float32", (rows, 8))}, "", 12)
    second = {"input": "relu", "weight": names[2]}
    made.node("aten.linear.default", second, {"linear_1": ("float32", (rows, 2))}, "second", 13)
    made.output("linear_1", "y")
    return made
