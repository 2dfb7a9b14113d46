"""A program of ranks that exchange rows by their places."""

from tests.graphs import FLOAT32, INT32, Builder, Graph, Parameter, TensorType, Value
from tests.operators import Add, FetchRows, SendRows


def fetched_and_sent(ranks: tuple[int, ...], size: int, count: int, width: int) -> Graph:
    """The graph of a rank that fetches rows [count, width] at its places from a table of which each has `size` rows,
    adds them to themselves three times, and sends them back."""
    graph, total = Graph("test"), size * len(ranks)
    graph.attrs = {"ranks": len(ranks), "mode": "semi_auto_parallel"}
    types = {"table": TensorType(FLOAT32, (size, width)), "places": TensorType(INT32, (count,))}
    table, places = graph.parameters = [Parameter(name, type, "input", False) for name, type in types.items()]
    b = Builder(graph)
    value: Value = b.emit(FetchRows(total=total, rank_list=ranks), table, places)
    for _ in range(3):
        value = b.emit(Add(), value, value)
    graph.results = [b.emit(SendRows(size=size, total=total, rank_list=ranks), value, places)]
    return graph
