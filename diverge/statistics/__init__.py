"""TODO: say what diverge/statistics holds."""
