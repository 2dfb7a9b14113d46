"""Training steps that networks share (optimizers, rates, clipping, loss scales ...) beside an outside judge."""
