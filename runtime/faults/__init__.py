"""What happens when ranks die, hang or compute a NaN: who notices it, and what is said."""
