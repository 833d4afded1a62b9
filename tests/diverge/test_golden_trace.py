"""The trace of the first released format is readable for ever, with the values it was written with."""

from pathlib import Path

from rip.diverge.compare import diverge
from rip.diverge.reading.load import read_header
from rip.diverge.views.open_views import open_views

GOLDEN = Path(__file__).parents[1] / "golden" / "trace-v1.parquet"


def test_the_header_of_a_version_1_trace_is_read() -> None:
    header = read_header(GOLDEN)
    assert [site.label() for site in header.sites][:2] == [
        "layers.0.self_attn.q_proj",
        "layers.0.self_attn.k_proj",
    ]
    assert header.requests[0].sampling["max_tokens"].resolved == 3
    assert header.observer.state == "equal"


def test_its_rows_are_what_they_were() -> None:
    with open_views(GOLDEN) as views:
        tokens = views.connection.execute("SELECT token_id FROM tokens ORDER BY position").fetchall()
        first = views.connection.execute("SELECT hash FROM sites WHERE position = 0 AND site = 0").fetchall()
    assert [token for (token,) in tokens] == [5, 9, 2, 7, 88, 56, 15]
    assert first == [("e370e982bb533227f60db15c52b58c8d",)]


def test_it_equals_itself_bit_for_bit(tmp_path: Path) -> None:
    verdict = diverge(GOLDEN, GOLDEN, tmp_path / "result")
    assert verdict.level == "bitwise"
    assert verdict.compared.rows == 6 * 11  # the last token was never fed to the model
