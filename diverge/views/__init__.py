"""The SQL views over a result folder or a trace, and the statements that run over them."""
