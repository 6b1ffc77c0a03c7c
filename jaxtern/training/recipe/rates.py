"""Learning rates over epochs as one string: "5:0.001->0.4,30:0.4,60:0.04,80:0.004"."""

import math
import re
from typing import NamedTuple

_NUMBER = r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"
_SPAN = re.compile(rf"{_NUMBER}:{_NUMBER}(?:(->|=>){_NUMBER})?")


class Span(NamedTuple):
    """Epochs from the end of the span before (0 for the first) to `end`."""

    end: float  # in epochs
    first: float  # the rate where the span begins
    last: float  # the rate where it ends
    exponential: bool  # whether it changes by equal factors, not by equal steps


def parse_rates(schedule: str) -> tuple[Span, ...]:
    """Parses a rate string; raises ValueError for anything else.

    It has spans "END:RATE", "END:FIRST->LAST" (linear) or "END:FIRST=>LAST" (exponential), with commas between them;
    END is in epochs, and rises. The rate after the last END is that of the last span.
    """
    spans: list[Span] = []
    for part in schedule.split(","):
        match = _SPAN.fullmatch(part.strip())
        numbers = [float(match[place] or match[2]) for place in (1, 2, 4)] if match else []
        if match is None or not all(map(math.isfinite, numbers)):
            forms = "EPOCH:RATE, EPOCH:FIRST->LAST nor EPOCH:FIRST=>LAST"
            raise ValueError(f"optimizer.schedule={schedule!r}: {part!r} is neither {forms}")
        end, first, last = numbers
        span = Span(end, first, last, match[3] == "=>")
        if span.end <= (spans[-1].end if spans else 0):
            raise ValueError(f"optimizer.schedule={schedule!r}: its epochs must rise, from above 0")
        if span.exponential and min(span.first, span.last) <= 0:
            raise ValueError(f"optimizer.schedule={schedule!r}: rates that change exponentially must be above 0")
        spans.append(span)
    return tuple(spans)
