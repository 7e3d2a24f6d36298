"""A machine that is met for the first time: whether what runs there is right, and about how fast it is."""
