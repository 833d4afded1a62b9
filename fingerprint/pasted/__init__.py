"""Text that people paste: which lines of it state a fact, by one table of readers."""
