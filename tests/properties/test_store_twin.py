"""The store against its plainest twin: a list of bodies per queue."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.support.stores import NOW_MS, bodies, open_store, run_housekeeping, stage

from holdfast.sim.world.disk import SimDisk

QUEUES = [("a", 0), ("a", 1), ("b", 0)]
queues = st.sampled_from(QUEUES)


class StoreAndLists(RuleBasedStateMachine):
    """Whatever is done in whatever order, readers see exactly what was confirmed."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.store = open_store(self.disk)
        self.now_ms = NOW_MS
        self.confirmed: dict[tuple[str, int], list[bytes]] = {name: [] for name in QUEUES}
        self.written: list[tuple[int, tuple[str, int], bytes]] = []
        self.staged: list[tuple[tuple[str, int], bytes]] = []

    @rule(name=queues, body=st.binary(max_size=300))
    def stage(self, name: tuple[str, int], body: bytes) -> None:
        """Offsets follow one another without a gap."""
        _, offset = stage(self.store, body, topic=name[0], queue_id=name[1], keys="k", now_ms=self.now_ms)
        before = [item for item in self.written if item[1] == name] + [item for item in self.staged if item[0] == name]
        assert offset == len(self.confirmed[name]) + len(before)
        self.staged.append((name, body))

    @rule()
    def write(self) -> None:
        """All that was staged."""
        self.store.write()
        self.written += [(self.store.written, name, body) for name, body in self.staged]
        self.staged = []

    @rule()
    def discard(self) -> None:
        """All that was staged."""
        self.store.discard()
        self.staged = []

    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        """Up to the end of some write."""
        if self.written:
            end = data.draw(st.sampled_from([end for end, _, _ in self.written]))
            self.store.confirm(end)
            self._confirm(end)

    def _confirm(self, end: int) -> None:
        for _, name, body in [item for item in self.written if item[0] <= end]:
            self.confirmed[name].append(body)
        self.written = [item for item in self.written if item[0] > end]

    @rule(seconds=st.integers(0, 20))
    def keep_house(self, seconds: int) -> None:
        """Changes nothing that a reader sees."""
        self.now_ms += seconds * 1000
        self.write()
        run_housekeeping(self.store, self.now_ms)

    @rule()
    def close_and_open(self) -> None:
        """Everything written is confirmed by it."""
        self.discard()
        self.store.close(self.now_ms)
        self.store = open_store(self.disk)
        self._confirm(1 << 60)

    @rule()
    def die_and_open(self) -> None:
        """A process that dies leaves everything written in the page cache."""
        self.discard()
        self.store = open_store(self.disk)
        self._confirm(1 << 60)

    @rule(topic=st.sampled_from(["a", "b"]))
    def delete(self, topic: str) -> None:
        """Its queues begin again."""
        self.discard()
        self.store.delete_topic(topic)
        for name in QUEUES:
            if name[0] == topic:
                self.confirmed[name] = []
        self.written = [item for item in self.written if item[1][0] != topic]

    @invariant()
    def readers_see_what_was_confirmed(self) -> None:
        """In order, and nothing else."""
        for name, wanted in self.confirmed.items():
            assert bodies(self.store, *name) == wanted


TestStoreAndLists = StoreAndLists.TestCase
TestStoreAndLists.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
