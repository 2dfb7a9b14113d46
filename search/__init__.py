"""The search for layouts and plans, and their comparison with usual plans at measured machine rates."""
