"""Threads that may get stuck: others do not wait for them, and nor does the end."""

import asyncio
import threading
import time

import pytest

from vennue.control import crew as crews
from vennue.control.crew import Crew


@pytest.fixture
def release():
    event = threading.Event()
    yield event
    event.set()


def test_work_is_done_by_so_many_threads_and_its_outcome_is_told():
    crew = Crew(2, "test")
    together = threading.Barrier(2, timeout=60)
    assert [future.result(60) for future in [crew.submit(together.wait) for _ in range(4)]]
    assert crew.submit(sorted, [1, 2], reverse=True).result(60) == [2, 1]
    with pytest.raises(ZeroDivisionError):
        crew.submit(lambda: 1 / 0).result(60)
    crew.shutdown()


def test_a_thread_that_is_stuck_is_replaced_and_leaves_when_it_is_done(release, caplog):
    crew = Crew(1, "test", patience_s=0.02)
    stuck = crew.submit(release.wait)
    assert crew.submit(lambda: "done").result(60) == "done"
    while crew.stuck != 1:  # on a busy machine the second one may have taken too long, too, until it ended
        time.sleep(0.01)
    crew._patience_s = 1e6  # from here on none does
    assert "it is replaced" in caplog.text
    release.set()
    assert stuck.result(60)
    threads = {crew.submit(threading.get_ident).result(60) for _ in range(10)}
    assert len(threads) == 1
    crew.shutdown()
    assert crew.stuck == 0


def test_there_is_a_bound_on_those_that_are_replaced(release, monkeypatch):
    monkeypatch.setattr(crews, "MOST_STUCK", 1)
    crew = Crew(1, "test", patience_s=0.02)
    futures = [crew.submit(release.wait) for _ in range(3)]
    assert not futures[2].cancelled()
    release.set()
    assert [future.result(60) for future in futures] == [True] * 3
    assert crew.stuck <= 1


def test_the_end_does_not_wait_for_what_is_stuck(release, monkeypatch):
    monkeypatch.setattr(crews, "END_S", 0.01)
    crew = Crew(1, "test")
    crew.submit(release.wait)
    waiting = crew.submit(lambda: None)
    crew.shutdown(cancel_futures=True)
    assert waiting.cancelled()
    with pytest.raises(RuntimeError):
        crew.submit(lambda: None)


def test_the_end_waits_for_what_has_begun(release, monkeypatch):
    monkeypatch.setattr(crews, "END_S", 60.0)
    crew = Crew(1, "test")
    begun = threading.Event()

    def work() -> str:
        begun.set()
        release.wait()
        return "done"

    future = crew.submit(work)
    assert begun.wait(60)
    threading.Timer(0.01, release.set).start()
    crew.shutdown()
    assert future.result(0) == "done"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
async def test_what_ends_a_program_ends_only_the_work(error):
    def exits() -> None:
        raise error

    crew = Crew(1, "test")
    with pytest.raises(RuntimeError, match=type(error).__name__):
        await asyncio.get_running_loop().run_in_executor(crew, exits)
    crew.shutdown()
