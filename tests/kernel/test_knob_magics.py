"""Knobs, pause and figures from a notebook: ``%sgl set``, ``pause``, ``step``, ``resume``, ``status``."""

from __future__ import annotations

from collections.abc import Callable

from kernel_rig import Kernel


def test_knobs_and_figures_of_a_running_engine(make_kernel: Callable[..., Kernel]) -> None:
    kernel = make_kernel()
    kernel.ok("%load_ext sgnb")
    kernel.ok("%sgl launch --runner stub --objective throughput --decode-quantum 7")
    try:
        listed = kernel.ok("%sgl set").stdout
        assert "* decode_quantum" in listed and "chunked_prefill_size       2048 tokens" in listed
        assert kernel.ok("%sgl set schedule_policy fcfs").stdout == "Set schedule_policy fcfs.\n"
        said = kernel.ok("%sgl set objective=balanced chunked_prefill_size=64").stdout
        assert said == "Set objective balanced, chunked_prefill_size 64.\n"
        listed = kernel.ok("%sgl set").stdout
        assert "* chunked_prefill_size" in listed and "  schedule_policy            lpm" in listed
        for line, words in (
            ("%sgl set page_size 2", "page_size is fixed at start"),
            ("%sgl set chunked_prefill_size 0", "at least 1, or -1 (no chunking)"),
            ("%sgl set nonsense 1", "there is no knob"),
        ):
            assert words in kernel.run(line).error
        assert "Paused after step" in kernel.ok("%sgl pause").stdout
        assert "Taking 2 steps" in kernel.ok("%sgl step 2").stdout
        assert "Resumed." in kernel.ok("%sgl resume").stdout
        kernel.ok("%%sgl\nf = s.fork(2)\nf += gen('x', max_tokens=2)\nf.join()")
        status = kernel.ok("%sgl status").stdout
        for name in ("num_running_reqs", "new_token_ratio", "instruction_queue_length", "join_rate"):
            assert name in status
        assert float(kernel.value("__import__('sgnb').get_default_backend().stats()['join_rate']")) > 0
    finally:
        kernel.ok("%sgl stop --yes")
