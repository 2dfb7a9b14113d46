"""Comparison of plans for one network: searched plans, usual plans, and plans within a memory limit."""
