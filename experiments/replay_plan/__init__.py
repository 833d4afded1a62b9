"""What one replay is asked for, checked before a model is loaded: requests, neighbours, sites, positions, ops."""
