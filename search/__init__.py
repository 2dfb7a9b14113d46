"""Plans say how a network may be sharded. This package sets them side by side, and has the rates of the machine."""
