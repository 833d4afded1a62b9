"""What a comparison finds, as data: evidence, missing evidence, limits, reasons of levels, commands."""
