"""Rules for the request contract: weights, configuration, tokenizer, template, sampling."""

from __future__ import annotations

from . import advice, sources
from .base import Rule
from .conditions import ONE_SIDE_UNREAD, SAME_RENDERING, SAME_TENSORS
from .sources import BY_CONSTRUCTION

_RESHARDED = "different files with the same tensors: resharded, renamed or written anew"
_ALIKE = "the text differs, but every probe conversation renders alike; only ones unlike them could differ"

RULES: tuple[Rule, ...] = (
    # The weights.
    Rule(
        "model.sha256",
        None,
        _RESHARDED,
        BY_CONSTRUCTION,
        advice.NOTHING,
        SAME_TENSORS,
    ),
    Rule(
        "model.files",
        None,
        _RESHARDED,
        BY_CONSTRUCTION,
        advice.NOTHING,
        SAME_TENSORS,
    ),
    Rule(
        "model.weights_metadata_sha256",
        None,
        "the tensors are the same; of what stands beside them only a quantizer's layout is computed with",
        BY_CONSTRUCTION,
        advice.PREFILL,
        SAME_TENSORS,
    ),
    Rule(
        "model.weights_checksum",
        None,
        "never requested, because the same route can overwrite live weights",
        BY_CONSTRUCTION,
        advice.NOTHING,
    ),
    Rule(
        "model.contradicted_claims",
        "semantic",
        "a file is not what its name in the cache says: it was written over or damaged",
        BY_CONSTRUCTION,
        advice.WEIGHTS,
    ),
    Rule(
        "model.tensor_dtypes",
        "semantic",
        "the weights of one side could not be split into tensors: damaged, cut off, or pickled",
        BY_CONSTRUCTION,
        advice.WEIGHTS,
        ONE_SIDE_UNREAD,
    ),
    Rule(
        "model.tensor_dtypes",
        "numeric",
        "tensors are stored in a different precision",
        BY_CONSTRUCTION,
        advice.PRECISION,
    ),
    Rule(
        "model.code",
        "semantic",
        "code beside the weights is part of what the model computes",
        BY_CONSTRUCTION,
        advice.DECODE,
    ),
    Rule(
        "model.adapters",
        "semantic",
        "an adapter adds to every product it targets; one beside the weights is loaded automatically",
        BY_CONSTRUCTION,
        advice.WEIGHTS,
    ),
    Rule(
        "model.generation_config*",
        "semantic",
        "engines take silent sampling defaults from it",
        sources.VLLM_SERVER,
        advice.SAMPLING,
    ),
    Rule(
        "model.quantization*",
        "semantic",
        "different weights and different kernels compute every product",
        BY_CONSTRUCTION,
        advice.WEIGHTS,
    ),
    Rule(
        "model.dtype",
        "numeric",
        "a different dtype rounds every operation differently",
        sources.TORCH_ACCURACY,
        advice.PRECISION,
    ),
    Rule(
        "model.context_length",
        "semantic",
        "long prompts are cut elsewhere, and positions may be scaled differently",
        BY_CONSTRUCTION,
        advice.INPUT,
    ),
    Rule(
        "model.*",
        "semantic",
        "a different model, or a different configuration of it",
        BY_CONSTRUCTION,
        advice.WEIGHTS,
    ),
    # What turns messages into token ids.
    Rule(
        "tokenizer.special_tokens",
        "semantic",
        "prompts begin, and answers end, elsewhere",
        BY_CONSTRUCTION,
        advice.INPUT,
    ),
    Rule(
        "tokenizer.*", "semantic", "the same text becomes different token ids", BY_CONSTRUCTION, advice.INPUT
    ),
    Rule(
        "template.sha256",
        None,
        _ALIKE,
        BY_CONSTRUCTION,
        advice.INPUT,
        SAME_RENDERING,
    ),
    Rule(
        "template.named",
        None,
        _ALIKE,
        BY_CONSTRUCTION,
        advice.INPUT,
        SAME_RENDERING,
    ),
    Rule(
        "template.*", "semantic", "the same messages become a different prompt", BY_CONSTRUCTION, advice.INPUT
    ),
    # What turns logits into tokens.
    Rule(
        "sampling.contract_version",
        "token",
        "the same logits, fields and seed may choose a different token",
        BY_CONSTRUCTION,
        advice.SAMPLING,
    ),
    Rule(
        "sampling.model_defaults",
        "token",
        "fields that a request does not set get different values",
        sources.VLLM_SERVER,
        advice.SAMPLING,
    ),
    Rule(
        "sampling.logprobs_mode",
        "numeric",
        "logprobs are taken before or after the sampler's processing: they are different numbers",
        BY_CONSTRUCTION,
        advice.SAMPLING,
    ),
    Rule(
        "sampling.seed*",
        "token",
        "a different seed, or a different scope of it, draws different numbers",
        sources.VLLM,
        advice.SAMPLING,
    ),
    Rule(
        "sampling.*",
        "token",
        "the same logits and seed may choose a different token",
        BY_CONSTRUCTION,
        advice.SAMPLING,
    ),
)
