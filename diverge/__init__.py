"""Comparing two traces: alignment, first divergence, causes, tables and the report."""
