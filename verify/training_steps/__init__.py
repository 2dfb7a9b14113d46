"""The training steps that networks share, as optimizers and ways to scale a loss, are held to an outside judge."""
