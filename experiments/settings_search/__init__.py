"""The parts of `rip narrow`: two lanes, mixtures of them, their runs, the search, and its sentences."""
