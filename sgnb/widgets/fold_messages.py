"""What a page is told of a program fold: the whole picture, what changed since, and the tokens that it asks about.

Notebook process. Made by ``widgets.program`` for its live view and by ``widgets.past`` for one picture; it is the one
reader of its fold's changes, and keeps what of it was sent. The words and numbers of a row are made in
``widgets.fold_data``. No events, no HTML, no comms, no clocks.
"""

from __future__ import annotations

from typing import Any

from sgnb.widgets import fold_data
from sgnb.widgets.fold import ProgramFold
from sgnb.widgets.program_rows import Cost
from sgnb.widgets.prompt_tokens import TextTokens, ends_in_units


class FoldMessages:
    """``snapshot()`` or ``delta()`` of ``fold`` at any time; each marks as sent what it holds. Not thread-safe."""

    def __init__(self, fold: ProgramFold) -> None:
        self.fold = fold
        self._sent_version = -1
        self._sent_pending: list[dict[str, str]] = []

    # ------------------------------------------------------------ the picture and its changes

    def news(self) -> bool:
        """True when something changed since the last ``snapshot`` or ``delta``."""
        return self.fold.version != self._sent_version

    @property
    def owes_numbers(self) -> bool:
        """True when the last ``delta`` left numbers out."""
        return bool(self.fold.changes.grown)

    def snapshot(self) -> dict[str, Any]:
        """Everything, for a view that knows nothing. Marks all as sent."""
        fold, rows = self.fold, []
        for row in fold.rows:
            data = fold_data.row_data(fold, row)
            for shown, segment in zip(data["segs"], row.segments, strict=True):
                shown["text"] = segment.text()
                segment.sent = len(segment.parts)
                if segment.marks:
                    shown["marks"] = list(segment.marks)
                    segment.sent_marks = len(segment.marks)
            rows.append(data)
        fold.changes.clear()
        self._sent_version = fold.version
        self._sent_pending = fold.pending()
        return {
            "k": "snapshot",
            "seq": fold.version,
            "head": fold_data.head(fold),
            "rows": rows,
            "lanes": [fold_data.lane_data(fold, lane) for lane in fold.lanes],
            "pending": self._sent_pending,
        }

    def delta(self, *, numbers: bool = True) -> dict[str, Any]:
        """What changed since the last ``snapshot`` or ``delta``; ``from`` names the version it applies to.

        Without ``numbers`` rows that only got more text come as that text; all else of them is owed.
        """
        fold, changes = self.fold, self.fold.changes
        rows, texts, marks = [], [], []
        if numbers:
            changes.rows |= changes.grown
            changes.lanes.update(fold.rows[index].lane for index in changes.grown)
        for index in sorted(changes.rows | changes.grown):
            row = fold.rows[index]
            if index in changes.rows:
                rows.append([index, fold_data.row_data(fold, row)])
            for number, segment in enumerate(row.segments):
                if segment.sent < len(segment.parts):
                    texts.append([index, number, "".join(segment.parts[segment.sent :])])
                    segment.sent = len(segment.parts)
                if segment.sent_marks < len(segment.marks):
                    marks.append([index, number, segment.marks[segment.sent_marks :]])
                    segment.sent_marks = len(segment.marks)
        lanes = [[n, fold_data.lane_data(fold, fold.lanes[n])] for n in sorted(changes.lanes)]
        base, self._sent_version = self._sent_version, fold.version
        owed = changes.grown - changes.rows
        changes.clear()
        changes.grown = owed
        out = {"k": "delta", "from": base, "seq": fold.version, "head": fold_data.head(fold), "rows": rows}
        out |= {"text": texts, "marks": marks, "lanes": lanes}
        if (pending := fold.pending()) != self._sent_pending:
            out["pending"] = self._sent_pending = pending
        return out

    # ------------------------------------------------------------ tokens that the page asks about

    def token(self, rid: str, place: int) -> dict[str, Any] | None:
        """One token of a generation in numbers, for the inspector; None when its details are not known."""
        if rid not in self.fold.generations or not 0 <= place < len(self.fold.generations[rid][1].tokens):
            return None
        _, segment, cost = self.fold.generations[rid]
        token = segment.tokens[place]
        exact = cost.last_step - cost.first_step + 1 == cost.tokens > 0
        return {
            "id": token.id,
            "logprob": token.logprob,
            "top": list(token.top),
            "allowed": token.allowed,
            "ruled_out": token.ruled_out,
            "forced": token.forced,
            "count": max(cost.tokens, len(segment.tokens)),
            "step": token.step or (cost.first_step + place if exact else -1),
            "rid": cost.shared or rid,
            "position": self._position(cost, place),
            "more": [token.id for token in segment.tokens[: place + 1]],
        }

    def _position(self, cost: Cost, place: int) -> int:
        """Where a token of an output stands behind the prompt's beginning; -1 while that is not known."""
        prompt = self.fold.generations[cost.shared][2].prompt if cost.shared else cost.prompt
        return -1 if prompt is None else prompt + place

    def prompt_token(self, row: int, number: int, place: int) -> dict[str, Any] | None:
        """One token of a prompt text in numbers, for the inspector; None when its prompt is not known."""
        tokens = self.text_tokens(row, number)
        if tokens is None or not 0 <= place < tokens.count:
            return None
        return {
            "rid": tokens.rid,
            "position": tokens.first + place,
            "reused": place < tokens.cached,
            "count": tokens.count,
            "more": [],
        }

    def text_ends(self, row: int, number: int) -> list[int]:
        """Where each token of a prompt text ends, in UTF-16 units of it; none where that is not known."""
        tokens = self.text_tokens(row, number)
        raw = (
            self.fold.rows[row].segments[number].text().encode("utf-8", "replace")
            if tokens is not None
            else b""
        )
        return [] if tokens is None else ends_in_units(raw, tokens.ends)

    def text_tokens(self, row: int, number: int) -> TextTokens | None:
        """The tokens of a prompt text, by its row and its place there."""
        if not 0 <= row < len(self.fold.rows) or not 0 <= number < len(self.fold.rows[row].segments):
            return None
        return self.fold.rows[row].segments[number].prompt
