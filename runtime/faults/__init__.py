"""Ranks may die, hang or compute a NaN: here is who notices it, and what the messages say."""
