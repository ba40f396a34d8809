"""Small pieces of work that come at once go to a thread together, and each has its own outcome."""

import asyncio
import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial

import pytest

from vennue.control.crew import Crew
from vennue.control.together import MOST_TOGETHER, Together
from vennue.control.uploads import MOST_THREADS, Uploads


class Counting(ThreadPoolExecutor):
    """Threads that count what they are handed."""

    def __init__(self, threads=1):
        super().__init__(threads)
        self.handed = 0

    def submit(self, *args, **kwargs):
        self.handed += 1
        return super().submit(*args, **kwargs)


@pytest.fixture
def threads():
    with Counting() as executor:
        yield executor


async def test_what_comes_at_once_is_handed_over_together(threads):
    together = Together(threads, 1)
    futures = [together.do(partial(pow, number, 2)) for number in range(5)]
    assert await asyncio.gather(*futures) == [0, 1, 4, 9, 16]
    assert threads.handed == 1


async def test_what_comes_while_others_are_at_work_waits_for_the_next_group(threads):
    together = Together(threads, 1)
    release = threading.Event()
    first = together.do(release.wait)
    await asyncio.sleep(0)
    later = [together.do(partial(int, number)) for number in range(MOST_TOGETHER + 1)]
    await asyncio.sleep(0)
    assert threads.handed == 1
    release.set()
    assert await first
    assert await asyncio.gather(*later) == list(range(MOST_TOGETHER + 1))
    assert threads.handed == 3


async def test_what_fails_fails_alone(threads):
    together = Together(threads, 1)
    outcomes = await asyncio.gather(
        together.do(lambda: "one"), together.do(lambda: 1 / 0), together.do(lambda: "three"), return_exceptions=True
    )
    assert (outcomes[0], outcomes[2]) == ("one", "three")
    assert isinstance(outcomes[1], ZeroDivisionError)


async def test_who_waits_no_more_keeps_nobody_from_their_outcome(threads):
    together = Together(threads, 1)
    done = []
    gone = together.do(lambda: done.append("done all the same"))
    stays = together.do(lambda: "told")
    gone.cancel()
    assert await stays == "told"
    assert done == ["done all the same"]


async def test_when_the_threads_take_no_more_work_each_is_told():
    class Dismissed(Executor):
        def submit(self, *_, **__):
            raise RuntimeError("the crew has been dismissed")

    together = Together(Dismissed(), 1)
    futures = [together.do(int), together.do(int)]
    assert [str(error) for error in await asyncio.gather(*futures, return_exceptions=True)] == [
        "the crew has been dismissed"
    ] * 2


async def test_work_that_the_end_finds_waiting_is_cancelled():
    crew = Crew(1, "test")
    together = Together(crew, 2)
    release = threading.Event()
    begun = threading.Event()

    def work() -> bool:
        begun.set()
        return release.wait()

    first = together.do(work)
    await asyncio.sleep(0)
    assert await asyncio.to_thread(begun.wait, 60)
    second = together.do(int)
    await asyncio.sleep(0)
    threading.Timer(0.01, release.set).start()
    await asyncio.to_thread(crew.shutdown, cancel_futures=True)
    assert await first
    with pytest.raises(asyncio.CancelledError):
        await second


async def test_small_bodies_whose_check_never_ends_keep_no_other_owner_s_waiting():
    uploads = Uploads(1024)
    uploads._threads._patience_s = 1e6  # no stuck thread is replaced
    release = threading.Event()

    class Sink:
        def write(self, chunk):
            pass

        def abort(self):
            pass

    async def body():
        yield b"small"

    stuck = [
        asyncio.ensure_future(uploads.receive(Sink, lambda _: release.wait(), body(), owner="one"))
        for _ in range(MOST_THREADS * MOST_TOGETHER)
    ]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(uploads.receive(Sink, lambda _: "done", body(), owner="other"), 60) == "done"
    release.set()
    assert all(await asyncio.gather(*stuck))
    assert uploads._together == {}
    await uploads.stop()


@pytest.mark.parametrize("owner", ["one", None])
async def test_a_body_whose_thread_is_stuck_keeps_no_server_from_its_end(monkeypatch, owner):
    monkeypatch.setattr("vennue.control.crew.END_S", 0.0)
    uploads = Uploads(1024)
    begun, release = threading.Event(), threading.Event()
    aborted = []

    class Sink:
        def write(self, chunk):
            begun.set()
            release.wait()

        def abort(self):
            aborted.append(True)

    async def body():
        yield b"small"

    receiving = asyncio.ensure_future(uploads.receive(Sink, lambda _: None, body(), owner=owner))
    await asyncio.to_thread(begun.wait, 60)
    await uploads.stop()
    receiving.cancel()  # as the loop does with all that is left
    done, _ = await asyncio.wait((receiving,), timeout=20)
    release.set()
    assert done == {receiving}
    assert receiving.cancelled()
    assert aborted == []  # the thread may hold the sink's lock
