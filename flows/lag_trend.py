"""Whether a consumer keeps up: a verdict on a window of samples of its lag.

Owns: the rule, and the bounded memory of the samples that one node has taken. Pure: time is passed in, on one clock.
The rule, first match wins; the window are the samples of the last ``WINDOW_MS``, and the lag counts items:

| # | condition | verdict |
|---|---|---|
| 1 | there is no lag now | ok |
| 2 | no instance has ever attached | stalled |
| 3 | the samples span less than ``SPAN_MS_MIN`` | unknown |
| 4 | the cursor stood still and there was lag in all of ``WINDOW_MS`` | stalled |
| 5 | the smallest lag of each third of the window is larger than that of the third before | falling_behind |
| 6 | otherwise | ok |

Rule 5 compares smallest lags because lag is a saw-tooth: it falls when a job commits and rises until it does so again.
After Burrow (LinkedIn), which judges a window of offsets instead of a threshold of lag.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from typing import Final, Literal, NamedTuple

SAMPLE_MS: Final = 10_000
WINDOW_MS: Final = 300_000
SPAN_MS_MIN: Final = 60_000
SAMPLES_MAX: Final = WINDOW_MS // SAMPLE_MS + 2
CONSUMERS_SAMPLED_MAX: Final = 4_096
"""Consumers, over all flows, whose samples are kept; the verdict on further ones is unknown."""

Verdict = Literal["ok", "falling_behind", "stalled", "unknown"]


class Sample(NamedTuple):
    """Where a consumer stood at a time of the node's own clock, in milliseconds."""

    at_ms: int
    cursor: int
    lag_items: int


def verdict(samples: Sequence[Sample], *, attached: bool) -> Verdict:
    """Judge by the rule above; ``samples`` are in order of time and end with the present one."""
    now = samples[-1]
    if now.lag_items == 0:
        return "ok"
    if not attached:
        return "stalled"
    window = [one for one in samples if now.at_ms - one.at_ms <= WINDOW_MS]
    if now.at_ms - window[0].at_ms < SPAN_MS_MIN:
        return "unknown"
    # Samples come every SAMPLE_MS, so the oldest in a full window may be younger than the window by as much.
    if now.at_ms - window[0].at_ms > WINDOW_MS - SAMPLE_MS and all(
        one.cursor == now.cursor and one.lag_items for one in window
    ):
        return "stalled"
    third = len(window) // 3
    if not third:
        return "unknown"
    floors = [min(one.lag_items for one in part) for part in (window[:third], window[third:-third], window[-third:])]
    return "falling_behind" if floors[0] < floors[1] < floors[2] else "ok"


class LagTrends:
    """The samples of one node, by flow and consumer."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str], deque[Sample]] = {}

    def add(self, flow: str, consumer: str, sample: Sample) -> None:
        """Keep a sample; of a consumer over CONSUMERS_SAMPLED_MAX none is kept."""
        kept = self._samples.get((flow, consumer))
        if kept is None:
            if len(self._samples) >= CONSUMERS_SAMPLED_MAX:
                return
            kept = self._samples[flow, consumer] = deque(maxlen=SAMPLES_MAX)
        kept.append(sample)

    def keep(self, known: Container[tuple[str, str]]) -> None:
        """Forget the samples of all but these (flow, consumer)."""
        for gone in [name for name in self._samples if name not in known]:
            del self._samples[gone]

    def verdict(self, flow: str, consumer: str, now: Sample, *, attached: bool) -> Verdict:
        """Judge a consumer that stands as ``now`` says; changes nothing."""
        return verdict([*self._samples.get((flow, consumer), ()), now], attached=attached)
