"""Simulates 10,000 ranks on 1,250 nodes that request the same 500 kernels, with measured or published costs.

Each node has a cache and eight ranks. One of them requests a kernel, and the others find it in the node's cache. A rank
begins with a random kernel, continues with the next one if another node is compiling it, and returns to it later. The
store handles requests in order, at a fixed rate, and each request also has a latency. ``python -m benchmarks.fleet_paper``.
"""

from __future__ import annotations

import heapq
import json
import random
from collections import Counter, deque
from collections.abc import Iterator

NODES, RANKS, KERNELS = 1250, 8, 500
COMPILE_SECONDS = 1.0  # of a kernel, as a small CUTLASS or CUB kernel takes
BYTES = 4_000  # of a kernel's entry, compressed
LOCAL_SECONDS = 0.0005  # to adopt what came, and to look into the node's cache
POLL_SECONDS = 0.5
# Requests per second and seconds of a reply: Redis 7 on one core; S3's published limits for one prefix, reads and
# writes together.
STORES = {"Redis": (60_000.0, 0.0005), "S3": (5_500.0, 0.12)}


class Fleet:
    """The store, the nodes, and what has happened so far."""

    def __init__(self, rate: float, reply: float, *, warm: bool) -> None:
        self.rate, self.reply = rate, reply
        self.free_at = 0.0  # when the store has served what came before
        self.done = [warm] * KERNELS
        self.leased = [False] * KERNELS
        self.requests = self.compiled = self.fetched = 0
        self.by_second: Counter[int] = Counter()
        self.seconds = 0.0

    def replied(self, now: float, count: float) -> float:
        """Return when the store has replied to requests that arrive now."""
        self.requests += round(count)
        self.by_second[int(now)] += round(count)
        self.free_at = max(self.free_at, now) + count / self.rate
        return self.free_at + self.reply

    def rank(self, left: deque[int]) -> Iterator[tuple[str, float]]:
        """One rank: yields requests to the store, and seconds of its own."""
        firsts = KERNELS
        while left:
            kernel = left.popleft()
            firsts -= 1
            yield "request", 1
            if self.done[kernel]:
                self.fetched += 1
                yield "work", LOCAL_SECONDS
                continue
            yield "request", 1  # for the lease
            if not self.leased[kernel]:
                self.leased[kernel] = True
                yield "work", COMPILE_SECONDS
                self.compiled += 1
                yield "request", 2  # the entry, and the lease's end
                self.done[kernel] = True
            else:
                yield "request", 1  # the lease's holder
                left.append(kernel)
                if firsts < 0:
                    yield "work", POLL_SECONDS

    def run(self, processes: list[Iterator[tuple[str, float]]], seed: int = 1) -> dict[str, float]:
        """Run processes to their ends; return what that took."""
        chance = random.Random(seed)
        events = [(chance.random() * 0.5, number) for number in range(len(processes))]
        heapq.heapify(events)
        while events:
            now, number = heapq.heappop(events)
            what, amount = next(processes[number], ("end", 0.0))
            if what == "end":
                self.seconds = max(self.seconds, now)
                continue
            then = self.replied(now, amount) if what == "request" else now + amount
            heapq.heappush(events, (then, number))
        return {
            "seconds": round(self.seconds, 1),
            "requests": self.requests,
            "requests a second, most": max(self.by_second.values()),
            "gigabytes sent": round(self.fetched * BYTES / 1e9, 2),
            "compiled": self.compiled,
        }


def requested_one_by_one(rate: float, reply: float, *, warm: bool) -> dict[str, float]:
    """Simulate ranks that request each kernel."""
    fleet, processes = Fleet(rate, reply, warm=warm), []
    chance = random.Random(2)
    for _ in range(NODES):
        start = chance.randrange(KERNELS)
        left = deque([*range(start, KERNELS), *range(start)])  # the ranks of a node have one list
        processes += [fleet.rank(left) for _ in range(RANKS)]
    return {**fleet.run(processes), "connections, most": NODES * RANKS}


def all_cases() -> dict[str, object]:
    alone = KERNELS * COMPILE_SECONDS / RANKS
    found: dict[str, object] = {"every node for itself, seconds": round(alone, 1)}
    for store, (rate, reply) in STORES.items():
        for warm in (False, True):
            name = f"{store}, {'warm' if warm else 'cold'}"
            found[name] = requested_one_by_one(rate, reply, warm=warm)
    return found


if __name__ == "__main__":
    print(json.dumps(all_cases(), indent=2))
