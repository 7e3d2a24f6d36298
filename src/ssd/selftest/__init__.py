"""Self-test for a new machine: checks results of kernels and modes, and measures speed."""
