"""Pages and defragmentation on a real model: the same greedy tokens as with single slots left where they are."""

import pytest
from tiny_models import FAMILIES, make_tiny

from sgnb.config import EngineArgs
from sgnb.engine import model_store
from sgnb.engine.model_executor.model_runner import create_runner
from sgnb.engine.model_executor.process_driver import ProcessDriver
from sgnb.engine.scheduler.scheduler import Scheduler
from sgnb.messages import BatchOutput, Label, SchedulerControl, SessionDecode, SessionOpen, TokenTable
from sgnb.sampling_params import SamplingParams


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    make_tiny(folder, FAMILIES[0])
    return model_store.resolve(str(folder))


def outputs(model, page: int, moves: bool, **more) -> tuple[dict[str, list[int]], int]:
    """(ids of each request, slots that were moved)."""
    args = EngineArgs.make(
        **more,
        dtype="float32",
        threads=1,
        max_total_tokens=256,
        max_running_requests=8,
        page_size=page,
        chunked_prefill_size=16,
    )
    make = ProcessDriver if args.runner_driver == "process" else create_runner
    runner = make(args, model, lambda *told: None)
    ids: dict[str, list[int]] = {}
    moved = 0

    def send(message):
        nonlocal moved
        if isinstance(message, BatchOutput):
            for item in message.items:
                ids.setdefault(item.rid, []).extend(item.ids)
        else:
            moved += message.data["moved"]

    scheduler = Scheduler(args, runner, send, lambda event: None)
    scheduler.receive(TokenTable(table=[b"x"] * runner.vocab_size))
    params = SamplingParams(max_new_tokens=16, temperature=0.0, ignore_eos=True)
    for n in range(8):
        scheduler.receive(SessionOpen(sid=f"c1.s{n}", client=1))
        scheduler.receive(
            SessionDecode(
                rid=f"c1.r{n}",
                sid=f"c1.s{n}",
                client=1,
                ids=list(range(5, 30)) + [n + 40] * (n + 3),
                params=params,
                stops=[],
                stop_token_ids=[],
                eos_token_ids=[],
                label=Label(),
            )
        )
    steps = 0
    while scheduler.step():
        steps += 1
        if moves and steps % 3 == 0:
            scheduler.receive(SchedulerControl(client=1, id=steps, verb="defragment", args={}))
    scheduler.check_integrity()
    runner.close()
    return ids, moved


@pytest.fixture(scope="module")
def plain(model):
    return outputs(model, 1, False)[0]


@pytest.mark.parametrize("page", [1, 4, 16])
def test_greedy_is_the_same_with_pages_that_move(model, plain, page):
    found, moved = outputs(model, page, True)
    assert found == plain
    assert all(len(ids) == 16 for ids in found.values()) and len(found) == 8
    assert moved > 0


@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("more", [{"runner_driver": "process"}, {"runner": "transformers"}], ids=str)
def test_moves_cross_a_process_and_reach_the_reference(model, plain, page, more):
    found, moved = outputs(model, page, True, **more)
    assert found == plain and moved > 0
