"""Engines in processes of their own compute with one thread, as the tests' own do."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
