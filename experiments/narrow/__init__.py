"""The search of `rip narrow`: which settings turn a divergence on, found by experiment."""
