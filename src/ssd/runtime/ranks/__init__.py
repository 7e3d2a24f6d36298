"""A model over several processes, each with a share of its weights: one leads, the others follow."""
