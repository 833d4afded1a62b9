"""Rules for the request contract: weights, configuration, tokenizer, template, sampling."""

from __future__ import annotations

from . import sources
from .advice import DECODE, INPUT, PRECISION, PREFILL, SAMPLING, WEIGHTS
from .base import BY_CONSTRUCTION, Rule, harmless, numeric, semantic, token
from .conditions import ONE_SIDE_UNREAD, SAME_RENDERING, SAME_TENSORS

_RESHARDED = "different files with the same tensors: resharded, renamed or written anew"
_ALIKE = "the text differs, but every probe conversation renders alike; only ones unlike them could differ"

RULES: tuple[Rule, ...] = (
    # The weights.
    harmless("model.sha256", _RESHARDED, when=SAME_TENSORS),
    harmless("model.files", _RESHARDED, when=SAME_TENSORS),
    Rule(
        "model.weights_metadata_sha256",
        "the tensors are the same; of what stands beside them only a quantizer's layout is computed with",
        BY_CONSTRUCTION,
        PREFILL,
        SAME_TENSORS,
    ),
    harmless("model.weights_checksum", "never requested, because the same route can overwrite live weights"),
    semantic(
        "model.contradicted_claims",
        "a file is not what its name in the cache says: it was written over or damaged",
        BY_CONSTRUCTION,
        WEIGHTS,
    ),
    semantic(
        "model.tensor_dtypes",
        "the weights of one side could not be split into tensors: damaged, cut off, or pickled",
        BY_CONSTRUCTION,
        WEIGHTS,
        ONE_SIDE_UNREAD,
    ),
    numeric("model.tensor_dtypes", "tensors are stored in a different precision", BY_CONSTRUCTION, PRECISION),
    semantic(
        "model.code", "code beside the weights is part of what the model computes", BY_CONSTRUCTION, DECODE
    ),
    semantic(
        "model.adapters",
        "an adapter adds to every product it targets; one beside the weights is loaded automatically",
        BY_CONSTRUCTION,
        WEIGHTS,
    ),
    semantic(
        "model.generation_config*",
        "engines take silent sampling defaults from it",
        sources.VLLM_SERVER,
        SAMPLING,
    ),
    semantic(
        "model.quantization*",
        "different weights and different kernels compute every product",
        BY_CONSTRUCTION,
        WEIGHTS,
    ),
    numeric(
        "model.dtype",
        "a different dtype rounds every operation differently",
        sources.TORCH_ACCURACY,
        PRECISION,
    ),
    semantic(
        "model.context_length",
        "long prompts are cut elsewhere, and positions may be scaled differently",
        BY_CONSTRUCTION,
        INPUT,
    ),
    semantic("model.*", "a different model, or a different configuration of it", BY_CONSTRUCTION, WEIGHTS),
    # What turns messages into token ids.
    semantic("tokenizer.special_tokens", "prompts begin, and answers end, elsewhere", BY_CONSTRUCTION, INPUT),
    semantic("tokenizer.*", "the same text becomes different token ids", BY_CONSTRUCTION, INPUT),
    Rule("template.sha256", _ALIKE, BY_CONSTRUCTION, INPUT, SAME_RENDERING),
    Rule("template.named", _ALIKE, BY_CONSTRUCTION, INPUT, SAME_RENDERING),
    semantic("template.*", "the same messages become a different prompt", BY_CONSTRUCTION, INPUT),
    # What turns logits into tokens.
    token(
        "sampling.contract_version",
        "the same logits, fields and seed may choose a different token",
        BY_CONSTRUCTION,
        SAMPLING,
    ),
    token(
        "sampling.model_defaults",
        "fields that a request does not set get different values",
        sources.VLLM_SERVER,
        SAMPLING,
    ),
    numeric(
        "sampling.logprobs_mode",
        "logprobs are taken before or after the sampler's processing: they are different numbers",
        BY_CONSTRUCTION,
        SAMPLING,
    ),
    token(
        "sampling.seed*",
        "a different seed, or a different scope of it, draws different numbers",
        sources.VLLM,
        SAMPLING,
    ),
    token("sampling.*", "the same logits and seed may choose a different token", BY_CONSTRUCTION, SAMPLING),
)
