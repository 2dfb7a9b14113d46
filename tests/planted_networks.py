"""Networks that errors are planted for, of `planted_networks.toml`, by name with their numbers of ranks."""

from pathlib import Path

from tests.texts import table_of

_ROWS = table_of(Path(__file__).with_suffix(".toml"), "network")
NETWORKS: dict[str, tuple[str, int]] = {name: (row["text"], row["ranks"]) for name, row in _ROWS.items()}
NETWORK, PARALLEL, FOLDED, RECOMPUTED, LOOPS = (
    NETWORKS[name][0] for name in ("network", "parallel", "folded", "recomputed", "loops")
)
