"""The passes here join several operators into one that passes over memory once."""
