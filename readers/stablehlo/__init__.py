"""Reader of StableHLO programs, as JAX writes them: text as data, without JAX, and without running anything."""
