"""The options of one replay, checked before a model is loaded: requests, sites, positions, ops to record."""
