"""Modules that PyTorch exports here: by a function, out of folders of Hugging Face, and what the sample has."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc import Tensor, value_and_grad
from mspc.readers.pytorch.exported_program import ExportedGraph, ExportedProgram, ExportedType
from mspc.readers.pytorch.exporting import export_made, in_type, read_folder
from mspc.readers.pytorch.graph_reader import read_program
from mspc.readers.pytorch.kinds.aten_table import kind_of
from mspc.readers.pytorch.network import ImportedNetwork, module_step
from mspc.readers.pytorch.sizes import with_sizes
from tests.conftest import ROOT
from tests.graphs import BFLOAT16, FLOAT32, INT64, MspcError

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")
flex_attention = pytest.importorskip("torch.nn.attention.flex_attention")
nn = torch.nn


class Everything(nn.Module):
    """Tied weights, views as buffers and parameters, parts without gradients, results in containers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.words.weight
        self.turned = nn.Parameter(torch.randn(4, 4).t())
        self.still = nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("spread", torch.arange(5).expand(3, 5))
        self.register_buffer("inner", torch.arange(20.0).view(4, 5)[:, 1:3], persistent=False)
        self.table = torch.full((4,), 2.0)

    def forward(self, words: Any, scale: float = 1.0, *, extra: Any = None) -> Any:
        x = self.words(words) @ self.turned * scale
        with torch.no_grad():
            still = x * self.still
        first, second = torch.split(x, 2, -1)
        mean = self.inner.sum() + self.spread.sum() + self.table.sum()
        return {"loss": x.mean() + mean, "parts": [(first, second), still], "logits": self.head(x), "none": None}


def exported(module: Any, *inputs: Any, to: Path, **named: Any) -> ExportedProgram:
    made = export_made((module, inputs, named), to / "model.pt2", "model.py:make")
    return replace(read_program(made.path), dropped=made.dropped)


class Rare(nn.Module):
    """A kind that is not known."""

    def forward(self, x: Any) -> Any:
        return torch.chain_matmul(x, x)


class Transformed(nn.Module):
    """A checkpoint of the reentrant kind, a transform, and a layer that a random number may skip."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.up, self.down = kind, nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        x = self.up(x)
        if self.kind == "checkpoint":
            x = torch.utils.checkpoint.checkpoint(torch.tanh, x, use_reentrant=True)
        elif self.kind == "vmap":
            x = torch.vmap(lambda row: torch.tanh(row) * row.sum())(x)
        elif not torch.rand([]) < 0.9:
            x = torch.tanh(x) + 0.0 * torch.rand([])  # a number that decides nothing
        return self.down(x).square().mean()


@pytest.mark.parametrize("kind", ["checkpoint", "vmap", "layer drop"])
def test_gradients_go_through_what_a_module_runs(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    module, x = Transformed(kind), torch.randn(4, 3)
    network = ImportedNetwork(exported(module, x, to=tmp_path))
    _, gradients = value_and_grad(network, None, network.trainable_params())(Tensor(x.numpy()))
    draws = [np.array(0.5, np.float32)] if kind == "layer drop" else []
    expected = module_step(network, (module, x), [x.numpy()], {}, "loss", trains=True, draws=draws).gradients
    for parameter, gradient in zip(network.trainable_params(), gradients, strict=True):
        np.testing.assert_allclose(gradient.asnumpy(), expected[parameter.name], rtol=1e-5, atol=1e-6)
    assert ("every layer runs" in capsys.readouterr().err) == (kind == "layer drop")


class Flexible(nn.Module):
    """`flex_attention` with a learnt score, a mask with a row that sees nothing, and fewer heads of keys."""

    def __init__(self, is_flex: bool = True) -> None:
        super().__init__()
        self.slopes, self.is_flex = nn.Parameter(torch.tensor([0.5, -0.3])), is_flex

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        if self.is_flex:
            mask = flex_attention.create_block_mask(lambda b, h, i, j: i > j, None, None, 6, 6, device="cpu")
            found = flex_attention.flex_attention(
                q, k, v, lambda score, b, h, i, j: score + self.slopes[h] * (i - j), mask, enable_gqa=True
            )
        else:
            i, j = torch.arange(6)[:, None], torch.arange(6)
            bias = torch.where(i > j, self.slopes[:, None, None] * (i - j), -float("inf"))
            found = torch.where(i > 0, nn.functional.scaled_dot_product_attention(q, k, v, bias, enable_gqa=True), 0.0)
        return found.square().sum()


def test_flex_attention_is_exported_as_what_it_computes(tmp_path: Path) -> None:
    q, k, v = torch.randn(3, 2, 6, 4), torch.randn(3, 1, 6, 4), torch.randn(3, 1, 6, 4)
    network = ImportedNetwork(exported(Flexible(), q, k, v, to=tmp_path))
    inputs = [Tensor(x.numpy()) for x in (q, k, v)]
    loss, [gradient] = value_and_grad(network, None, network.trainable_params())(*inputs)
    plain = Flexible(is_flex=False)
    expected = plain(q, k, v)
    expected.backward()
    np.testing.assert_allclose(loss.asnumpy(), expected.detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(gradient.asnumpy(), plain.slopes.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_kinds_that_are_not_known_are_decomposed(tmp_path: Path) -> None:
    program = exported(Rare(), torch.ones(2, 2), to=tmp_path)
    targets = [node.target for node in program.graph.nodes]
    assert "aten.chain_matmul.default" not in targets
    assert all(map(kind_of, targets))


def test_what_pytorch_writes(tmp_path: Path) -> None:
    """Every tensor is PyTorch's, and the names are the module's."""
    module = Everything()
    program = exported(module, torch.zeros(2, 5, dtype=torch.int64), to=tmp_path, extra={"a": torch.ones(2)})
    tensors = {**module.state_dict(), "inner": module.inner, "table": module.table}
    for name, tensor in tensors.items():
        assert np.array_equal(program.weights.read(name), tensor.detach().numpy()), name
        part = tuple(slice(0, 1) for _ in tensor.shape)
        assert np.array_equal(program.weights.read(name, part), tensor.detach().numpy()[part]), name
    assert dict(program.same) == {"head.weight": "words.weight"}
    kinds = {each.qualified: (each.kind, each.trainable, each.persistent) for each in program.inputs}
    assert kinds == {
        "words.weight": ("parameter", True, True), "head.weight": ("parameter", True, True),
        "turned": ("parameter", True, True), "still": ("parameter", False, True), "spread": ("buffer", False, True),
        "inner": ("buffer", False, False), "table": ("constant", False, False), "words": ("user", False, True),
        "extra.a": ("user", False, True),
    }  # fmt: skip
    assert [each.target for each in program.outputs] == ["loss", "parts.0.0", "parts.0.1", "parts.1", "logits", "none"]
    assert program.torch == torch.__version__


def test_places_and_graphs_in_nodes(tmp_path: Path) -> None:
    program = exported(Everything(), torch.zeros(2, 5, dtype=torch.int64), to=tmp_path)
    nodes = {node.target: node for node in program.graph.nodes}
    embedding = nodes["aten.embedding.default"]
    assert (embedding.scope, embedding.modules) == ("words", ("Everything", "Embedding"))
    line = embedding.user_line
    assert line is not None
    assert line.file == __file__
    assert line.text == "x = self.words(words) @ self.turned * scale"
    assert nodes["aten.split.Tensor"].types == (ExportedType(FLOAT32, (2, 5, 2)),) * 2
    inner = nodes["higher_order.wrap_with_set_grad_enabled"]
    graph = next(value for _, value in inner.arguments if isinstance(value, ExportedGraph))
    assert [node.target for node in graph.nodes] == ["aten.mul.Tensor"]


def test_sizes_of_a_real_export(tmp_path: Path) -> None:
    class Halved(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.reshape(x.shape[0] // 2, 2, -1).sum(1)

    rows = torch.export.Dim("rows", min=4, max=64)
    program = torch.export.export(Halved(), (torch.ones(8, 3),), dynamic_shapes={"x": {0: 2 * rows}}, strict=False)
    torch.export.save(program, tmp_path / "open.pt2")
    found = with_sizes(read_program(tmp_path / "open.pt2"), {})
    assert found.graph.nodes[-1].types == (ExportedType(FLOAT32, (4, 3)),)


def test_modules_on_no_device(tmp_path: Path) -> None:
    """A program of the device meta has types and no values."""
    with torch.device("meta"):
        module, words = Everything(), torch.zeros(2, 5, dtype=torch.int64)
    program = exported(module, words, to=tmp_path)
    assert not program.weights.tensors
    assert {each.qualified: each.type for each in program.inputs}["words"] == ExportedType(INT64, (2, 5))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (None, "gives None, not a module"),
        ("text", "gives a str, not a module"),
        ((), r"gives \(\), not a module"),
        ((1, 2), r"gives \(int, int\), not a module"),
        (nn.Linear(2, 2), "a module without the inputs of an example"),
        ((nn.Linear(2, 2), 3), r"gives \(Linear, int\), not a module"),
        ((nn.Linear(2, 2), (torch.ones(3),)), "PyTorch cannot export model.py:make: "),
    ],
)
def test_what_cannot_be_exported(tmp_path: Path, made: Any, message: str) -> None:
    with pytest.raises(MspcError, match=f"model.py:make.*{message}|{message}"):
        export_made(made, tmp_path / "model.pt2", "model.py:make")


def test_one_tensor_as_inputs(tmp_path: Path) -> None:
    export_made((nn.Linear(2, 3), torch.ones(4, 2)), tmp_path / "model.pt2", "make")
    assert read_program(tmp_path / "model.pt2").graph.nodes[0].types == (ExportedType(FLOAT32, (4, 3)),)


def test_a_folder_of_hugging_face(tmp_path: Path) -> None:
    """Weights are those that transformers reads, sharded files or one, tied and in bfloat16."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=32, max_position_embeddings=16, tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    frequencies = model.model.rotary_emb.inv_freq.numpy().copy()
    model.to(torch.bfloat16)
    for size in ("4KB", "1GB"):
        model.save_pretrained(tmp_path / size, max_shard_size=size)
        program = read_folder(tmp_path / size, {"batch": 2, "length": 8})
        assert dict(program.same) == {"lm_head.weight": "model.embed_tokens.weight"}
        for name, tensor in model.named_parameters():
            found = program.weights.read(name)
            assert program.weights.tensors[name].type.dtype == BFLOAT16
            assert np.array_equal(found.astype(np.float32), tensor.detach().float().numpy()), name
        assert np.array_equal(program.weights.read("model.rotary_emb.inv_freq"), frequencies)
        users = {each.qualified: each.type for each in program.inputs if each.kind == "user"}
        assert users == {"input_ids": ExportedType(INT64, (2, 8)), "labels": ExportedType(INT64, (2, 8))}
        assert program.outputs[0].target == "loss"
    with pytest.raises(MspcError, match="has no size 'rows'"):
        read_folder(tmp_path / "1GB", {"rows": 2})
    (tmp_path / "1GB" / "config.json").write_text('{"model_type": "nothing"}')
    with pytest.raises(MspcError, match="transformers cannot make the model in"):
        read_folder(tmp_path / "1GB", {})


def test_experts_of_hugging_face(tmp_path: Path) -> None:
    """A parameter of all experts is two tensors of each in the folder, and parts of it are read where they lie."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    config = transformers.MixtralConfig(
        hidden_size=16, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=32, max_position_embeddings=16, num_local_experts=11, num_experts_per_tok=2,
    )  # fmt: skip
    model = transformers.MixtralForCausalLM(config)
    model.save_pretrained(tmp_path / "model")
    weights = read_folder(tmp_path / "model", {"batch": 2, "length": 8}).weights
    for name, tensor in model.named_parameters():
        assert np.array_equal(weights.read(name), tensor.detach().numpy()), name
        part = tuple(slice(n // 3, n // 2 + 1) for n in tensor.shape)
        assert np.array_equal(weights.read(name, part), tensor.detach().numpy()[part]), name


def test_the_sample_is_what_its_maker_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive beside it has the model's weights, kinds and lines."""
    folder = ROOT / "samples" / "pytorch"
    monkeypatch.syspath_prepend(folder)
    module, inputs = __import__("language_model").make()
    monkeypatch.delitem(sys.modules, "language_model")
    program = read_program(folder / "language_model.pt2")
    for name, tensor in module.state_dict().items():
        assert np.array_equal(program.weights.read(name), tensor.numpy()), name
    again = exported(module, *inputs, to=tmp_path)
    named = [(node.target, node.scope) for node in with_sizes(program, {}).graph.nodes]
    assert [(node.target, node.scope) for node in again.graph.nodes] == named
    lines = [node.user_line for node in program.graph.nodes if node.frames]
    source = (folder / "language_model.py").read_text().splitlines()
    assert all(line is None or source[line.line - 1].strip() == line.text for line in lines)


def test_one_tensor_for_two_inputs_is_two_inputs(tmp_path: Path) -> None:
    """PyTorch would read one of them in the place of both."""

    class Difference(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return x - y

    x = torch.ones(2)
    program = exported(Difference(), x, x, to=tmp_path)
    [node] = program.graph.nodes
    operands = [value.name for _, value in node.arguments[:2]]  # type: ignore[union-attr]
    assert operands == [each.name for each in program.inputs]


@pytest.mark.parametrize(
    ("kind", "told"),
    [("mine", "code of the folder, which is not run"), ("llama", "no architecture that transformers has")],
)
def test_code_of_a_folder_is_not_run(kind: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nobody is asked whether it should be."""
    pytest.importorskip("transformers", reason="needs transformers")
    own = {"AutoConfig": "own.Config", "AutoModel": "own.Mine"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "architectures": ["Mine"], "auto_map": own}))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("somebody is asked"))
    with pytest.raises(MspcError, match=told) as refused:
        read_folder(tmp_path, {})
    assert any("AutoConfig: own.Config" in note for note in refused.value.notes)
    assert any("trust_remote_code=True" in note for note in refused.value.notes)
    assert not (tmp_path / "ran").exists()


class Passed(torch.autograd.Function):
    """The sign, with the gradient of its operand."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return torch.sign(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient


class Signs(nn.Module):
    def forward(self, x: Any) -> Any:
        return Passed.apply(x)


def test_a_gradient_that_is_lost_is_said_at_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    apply = torch.autograd.Function.apply
    exported(Signs(), torch.ones(2), to=tmp_path)
    said = capsys.readouterr().err
    line = Path(__file__).read_text().splitlines().index("        return Passed.apply(x)") + 1
    assert f"test_exporting.py:{line}: Passed.backward is not in the program" in said
    assert torch.autograd.Function.apply == apply
    x = torch.ones(2, requires_grad=True)
    Signs()(x).sum().backward()
    assert x.grad.tolist() == [1, 1]


class Line(nn.Module):
    def forward(self, x: Any) -> Any:
        return x + torch.linspace(0, 0.7, 5)


def test_numbers_made_without_a_type_have_the_exported_one(tmp_path: Path) -> None:
    with in_type(torch.float64):
        export_made((Line(), torch.zeros(5)), tmp_path / "line.pt2", "it")
    found = ImportedNetwork(read_program(tmp_path / "line.pt2"))(Tensor(np.zeros(5))).asnumpy()
    np.testing.assert_allclose(found, np.linspace(0, 0.7, 5), rtol=1e-15)
