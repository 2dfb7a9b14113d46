"""The data set engine: nodes that pass blocks of rows on, with workers that prefetch."""
