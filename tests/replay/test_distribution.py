"""The top-K is exact and ordered the same everywhere; log-sum-exp and hash are over the whole vocabulary."""

import numpy as np
import pytest
import torch
from fakes.plain_hooks import reference_hash
from hypothesis import given
from hypothesis import strategies as st
from rip.replay.row_summaries.token_distribution import top_k_of_rows

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def plain_top_k(values, k):
    """By sorting everything: NaN first, then by logit descending, then by id."""
    ids = sorted(
        range(len(values)), key=lambda i: (not np.isnan(values[i]), -np.nan_to_num(values[i], nan=0.0), i)
    )
    return ids[:k]


# Few different values, so that ties are the rule.
logit_rows = st.lists(
    st.sampled_from([-2.0, -0.0, 0.0, 0.5, 1.0, 3.0, float("inf"), float("-inf"), float("nan")]),
    min_size=1,
    max_size=40,
)


@given(logit_rows, st.integers(1, 45), st.sampled_from(DTYPES))
def test_top_k_is_what_sorting_everything_gives(values, k, dtype):
    logits = torch.tensor([values], dtype=dtype)
    found = top_k_of_rows(logits, k)[0]
    assert found.ids.tolist() == plain_top_k(values, k)
    np.testing.assert_array_equal(found.logits, np.array(values, np.float32)[found.ids])
    assert len(found.ids) == len(found.logprobs) == min(k, len(values))


@given(logit_rows, st.sampled_from(DTYPES))
def test_the_first_id_is_the_greedy_choice(values, dtype):
    logits = torch.tensor(values, dtype=dtype)
    assert top_k_of_rows(logits[None], 3)[0].ids[0] == int(torch.argmax(logits))


def test_ties_at_the_border_of_k_keep_the_lowest_ids():
    logits = torch.zeros(1, 1000)
    logits[0, 700] = 1.0
    assert top_k_of_rows(logits, 4)[0].ids.tolist() == [700, 0, 1, 2]


@pytest.mark.parametrize("dtype", DTYPES)
def test_logsumexp_and_logprobs_are_those_of_float64(dtype):
    logits = torch.randn(5, 3000, generator=torch.Generator().manual_seed(0)).mul(8).to(dtype)
    values = logits.double().numpy()
    expected = np.log(np.exp(values - values.max(1, keepdims=True)).sum(1)) + values.max(1)
    for row, found in enumerate(top_k_of_rows(logits, 7)):
        assert found.logsumexp == pytest.approx(expected[row], abs=1e-12)
        np.testing.assert_allclose(found.logprobs, values[row, found.ids] - expected[row], rtol=1e-6)
        assert np.exp(found.logprobs.astype(float)).sum() < 1


def test_large_logits_do_not_overflow():
    found = top_k_of_rows(torch.tensor([[3e38, 3e38, -3e38]]), 2)[0]
    assert found.logsumexp == pytest.approx(3e38)
    assert found.ids.tolist() == [0, 1]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("values", "logsumexp"),
    [
        ([1.0, float("nan"), 2.0], float("nan")),
        ([float("nan")] * 3, float("nan")),
        ([1.0, float("inf"), 2.0], float("inf")),
        ([float("-inf")] * 3, float("-inf")),
    ],
)
def test_where_logits_are_not_finite_neither_are_the_numbers_and_nobody_is_warned(values, logsumexp):
    found = top_k_of_rows(torch.tensor([values]), 2)[0]
    assert found.logsumexp == pytest.approx(logsumexp, nan_ok=True)
    assert not np.isfinite(found.logprobs).all()


def test_masked_logits_have_no_weight():
    found = top_k_of_rows(torch.tensor([[0.0, float("-inf"), 0.0]]), 3)[0]
    assert found.logsumexp == pytest.approx(np.log(2))
    assert found.ids.tolist() == [0, 2, 1]
    assert found.logprobs[2] == -np.inf


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_hash_is_the_row_hash_of_the_raw_logits(dtype):
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert [found.logits_hash for found in top_k_of_rows(logits, 1)] == [
        reference_hash(row) for row in logits
    ]


def test_a_row_does_not_depend_on_its_batch_its_strides_or_the_threads():
    logits = torch.randn(9, 70_000, generator=torch.Generator().manual_seed(2))
    alone = [str(top_k_of_rows(row[None], 5)[0]) for row in logits]
    transposed = logits.t().contiguous().t()
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for given_logits in (logits, transposed):
                assert [str(found) for found in top_k_of_rows(given_logits, 5)] == alone
    finally:
        torch.set_num_threads(threads)
