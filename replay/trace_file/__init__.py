"""Writing the trace: one whole Parquet file, by one writer."""
