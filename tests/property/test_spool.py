"""The spool against a dictionary: any history of uploads, repeats, removals, crashes and damage."""

import tempfile
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from vennue.core.ids import AttemptId
from vennue.updates.spool import Spool, SpoolWriter

KEYS = st.sampled_from(["a.1", "a.2", "a.3"])


class SpoolMachine(RuleBasedStateMachine):
    @initialize()
    def open(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)
        self.spool = Spool(self.root, AttemptId("job.1.1"))
        self.expected: dict[str, bytes] = {}
        self.arriving: list[tuple[SpoolWriter, bytes]] = []

    def teardown(self):
        for writer, _ in self.arriving:
            writer.abort()
        self.folder.cleanup()

    @rule()
    def begin(self):
        self.arriving.append((self.spool.begin(), b""))

    @precondition(lambda self: self.arriving)
    @rule(chunk=st.binary(max_size=50))
    def write(self, chunk):
        writer, before = self.arriving.pop(0)
        writer.write(chunk)
        self.arriving.append((writer, before + chunk))

    @precondition(lambda self: self.arriving)
    @rule(key=KEYS)
    def finish(self, key):
        writer, body = self.arriving.pop()
        record, is_new = writer.finish(key, {"size": len(body)})
        assert is_new == (key not in self.expected)
        self.expected.setdefault(key, body)
        assert record.meta == {"size": len(self.expected[key])}

    @precondition(lambda self: self.arriving)
    @rule()
    def abort(self):
        self.arriving.pop()[0].abort()

    @rule(key=KEYS)
    def remove(self, key):
        self.spool.remove(key)
        self.expected.pop(key, None)

    @rule()
    def crash(self):
        for writer, _ in self.arriving:
            writer._close()
        self.arriving = []
        self.spool = Spool(self.root, AttemptId("job.1.1"))

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def damage(self, data):
        key = data.draw(st.sampled_from(sorted(self.expected)))
        path = next(record.path for record in self.spool.records() if record.key == key)
        content = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, len(content) - 2))  # the last byte is the version
        content[at] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
        del self.expected[key]
        self.crash()

    @invariant()
    def exactly_the_finished_updates_exist(self):
        if hasattr(self, "spool"):
            found = {record.key: record.path.read_bytes()[: record.body_bytes] for record in self.spool.records()}
            assert found == self.expected
            assert len(list(self.spool.directory.iterdir())) == len(self.expected) + len(self.arriving)


TestSpool = SpoolMachine.TestCase
