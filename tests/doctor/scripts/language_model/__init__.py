"""A language model in several files, as public code lays it out: what the doctor reads."""
