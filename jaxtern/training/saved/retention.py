"""Which checkpoints are kept."""

from collections.abc import Callable, Sequence
from typing import Any

from orbax.checkpoint.checkpoint_managers import PolicyCheckpointInfo


class LastAndBest:
    """orbax's question which checkpoints to preserve, answered."""

    def __init__(self, keep: int, keep_best: int, score: Callable[[int], float | None]):
        """Keeps the last `keep`, and of those that have a score the `keep_best` highest, of equals the later."""
        self._keep, self._keep_best, self._score = keep, keep_best, score

    def should_preserve(self, checkpoints: Sequence[PolicyCheckpointInfo], *, context: Any) -> list[bool]:
        """Of every checkpoint, in the order of their steps."""
        steps = sorted(info.step for info in checkpoints)
        scored = [(score, step) for step in steps if self._keep_best and (score := self._score(step)) is not None]
        best = sorted(scored, reverse=True)[: self._keep_best]
        preserved = {*steps[-self._keep :], *(step for _, step in best)}
        return [info.step in preserved for info in checkpoints]
