"""One model of time: a machine's rates, what nodes take by them, how a step's streams lie beside each other."""
