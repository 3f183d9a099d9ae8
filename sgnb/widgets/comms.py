"""A fact about ipykernel's comms that every view and the panel must heed.

Notebook process. ipykernel 7.4 remembers which shell last *sent* on a comm and hands the page's messages to that one,
whatever subshell the page chose. What we send while a cell runs would so put every answer (a Stop among them) behind
that cell. Called after each send. No other comm code here.
"""

from __future__ import annotations

from typing import Any


def answer_on_any_shell(comm: Any) -> None:
    """Forget which shell sent last: the page's next message goes where the page sends it. Harmless elsewhere."""
    try:
        del comm._reply_subshell_id
    except AttributeError:
        pass  # an ipykernel without that memory, or nothing was sent yet
