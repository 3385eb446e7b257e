"""From recordings to the rules of one model, with which a gateway judges its answers."""

from collections.abc import Iterable

from classifier.confide import Graded, fit
from classifier.confidence import Rule
from gateway.learning.recordings import Recording


def rules(recordings: Iterable[Recording]) -> tuple[Rule, ...]:
    """Of answers of one model."""
    return fit([_graded(each) for each in recordings])


def _graded(recording: Recording) -> Graded:
    return Graded(
        task=recording.task,
        trace=recording.trace,
        finish=recording.finish,
        prompt=recording.expected,
        good=recording.good,
    )
