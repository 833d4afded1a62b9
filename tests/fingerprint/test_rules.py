"""Rules: every variable has one, special rows win, and conditions look at values and surroundings."""

from __future__ import annotations

from fnmatch import fnmatchcase
from urllib.parse import urlsplit

import pytest
from rip.fingerprint.drift import drift
from rip.fingerprint.fields.known_names import VARIABLES
from rip.fingerprint.rules import RULES, rules_of
from rip.fingerprint.rules.conditions import DEFAULTS
from rip.schemas.change import Change
from rip.schemas.fingerprint import NO_TIME, NOT_SET, Fact, Fingerprint, Section, fact, unavailable

UNSET = unavailable(NOT_SET, "environment")


def changed(
    place: str,
    before: object,
    after: object,
    base: dict[str, object] | None = None,
    now: dict[str, object] | None = None,
) -> Change:
    """The change of one field, with other fields (`section.field` → value) beside it on each side."""
    sides = []
    for value, others in ((before, base or {}), (after, now if now is not None else base or {})):
        sections: dict[str, dict[str, Fact]] = {}
        for name, each in {**others, place: value}.items():
            section, _, field = name.partition(".")
            sections.setdefault(section, {})[field] = each if isinstance(each, Fact) else fact(each, "s")
        built = {name: Section(facts=facts) for name, facts in sections.items()}
        sides.append(Fingerprint.build("0.1.0", "2026-07-14T09:30:00+00:00", built))
    return next(change for change in drift(*sides) if change.name == place)


def test_no_rule_is_hidden_behind_a_more_general_one() -> None:
    for place, rule in enumerate(RULES):
        hiding = [
            earlier.pattern
            for earlier in RULES[:place]
            if earlier.when is None and fnmatchcase(rule.pattern, earlier.pattern)
        ]
        assert hiding == [], rule.pattern


def test_every_variable_has_a_rule_of_its_own_family() -> None:
    for name in (name for family in VARIABLES.values() for name in family):
        rules = rules_of("determinism", name)
        assert rules, name
        assert rules[-1].pattern != "determinism.*", name


def test_every_rule_says_why_who_and_what_to_replay() -> None:
    for rule in RULES:
        assert rule.why, rule.pattern
        assert rule.sources, rule.pattern
        assert rule.replay, rule.pattern
        assert all(urlsplit(url).scheme == "https" for url in rule.urls), rule.pattern


def test_a_default_is_stated_only_for_variables_that_are_read() -> None:
    assert not set(DEFAULTS) - {name for family in VARIABLES.values() for name in family}


@pytest.mark.parametrize(
    ("name", "before", "after", "risk"),
    [
        ("VLLM_BATCH_INVARIANT", UNSET, "0", None),
        ("VLLM_BATCH_INVARIANT", "0", UNSET, None),
        ("VLLM_BATCH_INVARIANT", UNSET, "1", "bitwise"),
        ("TORCHINDUCTOR_SPLIT_REDUCTIONS", UNSET, "1", None),
        ("TORCHINDUCTOR_SPLIT_REDUCTIONS", UNSET, "0", "bitwise"),
        ("TORCHINDUCTOR_SPLIT_REDUCTIONS", UNSET, "true", "bitwise"),  # Inductor asks for exactly 1
        ("VLLM_FLOAT32_MATMUL_PRECISION", UNSET, "HIGHEST", None),
        ("VLLM_FLOAT32_MATMUL_PRECISION", UNSET, "high", "numeric"),
        ("NVIDIA_TF32_OVERRIDE", UNSET, "0", "numeric"),  # unset means: as the program asks
        ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "0", "1", "numeric"),
        ("OMP_NUM_THREADS", UNSET, "1", "bitwise"),
        ("PYTORCH_TUNABLEOP_ENABLED", UNSET, "0", None),
        ("PYTORCH_TUNABLEOP_ENABLED", UNSET, "1", "bitwise"),
        ("HCCL_DETERMINISTIC", UNSET, "False", None),
        ("HCCL_DETERMINISTIC", "strict", "true", "bitwise"),
        ("LCCL_DETERMINISTIC", UNSET, "1", "bitwise"),
        ("VLLM_ROCM_USE_AITER", UNSET, "0", "bitwise"),  # images of ROCm have another default
        ("VLLM_USE_V2_MODEL_RUNNER", UNSET, "1", "bitwise"),
        ("NCCL_ALGO", "Ring", "Tree", "bitwise"),
        ("VLLM_BATCH_INVARIANT", unavailable("not read", "s"), "0", "bitwise"),
    ],
)
def test_a_variable_set_to_its_default_is_no_risk(
    name: str, before: object, after: object, risk: str | None
) -> None:
    assert changed(f"determinism.{name}", before, after).risk == risk


def test_of_nccl_algo_no_value_is_called_good() -> None:
    why = changed("determinism.NCCL_ALGO", UNSET, "Ring").rule
    assert "No one value suits all" in why
    for told in ("Ring", "Tree", "^NVLS"):
        assert told in why


@pytest.mark.parametrize(
    ("base", "now", "risk"),
    [
        ({"parallelism.tensor_parallel_size": 1}, None, None),
        ({"parallelism.tensor_parallel_size": 2}, None, "bitwise"),
        ({"parallelism.tensor_parallel_size": 1}, {"parallelism.tensor_parallel_size": 2}, "bitwise"),
        (
            {"parallelism.tensor_parallel_size": 1, "parallelism.pipeline_parallel_size": 2},
            None,
            "bitwise",
        ),
        ({"gpus.count": 1}, None, None),
        ({"gpus.count": 8}, None, "bitwise"),
        ({}, None, "bitwise"),
    ],
)
@pytest.mark.parametrize(
    ("place", "before", "after"),
    [("libraries.nccl", "2.28.3", "2.30.4"), ("determinism.NCCL_PROTO", UNSET, "Simple")],
)
def test_collectives_matter_where_several_gpus_work_on_a_request(
    place: str,
    before: object,
    after: object,
    base: dict[str, object],
    now: dict[str, object] | None,
    risk: str | None,
) -> None:
    assert changed(place, before, after, base, now).risk == risk


def test_versions_of_cublas_say_what_kind_of_change_it_is() -> None:
    patch = changed("libraries.cublas", "12.8.3.14", "12.8.4.1").rule
    minor = changed("libraries.cublas", "12.8.4.1", "12.9.1.4").rule
    build = changed("libraries.cublas_build_id", "a1", "b2", {"libraries.cublas": "12.8.4.1"}).rule
    other = changed(
        "libraries.cublas_build_id", "a1", "b2", {"libraries.cublas": "12.8"}, {"libraries.cublas": "12.9"}
    ).rule
    assert len({patch, minor, build}) == 3
    assert other == minor
    assert "patch level" in patch
    assert "a different build" in build
    assert all("cuBLAS, Results reproducibility" in rule for rule in (patch, minor, build))


def test_of_several_copies_the_loaded_one_counts() -> None:
    loaded, idle = {"build_id": "a1", "loaded": True}, {"build_id": "b2", "loaded": False}
    place = "libraries.cudnn_copies"
    assert changed(place, {"torch": loaded}, {"torch": loaded, "system": idle}).risk is None
    swapped = {"torch": {**loaded, "loaded": False}, "system": {**idle, "loaded": True}}
    assert changed(place, {"torch": loaded, "system": idle}, swapped).risk == "bitwise"


def test_a_package_from_another_place_with_the_same_files_is_no_risk() -> None:
    files = {"version": "0.7.1", "record_sha256": "ab" * 32}
    moved = changed("kernels.flashinfer-python", files, {**files, "direct_url": "https://example.org/x.whl"})
    rebuilt = changed("kernels.flashinfer-python", files, {**files, "record_sha256": "cd" * 32})
    assert moved.risk is None
    assert moved.has_rule
    assert rebuilt.risk == "bitwise"


def test_resharding_is_no_risk_and_other_tensors_are() -> None:
    tensors = {"model.tensors_root": "ab" * 32}
    assert changed("model.sha256", "1" * 64, "2" * 64, tensors).risk is None
    assert (
        changed("model.sha256", "1" * 64, "2" * 64, tensors, {"model.tensors_root": "cd" * 32}).risk
        == "semantic"
    )
    assert changed("model.sha256", "1" * 64, "2" * 64).risk == "semantic"


def test_of_an_autotune_cache_the_winners_count() -> None:
    cache = {"files": 10, "choices_sha256": "ab" * 32}
    assert changed("kernels.triton_cache", cache, {**cache, "files": 12}).risk is None
    assert changed("kernels.triton_cache", cache, {**cache, "choices_sha256": "cd" * 32}).risk == "bitwise"


def test_a_template_that_renders_alike_is_told_from_one_that_does_not() -> None:
    rendered = {"template.rendered_sha256": "ab" * 32}
    assert changed("template.sha256", "1" * 64, "2" * 64, rendered).risk is None
    assert changed("template.sha256", "1" * 64, "2" * 64).risk == "semantic"
    assert changed("template.rendered_sha256", "1" * 64, "2" * 64).risk == "semantic"


@pytest.mark.parametrize(
    ("before", "after", "risk"),
    [
        ("auto", "fp8", "token"),
        ("fp8_e5m2", "fp8_e4m3", "token"),
        ("bfloat16", "float16", "numeric"),
        ("f16", "q8_0", "token"),
    ],
)
def test_quantized_keys_and_values_may_change_tokens(before: str, after: str, risk: str) -> None:
    assert changed("engine.kv_cache_dtype", before, after).risk == risk


def test_another_compute_capability_is_said_to_be_one() -> None:
    other = changed("gpus.name_and_compute_capability", "NVIDIA A100-SXM4-80GB 8.0", "NVIDIA H200 9.0").rule
    same = changed("gpus.name_and_compute_capability", "NVIDIA H100 80GB HBM3 9.0", "NVIDIA H200 9.0").rule
    assert "a different architecture" in other
    assert "a different architecture" not in same


def test_rows_are_listed_up_to_the_first_that_always_applies() -> None:
    listed = rules_of("libraries", "nccl")
    assert [rule.when is None for rule in listed] == [False, True]


def _of(section: str, field: str, value: object, **beside: str) -> Fingerprint:
    sections = {section: {field: fact(value, "here")}}
    for name, text in beside.items():
        sections.setdefault("engine", {})[name] = fact(text, "here")
    return Fingerprint.build(
        "0.1.0", NO_TIME, {name: Section(facts=facts) for name, facts in sections.items()}
    )


@pytest.mark.parametrize(
    ("section", "field", "before", "after", "risk"),
    [
        ("frameworks", "transformers", {"version": "4.57.6"}, {"version": "5.0.0"}, "token"),
        ("frameworks", "transformers", {"version": "5.2.0"}, {"version": "4.41.2"}, "token"),
        ("frameworks", "transformers", {"version": "4.41.2"}, {"version": "4.57.6"}, "bitwise"),
        ("frameworks", "transformers", {"version": "5.1.0"}, {"version": "5.2.0"}, "bitwise"),
        ("engine", "version", "0.7.3", "0.8.0", "token"),
        ("engine", "version", "0.8.0", "0.19.0", "bitwise"),
        ("kernels", "vllm", {"version": "0.6.3.post1"}, {"version": "0.19.0"}, "token"),
    ],
)
def test_a_release_that_is_known_to_change_tokens_is_a_rule_at_that_level(
    section: str, field: str, before: object, after: object, risk: str
) -> None:
    sides = [_of(section, field, value, name="vllm") for value in (before, after)]
    assert [change.risk for change in drift(*sides)] == [risk]


@pytest.mark.parametrize(("engine", "risk"), [("hf", None), ("vllm", "bitwise")])
def test_a_cache_of_compiled_kernels_counts_where_the_engine_compiles(engine: str, risk: str | None) -> None:
    sides = [_of("kernels", "inductor_cache", {"files": count}, name=engine) for count in (1, 2)]
    [change] = drift(*sides)
    assert (change.risk, change.has_rule) == (risk, True)


@pytest.mark.parametrize(
    ("place", "before", "after", "risk", "who"),
    [
        ("engine.cascade_attention", False, True, "bitwise", "vLLM, Engine arguments"),
        ("engine.cuda_graph_sizes", [1, 2, 4], [1, 2, 4, 8], "bitwise", "vLLM issue 28131"),
        ("engine.moe_backend", "triton", "flashinfer_cutlass", "bitwise", "vLLM pull request 54948"),
        ("engine.calculated_kv_scales", False, True, "token", "vLLM pull request 11906"),
        ("parallelism.data_parallel_attention", False, True, "numeric", "SGLang pull request 35766"),
        ("parallelism.redundant_experts", 0, 32, "bitwise", "vLLM pull request 45683"),
        ("sampling.max_logprobs", 5, 20, "numeric", "vLLM issue 44319"),
        ("libraries.cann", "8.1.RC1", "8.2.RC1", "bitwise", "by construction"),
    ],
)
def test_what_engines_were_seen_to_change_is_a_rule_with_its_source(
    place: str, before: object, after: object, risk: str, who: str
) -> None:
    change = changed(place, before, after)
    assert change.risk == risk
    assert who in change.rule


@pytest.mark.parametrize(("engine", "vllm_says_so"), [("vllm", True), ("ollama", False), ("sglang", False)])
def test_what_vllm_promises_is_no_source_for_other_engines(engine: str, vllm_says_so: bool) -> None:
    change = changed("engine.version", "0.9.1", "0.9.2", {"engine.name": engine})
    assert change.risk == "bitwise"
    assert ("vLLM" in change.rule) == vllm_says_so
