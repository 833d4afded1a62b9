"""`rip.tap`: traces of PyTorch programs that run their own loop."""
