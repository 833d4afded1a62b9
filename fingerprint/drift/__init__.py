"""Two fingerprints to a list of changes, in words and as a report."""
