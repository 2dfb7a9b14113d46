"""One model of time: the rates of a machine, how long a node takes by them, and how the streams of a step overlap."""
