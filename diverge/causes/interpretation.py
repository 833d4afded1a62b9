"""How to read what a confirming command gives, in words: what would confirm the cause, and what refute it."""

PARTING = "it lists the tokens at which the prompts part"
CHANGED = "it lists what changed between the two environments"
NOT_FINITE = "it lists the rows that are not finite, the first of them first"
AS_A = "if the new run equals A, this is the cause; if it differs still, something else is"
REPEATED = (
    "if every repeat differs from A at the same place, B's lane always does so; if they equal A, it does not "
    "come again; if they differ among themselves, B does not repeat itself"
)
UNLIKE = "repeats that differ among themselves confirm it"
CHOSEN = (
    "if every repeat chooses B's tokens again, it is a setting of B (its defaults, its generation config); "
    "if they equal A, it does not come again; if they differ among themselves, it is random state"
)
ENDED = (
    "if it ends at the same token again, the rule is one of B's lane: its defaults or its generation config"
)
STATED = "it repeats B as it was; state A's value in B's envelope, and it equals A if this is the cause"
CACHED = (
    "it has a cache of its own: if it equals A, entries of the recorded run were wrong; if it differs again "
    "at the same place, what writes or reads the cache is"
)
PREFILLED = "if rows computed in one prefill equal A's, decoding alone is at fault"
FORCED = (
    "with A's tokens forced every step can be compared: logits that differ by no more than here confirm it"
)
MEASURED = "the same ratio over all positions, with A's tokens forced, confirms it"
OTHER_SIDE = (
    "the padding moves to the other side: where the first difference moves or changes with it, padding is "
    "part of the cause; a batch of requests of one length has none"
)
