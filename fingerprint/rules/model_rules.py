"""Rules for the request contract: weights, configuration, tokenizer, template, sampling."""

from __future__ import annotations

from . import sources
from .advice import DECODE, INPUT, PRECISION, PREFILL, SAMPLING, WEIGHTS
from .base import Rule, harmless, numeric, semantic, token
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
        PREFILL,
        when=SAME_TENSORS,
    ),
    harmless("model.weights_checksum", "never requested, because the same route can overwrite live weights"),
    semantic(
        "model.contradicted_claims",
        "a file is not what its name in the cache says: it was written over or damaged",
        WEIGHTS,
    ),
    semantic(
        "model.contradicted_index",
        "a loader that trusts the index leaves these tensors out, or fills them at random",
        WEIGHTS,
    ),
    semantic(
        "model.tensor_dtypes",
        "the weights of one side could not be split into tensors: damaged, cut off, or pickled",
        WEIGHTS,
        when=ONE_SIDE_UNREAD,
    ),
    numeric("model.tensor_dtypes", "tensors are stored in a different precision", PRECISION),
    semantic("model.code", "code beside the weights is part of what the model computes", DECODE),
    semantic(
        "model.adapters",
        "an adapter adds to every product it targets; one beside the weights is loaded automatically",
        WEIGHTS,
    ),
    semantic(
        "model.generation_config*",
        "engines take silent sampling defaults from it",
        SAMPLING,
        sources.VLLM_SERVER,
    ),
    semantic("model.quantization*", "different weights and different kernels compute every product", WEIGHTS),
    numeric(
        "model.dtype",
        "a different dtype rounds every operation differently",
        PRECISION,
        sources.TORCH_ACCURACY,
    ),
    semantic(
        "model.context_length",
        "long prompts are cut elsewhere, and positions may be scaled differently",
        INPUT,
    ),
    semantic("model.*", "a different model, or a different configuration of it", WEIGHTS),
    # What turns messages into token ids.
    semantic("tokenizer.special_tokens", "prompts begin, and answers end, elsewhere", INPUT),
    semantic("tokenizer.*", "the same text becomes different token ids", INPUT),
    Rule("template.sha256", _ALIKE, INPUT, when=SAME_RENDERING),
    Rule("template.named", _ALIKE, INPUT, when=SAME_RENDERING),
    semantic("template.*", "the same messages become a different prompt", INPUT),
    # What turns logits into tokens.
    token(
        "sampling.contract_version", "the same logits, fields and seed may choose a different token", SAMPLING
    ),
    token(
        "sampling.model_defaults",
        "fields that a request does not set get different values",
        SAMPLING,
        sources.VLLM_SERVER,
    ),
    numeric(
        "sampling.logprobs_mode",
        "logprobs are taken before or after the sampler's processing: they are different numbers",
        SAMPLING,
    ),
    numeric(
        "sampling.max_logprobs",
        "logprobs were seen to change with how many are requested",
        SAMPLING,
        sources.VLLM_LOGPROBS,
    ),
    token(
        "sampling.seed*",
        "a different seed, or a different scope of it, draws different numbers",
        SAMPLING,
        sources.VLLM,
    ),
    token("sampling.*", "the same logits and seed may choose a different token", SAMPLING),
)
