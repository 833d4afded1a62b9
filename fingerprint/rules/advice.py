"""What to replay for each kind of change, in rip's own commands. `BASE` is the trace of the base side."""

from __future__ import annotations

DECODE = (
    "on both sides `rip replay SET.jsonl --model MODEL --mode golden-decode --golden BASE.parquet`, then "
    "`rip diverge`: forced tokens keep every step comparable"
)
PREFILL = (
    "on both sides `rip replay SET.jsonl --model MODEL --mode golden-prefill --golden BASE.parquet`: prompt "
    "and recorded tokens in one pass; then golden-decode, which sees what only decoding does"
)
BATCH = (
    "on both sides the request alone and among others (`rip replay REQUEST.json --neighbours 7`, or "
    "the set with `--set batch_size=8`), then `rip diverge` alone against batched"
)
REPEAT = (
    "`rip replay SET.jsonl --repeat 5` on this side first: does it still repeat itself? Then golden-decode "
    "on both sides"
)
RESTART = (
    "`rip replay SET.jsonl` twice, in two fresh processes: what was measured anew may have been chosen anew; "
    "then golden-decode on both sides"
)
CACHE = (
    "the request in a fresh process, so that no cache is warm, against the recorded run; "
    "`--set prefill_chunk=64` shows what a different shape of the prefill does to it"
)
INPUT = (
    "`rip envelope check SET.jsonl --model MODEL` says whether the recorded requests still fit; if they do "
    "not, record the base again: the old claim is about different inputs"
)
WEIGHTS = (
    "nothing carries over from the old weights: record the base again, then `--mode golden-prefill` with the "
    "old tokens shows how far the distributions moved"
)
PRECISION = (
    "golden-decode on both sides, then `rip diverge OLD.parquet NEW.parquet --require numeric --tolerance T` "
    "with the drift that you accept"
)
SAMPLING = (
    "`rip replay SET.jsonl --mode golden-decode` first: equal logits leave only the sampler; then free, with "
    "the recorded seed"
)
THREADS = (
    "`rip replay SET.jsonl --set threads=N` with the base's N: do the rows agree again? Then golden-decode"
)
NOTHING = "nothing, unless another change asks for it"
AGAIN = "nothing yet: run `rip fingerprint` again on the side that could not be read"
