"""What runs inside a vLLM worker: its sites are found, its modules tapped, its rows written as parts."""
