"""From an envelope to what an engine runs: checked, resolved, in batches; golden and expected tokens."""
