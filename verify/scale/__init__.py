"""Whole plans are proved at small sizes: every rank's own program is run, all of them at once, beside one device."""
