"""Engines: one file (or folder) an engine, behind the protocol in base.py."""
