"""The parts of the batch-invariance check: its requests, their exact comparison, its sentences."""
