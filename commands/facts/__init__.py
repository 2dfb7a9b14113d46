"""Facts of a compile, read by report, diff, check and view: operators, collectives, memory, times and pipelines."""
