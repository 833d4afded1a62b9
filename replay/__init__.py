"""Executing an envelope on an engine and recording what it did as a trace."""
