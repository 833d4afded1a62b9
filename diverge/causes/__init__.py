"""From where two traces part to why: the evidence, the table of causes, the command that confirms each."""
