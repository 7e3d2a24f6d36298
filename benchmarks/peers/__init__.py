"""Other engines, measured beside this one: the same prompts, weights, lengths and cores, in turns."""
