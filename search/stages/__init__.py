"""The search chooses stages here: how many, the borders between them, their schedule, and their micro-batches."""
