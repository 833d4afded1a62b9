"""What reads a tap folder, in rip's own process: one table of sites and rows from all ranks."""
