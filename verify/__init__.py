"""Numeric proof: steps on ranks beside the same steps on one device, and both beside outside judges."""
