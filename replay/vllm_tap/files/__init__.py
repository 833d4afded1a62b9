"""The files of a tapped rank, as the worker writes and rip reads them."""
