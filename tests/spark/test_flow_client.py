"""The HTTP client of a flow against a fake gateway, and retries under one deadline, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import requests

from oncegate.spark_sink.cascade import Increment
from oncegate.spark_sink.errors import SinkError, code_in
from oncegate.spark_sink.flow_client import ConsumerLease, ConsumerPosition, FlowClient
from oncegate.stores.errors import StoreCode
from oncegate.stores.retry import Retry
from oncegate.testing import FakeCluster
from tests.spark.fake_gateway import FakeFlow, FakeNode, encode, serving

ITEMS = [(4, "a", '"x"'), (9, "b", None)]


@pytest.fixture
def flow() -> FakeFlow:
    return FakeFlow()


def client(*nodes: FakeNode, flow: str = "timeline", deadline_s: float = 0.0) -> FlowClient:
    return FlowClient([node.url for node in nodes], flow, retry=Retry(deadline_s), timeout_s=5)


def code_of(call: Callable[[], object]) -> StoreCode:
    with pytest.raises(SinkError) as refused:
        call()
    return refused.value.code


def test_a_batch_is_read_over_one_connection_and_rereads_are_identical(flow: FakeFlow, node: FakeNode) -> None:
    flow.seal(ITEMS)
    reader = client(node)
    first, again = reader.batch(1), reader.batch(1)
    assert first.equals(again)
    assert first.column("key").to_pylist() == ["a", "b"]
    assert first.column("value").to_pylist() == ['"x"', None]


def test_state_names_batches_and_consumers(flow: FakeFlow, node: FakeNode) -> None:
    assert client(node).state().last_batch == 0
    flow.seal(ITEMS)
    flow.attach("c", "n")
    state = client(node).state()
    assert (state.first_batch, state.last_batch) == (1, 1)
    assert state.consumers == {"c": ConsumerPosition(0, 1, 2, 0)}


def test_another_endpoint_answers_when_one_does_not(flow: FakeFlow, node: FakeNode) -> None:
    flow.seal(ITEMS)
    with serving(flow) as refusing, serving(flow) as gone:
        refusing.refuse = True
        gone.close()
        for order in ([refusing, gone, node], [node, gone, refusing], [gone, node, refusing]):
            assert client(*order).batch(1).num_rows == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda body: body[:-8],
        lambda body: body[: len(body) // 2],
        lambda body: b"",
        lambda body: b"garbage" * 10,
        lambda body: encode("timeline", "messages", 2, ITEMS)[0],
        lambda body: encode("other", "messages", 1, ITEMS)[0],
        lambda body: encode("timeline", "messages", 1, ITEMS[::-1])[0],
        lambda body: body.replace(b"oncegate.version", b"oncegate.versiox"),
    ],
)
def test_a_damaged_or_wrong_batch_is_refused_and_read_elsewhere(
    flow: FakeFlow, node: FakeNode, damage: Callable[[bytes], bytes]
) -> None:
    flow.seal(ITEMS)
    with serving(flow) as damaged:
        damaged.damage = damage
        assert code_of(lambda: client(damaged).batch(1)) is StoreCode.BAD_BATCH
        assert client(damaged, node).batch(1).num_rows == 2


def test_a_batch_that_changes_is_noticed(flow: FakeFlow, node: FakeNode) -> None:
    flow.seal([(1, "k", "1")])
    flow.name = "changing"
    flow.batches[1], _ = encode("changing", "messages", 1, [(1, "k", "1")])
    reader = client(node, flow="changing")
    reader.batch(1)
    flow.batches[1], _ = encode("changing", "messages", 1, [(1, "k", "2")])
    assert code_of(lambda: reader.batch(1)) is StoreCode.BATCH_CHANGED
    # Of a rebuilt cluster it is another batch: a worker that outlives the old one reads it.
    assert FlowClient([node.url], "changing", retry=Retry(0), cluster="rebuilt").batch(1).num_rows == 1


def test_a_dropped_batch_is_a_typed_error(flow: FakeFlow, node: FakeNode) -> None:
    flow.seal(ITEMS)
    flow.seal([(12, "c", "1")])
    flow.drop_before(2)
    assert code_of(lambda: client(node).batch(1)) is StoreCode.RETENTION_EXCEEDED


def test_a_batch_that_a_lagging_node_does_not_know_is_read_elsewhere(flow: FakeFlow, node: FakeNode) -> None:
    flow.seal(ITEMS)
    with serving(FakeFlow()) as lagging:
        assert client(lagging, node).batch(1).num_rows == 2
        assert code_of(lambda: client(lagging).batch(1)) is StoreCode.FLOW_UNREACHABLE


def test_attaching_again_with_the_same_nonce_gives_the_same_fence(node: FakeNode) -> None:
    caller = client(node)
    assert caller.attach("c", "n1") == caller.attach("c", "n1") == ConsumerLease(1, 0)
    assert caller.attach("c", "n2") == ConsumerLease(2, 0)


def test_the_older_of_two_instances_is_fenced_at_the_cursor(flow: FakeFlow, node: FakeNode) -> None:
    flow.seal(ITEMS)
    caller = client(node)
    older, newer = caller.attach("c", "old").fence, caller.attach("c", "new").fence
    assert code_of(lambda: caller.move_cursor("c", 1, older)) is StoreCode.FENCED
    assert caller.move_cursor("c", 1, newer) == 1
    assert caller.move_cursor("c", 1, newer) == 1


def test_nobody_there_is_unreachable_and_unknown() -> None:
    with pytest.raises(SinkError) as refused:
        FlowClient(["http://127.0.0.1:9"], "f", retry=Retry(0)).state()
    assert (refused.value.code, refused.value.outcome, refused.value.retryable) == (
        StoreCode.FLOW_UNREACHABLE,
        "unknown",
        True,
    )


def test_an_unknown_flow_is_refused_at_once(node: FakeNode) -> None:
    assert code_of(lambda: client(node, flow="none", deadline_s=60).state()) is StoreCode.FLOW_REFUSED


@pytest.mark.parametrize("endpoints", [[], ["host:7400"], ["ftp://x"], ["http://"]])
def test_malformed_endpoints_are_refused(endpoints: list[str]) -> None:
    assert code_of(lambda: FlowClient(endpoints, "f", retry=Retry(0))) is StoreCode.BAD_OPTION


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.waits_s: list[float] = []

    def sleep(self, wait_s: float) -> None:
        self.waits_s.append(wait_s)
        # Waiting costs at least this, or a jitter of nothing would never end a test.
        self.now_s += max(wait_s, 0.01)


def test_retries_until_it_works() -> None:
    clock, failures = Clock(), [OSError(), OSError()]

    def action() -> str:
        if failures:
            raise failures.pop()
        return "done"

    assert Retry(10, sleep=clock.sleep, clock=lambda: clock.now_s).run(action, lambda _: True) == "done"
    assert len(clock.waits_s) == 2


def test_raises_the_last_error_at_the_deadline_and_never_waits_beyond_it() -> None:
    clock = Clock()

    def action() -> None:
        raise OSError(f"at {clock.now_s}")

    with pytest.raises(OSError, match="at 3"):
        Retry(3, wait_s_max=1, sleep=clock.sleep, clock=lambda: clock.now_s).run(action, lambda _: True)
    assert clock.now_s < 3.02
    assert all(wait_s <= 1 for wait_s in clock.waits_s)


def test_what_is_not_worth_it_is_not_retried() -> None:
    clock = Clock()

    def action() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        Retry(10, sleep=clock.sleep, clock=lambda: clock.now_s).run(action, lambda error: isinstance(error, OSError))
    assert clock.waits_s == []


def test_without_time_one_attempt_is_made() -> None:
    assert Retry(0).run(lambda: 5, lambda _: True) == 5


def test_code_survives_being_turned_into_text() -> None:
    first, last = SinkError(StoreCode.STORE_UNAVAILABLE, "x"), SinkError(StoreCode.FENCED, "y")
    text = f"Traceback …\n{first}\n…\n{last}\n at org.apache"
    assert code_in(text) is StoreCode.FENCED
    assert code_in("java.lang.Error") is None


def test_a_consumer_of_a_real_gateway_is_attached_moved_and_removed(oncegate_cluster: FakeCluster) -> None:
    oncegate_cluster.declare("posts", "stream")
    client = FlowClient(oncegate_cluster.endpoints, "posts", retry=Retry(5))
    lease = client.attach("c", "nonce")
    assert client.move_cursor("c", 0, lease.fence) == lease.cursor == 0
    assert set(client.state().consumers) == {"c"}
    client.remove_consumer("c")
    assert not client.state().consumers
    with pytest.raises(SinkError) as fenced:
        client.move_cursor("c", 0, lease.fence)
    assert fenced.value.code is StoreCode.FENCED


def test_part_whose_answer_is_lost_is_written_once_by_a_real_gateway(oncegate_cluster: FakeCluster) -> None:
    oncegate_cluster.declare("posts", "stream")
    oncegate_cluster.declare("counts")
    endpoint = oncegate_cluster.endpoints[0]
    flow = {"source": "posts", "target": "counts", "max_items": 1}
    assert requests.put(f"{endpoint}/v1/flows/copy", json=flow, timeout=10).ok
    opened = requests.post(f"{endpoint}/v1/sessions", json={"nonce": "n"}, timeout=10).json()
    put = {"sequence": 1, "op": "put", "table": "posts", "key": "k", "value": 1}
    body = {"client_id": opened["client_id"], "epoch": 1, "first_incomplete": 1, "operations": [put]}
    assert requests.post(f"{endpoint}/v1/operations", json=body, timeout=10).ok
    client = FlowClient(oncegate_cluster.endpoints, "copy", retry=Retry(20), timeout_s=2)
    lease = client.attach("job", "nonce")
    oncegate_cluster.lose_answers(1)
    write = Increment("counts", "n", 3).text
    assert client.cascade("job", 1, 1, lease.fence, [write, write], last=False) == 0
    assert client.cascade("job", 1, 2, lease.fence, [write], last=True) == 1
    assert oncegate_cluster.value("counts", "n") == 9
    with pytest.raises(SinkError) as refused:
        client.cascade("job", 1, 2, lease.fence, [], last=True)
    assert refused.value.code is StoreCode.FLOW_REFUSED
    client.attach("job", "newer")
    with pytest.raises(SinkError) as fenced:
        client.cascade("job", 1, 1, lease.fence, [write, write], last=False)
    assert fenced.value.code is StoreCode.FENCED
