"""Reading again what a tally does not keep: the rows around a first difference, draws, prompts, ends."""
