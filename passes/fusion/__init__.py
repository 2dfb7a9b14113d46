"""Several operators into one that passes over memory once."""
