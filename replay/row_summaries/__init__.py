"""What is kept of a row: row hash, sketch, L2 and absmax; the reference and the kernels that equal it."""
