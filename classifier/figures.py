"""What is measured of an artefact, as it is written into it, printed by `headrace train` and shown in its card."""

import msgspec

from classifier.measures import Interval


class TierFigures(msgspec.Struct, frozen=True):
    """P(good) on the held-out fifth. Figures by tier are in nats (`log_loss`) and in probability (`calibration`)."""

    rows: int
    apgr: Interval  # by the estimated gain, dearest minus cheapest tier
    apgr_longest_first: float
    apgr_hardest_first: float  # by the cheapest tier's estimated failure
    calibration: dict[str, float]  # expected calibration error
    log_loss: dict[str, float]
    log_loss_of_mean: dict[str, float]  # of one constant, the rows' own mean
    mean: dict[str, float]  # quality of the tier's answers


class CrossValidated(msgspec.Struct, frozen=True):
    """APGR on the other four fifths, each fold estimated by heads that have not seen it."""

    rows: int
    apgr: Interval
    apgr_within: dict[str, Interval]  # inside one source, where the source itself is no help


class TaskFigures(msgspec.Struct, frozen=True):
    """Accuracy on the held-out fifth; `everyday` is the share of it that this project wrote."""

    rows: int
    accuracy: float
    recall: dict[str, float]
    everyday_rows: int
    everyday_accuracy: float
    accuracy_on_unseen_sources: float  # cross-validated over whole sources


class Figures(msgspec.Struct, frozen=True):
    """`elsewhere` holds the APGR on outcomes that are not of the kind it was fitted on, and the longest-first one."""

    tiers: TierFigures
    cross_validated: CrossValidated
    tasks: TaskFigures
    elsewhere: dict[str, tuple[Interval, float]]


def table(figures: Figures) -> list[tuple[str, str]]:
    """Figures in words and numbers, most telling first."""
    tiers, crossed, tasks = figures.tiers, figures.cross_validated, figures.tasks
    return [
        (f"APGR, 7b to 70b, on {tiers.rows} held-out rows", _interval(tiers.apgr)),
        ("- random", "0.500"),
        ("- longest prompt first", f"{tiers.apgr_longest_first:.3f}"),
        ("- hardest for the 7b first", f"{tiers.apgr_hardest_first:.3f}"),
        (f"APGR, cross-validated on the other {crossed.rows} rows", _interval(crossed.apgr)),
        *((f"- inside {source} alone", _interval(each)) for source, each in crossed.apgr_within.items()),
        *(
            (f"APGR elsewhere: {name} (longest first {longest:.3f})", _interval(each))
            for name, (each, longest) in figures.elsewhere.items()
        ),
        *((f"calibration error, {tier}", f"{error:.3f}") for tier, error in tiers.calibration.items()),
        *(
            (f"log loss, {tier} (of a constant: {tiers.log_loss_of_mean[tier]:.3f})", f"{loss:.3f}")
            for tier, loss in tiers.log_loss.items()
        ),
        (f"task accuracy on {tasks.rows} held-out prompts", f"{tasks.accuracy:.3f}"),
        *((f"- recall of {task}", f"{recall:.3f}") for task, recall in tasks.recall.items()),
        (f"- on {tasks.everyday_rows} held-out prompts in everyday words", f"{tasks.everyday_accuracy:.3f}"),
        ("- on sources that were not trained on", f"{tasks.accuracy_on_unseen_sources:.3f}"),
    ]


def print_table(figures: Figures) -> None:
    """To standard output, in two columns."""
    for name, value in table(figures):
        print(f"{name:<72} {value}")


def _interval(interval: Interval) -> str:
    chance = ", chance included" if interval.low <= 0.5 <= interval.high else ""
    return f"{interval.value:.3f} ({interval.low:.3f} to {interval.high:.3f}{chance})"
