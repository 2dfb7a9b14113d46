"""Schedules say in which order the stages of a pipeline work on micro-batches. Each has a file, and is data."""
