"""The result folder of a comparison: its tables, and how it is written whole or not at all."""
