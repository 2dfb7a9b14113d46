"""Passes: one file per pass. Each transforms a graph. Shared code is in `lib`."""
