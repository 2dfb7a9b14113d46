"""Proof of whole plans: every rank's program is run at small sizes beside one device."""
