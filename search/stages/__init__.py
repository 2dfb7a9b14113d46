"""The search for pipeline stages: their number, boundaries, schedule and micro-batches."""
