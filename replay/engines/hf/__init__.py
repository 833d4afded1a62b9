"""Engine `hf`: transformers and torch in this process."""
