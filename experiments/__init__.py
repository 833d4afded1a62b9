"""What runs and compares more than once: lanes, narrow, batch invariance, zoom's re-run."""
