# The checks. `.ci/run` runs all of this but `test-slow`, in this checkout, and installs what it needs first.
PYTEST = pytest -n 2 --dist loadfile --no-loadscope-reorder -rs

.PHONY: check test test-all test-vllm test-slow

# Format, lint, types, and the site of the docs without a broken link.
check:
	ruff format --check .
	ruff check .
	mypy
	NO_MKDOCS_2_WARNING=1 mkdocs build --quiet --strict --site-dir build/site

# Under two minutes on two cores; needs no models.
test:
	$(PYTEST) -m "not slow and not models and not vllm and not long"

# All but the full-size tests (marker `slow`); real weights where SSD_TEST_MODELS names their folder.
test-all:
	$(PYTEST) -m "not slow and not vllm" --durations=25

# In a venv with vLLM (.ci/install_vllm VENV makes one).
test-vllm:
	pytest -m "vllm and not slow" tests/exact tests/vllm -rs --durations=10

# The full-size tests (marker `slow`), as the weekly workflow runs them.
test-slow:
	pytest -m "slow and not vllm" -rs
