"""The one place that knows the version, and the name under which pip finds this package."""

__version__ = "0.3.0"
DISTRIBUTION = "ssd-llm"
"""Not `ssd`: that name on PyPI is another project's."""


def how_to_install(extra: str) -> str:
    """What to type for the packages that an optional part needs."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
