"""Acceptance plans: cells that are run, compared and judged."""
