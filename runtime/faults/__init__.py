"""Faults: detection and messages for ranks that die, hang or compute NaN."""
