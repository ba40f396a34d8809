"""What commands ask a server: all of a long list, however many pages it has."""

from vennue.cli.remote import Operator
from vennue.core.ids import JobId
from vennue.protocol import JobList
from vennue.testing import LocalPool, in_virtual_time


class Pages(Operator):
    """An operator whose server is a script."""

    def __init__(self, *pages):
        self.pages = list(pages)
        self.asked = []

    def get(self, path, answer):
        self.asked.append(path)
        return self.pages.pop(0)


def test_a_list_of_jobs_is_followed_to_its_last_page():
    server = Pages(JobList(jobs=[], next=JobId("a b")), JobList(jobs=[], next=JobId("c")), JobList(jobs=[]))
    assert server.jobs() == []
    assert server.asked == ["/v1/jobs?limit=500", "/v1/jobs?limit=500&after=a+b", "/v1/jobs?limit=500&after=c"]


@in_virtual_time
async def test_a_server_gives_the_pages_that_it_is_asked_for_and_refuses_what_is_no_page():
    async with LocalPool() as pool, pool.client() as client:
        for name in "abc":
            await client.post("/v1/jobs", json={"spec": {"name": name, "demand": 1}})
        page = (await client.get("/v1/jobs?limit=2")).json()
        rest = (await client.get("/v1/jobs", params={"limit": 2, "after": page["next"]})).json()
        assert [job["spec"]["name"] for job in page["jobs"] + rest["jobs"]] == ["a", "b", "c"]
        assert rest["next"] is None
        for query in ("limit=0", "limit=501", "limit=1.5", "after=x"):
            refused = await client.get(f"/v1/jobs?{query}")
            assert (refused.status_code, refused.json()["field"]) == (422, query.partition("=")[0])
