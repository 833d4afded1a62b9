"""A model's files: finding them, hashing them and their tensors, its config, tokenizer and template."""
