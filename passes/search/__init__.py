"""The search for the layouts of a whole graph weighs what operators may choose by what the choices cost together."""
