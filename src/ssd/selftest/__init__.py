"""Self-test for a new machine: compares kernels with torch, and times a draft step."""
