"""What several processes know together."""

from typing import Any

import msgspec

from gateway.dashboard.history import BUCKETS, STEP, Bucket, Made, Used
from gateway.dashboard.share import Share, Standing, Whole
from gateway.dashboard.state import Brief


def share(**fields: Any) -> Share:
    """As it comes from another process."""
    empty: dict[str, Any] = {
        "started": 10.0, "leaving": False, "running": {}, "buckets": (), "loads": {}, "latest": (), "ready": {},
        "replicas": {},
    }  # fmt: skip
    return msgspec.msgpack.decode(msgspec.msgpack.encode(Share(**empty | fields)), type=Share)


def brief(id: str, at: float, seconds: float) -> Brief:
    return Brief(
        id=id, at=at, endpoint="chat", tenant=None, status=200, code=None, tier=None, reason=None, seconds=seconds,
        first_text=None, completion_tokens=1,
    )  # fmt: skip


def test_running_requests_and_generations_add_up() -> None:
    one = share(running={"acme": 2}, replicas={"7b/0": Standing("up", 2)}, ready={"7b": True})
    two = share(running={"acme": 1, "b": 1}, replicas={"7b/0": Standing("up", 2)}, ready={"7b": True})
    whole = Whole([one, two, share()])  # the last has no tiers
    assert whole.running == {"acme": 3, "b": 1}
    assert whole.standing("7b/0") == ("up", 4)
    assert whole.ready("7b")


def test_what_one_process_finds_wrong_is_wrong() -> None:
    one = share(started=20.0, replicas={"7b/0": Standing("resting", 0)}, ready={"7b": False}, leaving=True)
    two = share(started=30.0, replicas={"7b/0": Standing("busy", 9)}, ready={"7b": True})
    whole = Whole([one, two])
    assert (whole.standing("7b/0").condition, whole.ready("7b"), whole.leaving) == ("resting", False, True)
    assert whole.started == 20.0


def test_histories_add_up_bucket_by_bucket_without_gaps() -> None:
    now = 1_000_000
    before = Bucket(
        now - 3, {"7b": Made(2, 10.0, [0.1, 0.2])}, {"acme": Used(requests=2, refused=1, tokens=30)}
    )
    other = Bucket(
        now - 3,
        {"7b": Made(1, 5.0, [0.3])},
        {"acme": Used(requests=1, refused=0, tokens=3), "b": Used(requests=1, refused=0, tokens=1)},
    )
    older = Bucket(now - 5, {"7b": Made(requests=7)})
    lost = Bucket(now - 2 * BUCKETS, {"7b": Made(requests=99)})
    shares = [share(buckets=(lost, before)), share(buckets=(older, other))]
    history = Whole(shares, clock=lambda: now * STEP).history
    requests = history.series("7b").requests
    assert [made for made in requests if made] == [7, 3]
    assert requests.index(3) - requests.index(7) == 2  # the silence between them is shown
    assert sorted(history.first_tokens("7b")) == [0.1, 0.2, 0.3]
    assert history.last_minute() == {
        "acme": Used(requests=3, refused=1, tokens=33),
        "b": Used(requests=1, refused=0, tokens=1),
    }
    assert before.tiers["7b"].requests == 2  # the shares themselves stay as they are


def test_the_latest_requests_of_all_in_the_order_of_their_ends() -> None:
    one = share(latest=(brief("c", 5.0, 3.0), brief("a", 1.0, 1.0)))
    two = share(latest=(brief("b", 0.0, 7.0),))
    assert [each.id for each in Whole([one, two]).latest(9)] == ["c", "b", "a"]
    assert [each.id for each in Whole([one, two]).latest(1)] == ["c"]
