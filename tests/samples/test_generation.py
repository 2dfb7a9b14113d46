"""The generation sample: its tokens are the same on any number of ranks, and those of a decoder in NumPy."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc
from mspc import Tensor
from mspc.runtime.program import load_program

Run = Callable[..., str]
MOST, BATCH, LENGTH = 64, 3, 8
VOCABULARY, WIDTH, HIDDEN, HEADS, KEY_HEADS, SIZE, LAYERS = 96, 64, 128, 8, 4, 8, 2
GREEDY = ("--end", -1)
BEAMS: tuple[Any, ...] = ("--beams", 4, "--end", 76)
DRAWN = ("--temperature", 0.8, "--top", 20, "--end", -1)


@pytest.fixture(scope="module")
def script(samples: Path) -> Path:
    return samples / "generation" / "generate.py"


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    """Large enough that the tokens differ, and no two of a step are nearly equally likely."""
    generator = np.random.default_rng(11)
    shapes: dict[str, tuple[int, ...]] = {"table": (VOCABULARY, WIDTH), "norm.gamma": (WIDTH,)}
    for i in range(LAYERS):
        here = {
            "norm1.gamma": (WIDTH,), "norm2.gamma": (WIDTH,),
            "attention.wq": (WIDTH, WIDTH), "attention.wk": (WIDTH, KEY_HEADS * SIZE),
            "attention.wv": (WIDTH, KEY_HEADS * SIZE), "attention.wo": (WIDTH, WIDTH),
            "feed_forward.w1": (WIDTH, HIDDEN), "feed_forward.w2": (HIDDEN, WIDTH), "feed_forward.w3": (WIDTH, HIDDEN),
        }  # fmt: skip
        shapes |= {f"layers.{i}.{name}": shape for name, shape in here.items()}
    return {
        name: (1.5 * generator.normal(size=shape) / np.sqrt(shape[0]) if len(shape) == 2
               else generator.uniform(0.5, 1.5, shape)).astype(np.float32)
        for name, shape in shapes.items()
    }  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(weights: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "decoder.ckpt"
    mspc.save_checkpoint([{"name": f"decoder.{name}", "data": Tensor(x)} for name, x in weights.items()], str(path))
    return path


@pytest.fixture(scope="module")
def tokens(shared_mspc: Run, script: Path, checkpoint: Path) -> Callable[..., np.ndarray]:
    """(ranks, flags of mspc, options of the script) -> tokens[batch, count] of rank 0."""

    def run(ranks: int, flags: tuple[str, ...], options: tuple[Any, ...]) -> np.ndarray:
        given = ("--most", MOST, "--batch", BATCH, "--length", LENGTH, "--checkpoint", checkpoint, *options)
        out = shared_mspc("run", script, "--ranks", ranks, "--only-rank", 0, *flags, "--", *given)
        return np.array([line.split() for line in out.splitlines()], np.int32)

    return run


@pytest.fixture(scope="module")
def greedy(tokens: Callable[..., np.ndarray]) -> np.ndarray:
    return tokens(1, (), GREEDY)


@pytest.fixture(scope="module")
def beams(tokens: Callable[..., np.ndarray]) -> np.ndarray:
    return tokens(1, (), ("--most", 24, *BEAMS))


def test_four_ranks_say_what_one_says(tokens: Callable[..., np.ndarray], greedy: np.ndarray) -> None:
    assert greedy.shape == (BATCH, MOST)
    assert min(len(set(row)) for row in greedy.tolist()) > 8  # a loop that hands on nothing would say one or two
    np.testing.assert_array_equal(tokens(4, ("--simulate",), GREEDY), greedy)


def test_ranks_under_mpi_say_what_one_says(tokens: Callable[..., np.ndarray], greedy: np.ndarray) -> None:
    np.testing.assert_array_equal(tokens(2, (), ("--most", 16, *GREEDY)), greedy[:, :16])


def test_drawn_tokens_depend_on_the_seed_alone(tokens: Callable[..., np.ndarray], greedy: np.ndarray) -> None:
    drawn = tokens(1, (), DRAWN)
    assert (drawn != greedy).mean() > 0.5
    np.testing.assert_array_equal(tokens(4, ("--simulate",), DRAWN), drawn)
    others = tokens(1, (), (*DRAWN, "--seed", 2, "--most", 16))
    assert (others != drawn[:, :16]).mean() > 0.5


def test_a_row_ends_at_its_token_and_the_loop_behind_the_last(
    tokens: Callable[..., np.ndarray], greedy: np.ndarray
) -> None:
    """The end is a token of the greedy rows that all of them have met before the most."""
    first = {
        int(token): [row.index(token) for row in greedy.tolist()]
        for token in set.intersection(*map(set, greedy.tolist()))
    }
    end, ends = min(first.items(), key=lambda entry: max(entry[1]))
    assert max(ends) < MOST - 1
    found = tokens(4, ("--simulate",), ("--end", end))
    assert found.shape == (BATCH, max(ends) + 1)
    for row, expected, last in zip(found, greedy, ends, strict=True):
        np.testing.assert_array_equal(row[: last + 1], expected[: last + 1])
        np.testing.assert_array_equal(row[last:], end)


@pytest.mark.parametrize(("options", "gathered", "most"), [
    (("--untied",), 2, 4000),
    (DRAWN, 1, 5000),
    (BEAMS, 1, 18000),
])  # fmt: skip
def test_a_turn_sends_what_the_heads_need(
    mspc: Run, script: Path, tmp_path: Path, options: tuple[Any, ...], gathered: int, most: int
) -> None:
    """The embedding, two sums a layer, and the logits or the best of each rank's: nothing of the caches, no weight."""
    written = tmp_path / "tables.json"
    mspc("compile", script, "--ranks", 4, "--out", tmp_path / "out", "--json", written, "--", *options)
    tables = json.loads(written.read_text())
    turns = [row for row in tables["collectives"] if row["a_turn"]]
    assert Counter((row["operator"], len(row["ranks"])) for row in turns) == {
        ("AllReduce", 4): 1 + 2 * LAYERS, ("AllGather", 4): gathered,
    }  # fmt: skip
    assert sum(row["bytes"] for row in turns) < most
    slices = {row["name"]: row["slice"] for row in tables["parameters"]}
    assert slices["decoder.table"] == [VOCABULARY // 4, WIDTH]
    assert slices["decoder.layers.0.attention.wk"] == [WIDTH, SIZE]
    program = load_program(tmp_path / "out")
    [loop] = [node for node in program.graph(0, program.text(0)).nodes if node.op.name == "While"]
    caches = [value.type for value in loop.regions[1].parameters if value.name.startswith(("keys", "values"))]
    rows = 8 if options == BEAMS else 2
    assert [str(cache) for cache in caches] == [f"<Tensor[Float32], ({rows}, 1, 264, 8)>"] * 2 * LAYERS


def test_beams_on_four_ranks_are_those_on_one(tokens: Callable[..., np.ndarray], beams: np.ndarray) -> None:
    np.testing.assert_array_equal(tokens(4, ("--simulate",), ("--most", 24, *BEAMS)), beams)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def decoded(weights: dict[str, np.ndarray], text: np.ndarray) -> np.ndarray:
    """The logits[rows, length, vocabulary] behind every token of text[rows, length], in doubles and without a cache."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    rows, length = text.shape
    angles = np.outer(np.arange(length), 10000.0 ** (-np.arange(0, SIZE, 2) / SIZE))

    def norm(x: np.ndarray, gamma: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * gamma

    def heads(x: np.ndarray) -> np.ndarray:
        x = x.reshape(rows, length, -1, SIZE).transpose(0, 2, 1, 3)
        return x.repeat(HEADS // x.shape[1], 1)

    def turned(x: np.ndarray) -> np.ndarray:
        """Pairs (first half, second half) are complex numbers, turned by their place's angles."""
        both = (x[..., : SIZE // 2] + 1j * x[..., SIZE // 2 :]) * np.exp(1j * angles)
        return np.concatenate((both.real, both.imag), -1)

    x = w["table"][text]
    for i in range(LAYERS):
        here = {name.removeprefix(f"layers.{i}."): value for name, value in w.items()}
        y = norm(x, here["norm1.gamma"])
        query, key, value = (heads(y @ here[f"attention.w{name}"]) for name in "qkv")
        scores = turned(query) @ turned(key).swapaxes(-1, -2) / np.sqrt(SIZE)
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
        mixed = np.exp(log_softmax(scores)) @ value
        x = x + mixed.transpose(0, 2, 1, 3).reshape(rows, length, WIDTH) @ here["attention.wo"]
        y = norm(x, here["norm2.gamma"])
        gate = y @ here["feed_forward.w1"]
        x = x + (gate / (1 + np.exp(-gate)) * (y @ here["feed_forward.w3"])) @ here["feed_forward.w2"]
    return norm(x, w["norm.gamma"]) @ w["table"].T


def prompt() -> np.ndarray:
    return np.random.default_rng(1).integers(1, VOCABULARY, (BATCH, LENGTH))


def test_greedy_tokens_are_the_likeliest(weights: dict[str, np.ndarray], greedy: np.ndarray) -> None:
    """Behind every token, of a decoder that sees the whole text at once."""
    logits = decoded(weights, np.concatenate((prompt(), greedy), 1))
    np.testing.assert_array_equal(greedy, logits[:, LENGTH - 1 : -1].argmax(-1))


def test_beams_are_the_likeliest_texts(weights: dict[str, np.ndarray], beams: np.ndarray) -> None:
    assert (beams == BEAMS[-1]).any()
    end, count, most = BEAMS[-1], BEAMS[1], beams.shape[1]
    for row, found in zip(prompt(), beams, strict=True):
        texts, scores = row[None], np.zeros(1)
        for _ in range(most):
            steps = log_softmax(decoded(weights, texts)[:, -1])
            ended = (texts[:, LENGTH:] == end).any(1)
            steps[ended] = np.where(np.arange(VOCABULARY) == end, 0, -np.inf)
            totals = (scores[:, None] + steps).ravel()
            best = np.argsort(-totals)[:count]
            texts = np.concatenate((texts[best // VOCABULARY], best[:, None] % VOCABULARY), 1)
            scores = totals[best]
        np.testing.assert_array_equal(found, texts[0, LENGTH:])
