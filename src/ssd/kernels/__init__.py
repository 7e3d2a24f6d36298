"""Kernels in Triton, each beside a torch form that says what it must give."""
