"""NVIDIA GPUs and their driver, asked in a child process that may hang or crash, and other vendors' tools."""
