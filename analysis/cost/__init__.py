"""The cost model: machine rates, time per node, and overlap of the streams of a step."""
