"""Readers of other programs' training configurations, as data: each makes one description of a training run."""
