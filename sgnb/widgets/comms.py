"""Three facts about a kernel's comms that every view and the panel must heed.

Notebook process. *Which shell answers*: ipykernel 7.4 remembers which shell last *sent* on a comm and hands the page's
messages to that one, whatever subshell the page chose. What we send while a cell runs would so put every answer (a Stop
among them) behind that cell: ``answer_on_any_shell`` is called after each send. *Hooks*: a comm's message runs IPython's
hooks ``pre_execute`` and ``post_execute``, on a subshell in the middle of a cell; a plotting library that shows its figures
in such a hook would then show the running cell's figure as an answer to our message, where no page looks for it:
``run_no_hooks`` is called once for each comm of ours. *Closing*: a comm that the manager
does not know any more raises KeyError: ``close_comm``. No other comm code here.
"""

from __future__ import annotations

from typing import Any


def answer_on_any_shell(comm: Any) -> None:
    """Forget which shell sent: the page's next message goes where the page sends it. Harmless elsewhere.

    Called when the comm is there and after each send. To forget alone would leave the time of the send itself, in which a
    Stop would wait for the cell; so the question is answered another way where ipykernel asks one.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = _as_the_page_sends
        getattr(comm, "_reply_subshell_ids", {}).clear()  # one for each question that was answered
    try:
        del comm._reply_subshell_id
    except AttributeError:
        pass  # an ipykernel without that memory, or nothing was sent yet


def _as_the_page_sends(_data: object, subshell: str | None) -> str | None:
    return subshell


def run_no_hooks(comm: Any) -> None:
    """Hand the page's messages to the comm's callback alone. Nothing of ours prints or draws in a hook."""

    def handle_msg(message: Any) -> None:
        if comm._msg_callback:
            comm._msg_callback(message)

    if hasattr(comm, "_msg_callback"):
        comm.handle_msg = handle_msg


def close_comm(comm: Any) -> None:
    """Close it on both sides; one that the page or the comm manager dropped before is fine."""
    try:
        comm.close()
    except KeyError:
        pass  # the page was told; there is nothing left to forget here
