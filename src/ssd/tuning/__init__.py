"""Finds settings for a target and a draft: measure, search in a performance model, confirm."""
