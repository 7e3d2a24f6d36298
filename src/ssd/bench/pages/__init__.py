"""How a run is shown: plots, a page, a Markdown table."""
