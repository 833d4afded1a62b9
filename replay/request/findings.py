"""Findings of a replay: what a reader of the trace should know, said once for all requests it is about."""

from __future__ import annotations


class Findings:
    """Gathers sentences, each about one request or about the whole run."""

    def __init__(self) -> None:
        self._about: dict[str, list[str]] = {}

    def add(self, sentence: str, request_id: str | None = None) -> None:
        """Note a sentence. Without a request id it is about the whole run."""
        self._about.setdefault(sentence, []).extend([] if request_id is None else [request_id])

    def sentences(self) -> list[str]:
        """Every sentence once, with the requests it is about: `req-1 and 7 more: …`."""
        return [f"{_requests(ids)}{sentence}" for sentence, ids in self._about.items()]


def _requests(ids: list[str]) -> str:
    if not ids:
        return ""
    return f"{ids[0]}: " if len(ids) == 1 else f"{ids[0]} and {len(ids) - 1} more: "
