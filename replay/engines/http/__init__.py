"""Engines that are called over HTTP: servers by their URL, or started from a lane."""
