"""Measures modes side by side: prompts, cases, turns, records, figures and reports."""
