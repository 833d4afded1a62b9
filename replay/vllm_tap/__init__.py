"""Taps inside vLLM's workers: a plugin that observes layers, its files, and what reads them."""
