"""Plans: how a network may be sharded, side by side, what the machine's rates are, and the files of both."""
