"""Measuring: prompts, cases, engines that take turns, and what their records say."""
