"""What is measured of an artefact, as it is written into it, and as tables for people."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from classifier.ranking import Compared, Ranking
from classifier.refitted import Refitted
from classifier.router import AllTiers, RouterFigures


class TaskFigures(msgspec.Struct, frozen=True):
    """Accuracy on the held-out fifth; `everyday` is the share of it that this project wrote."""

    rows: int
    accuracy: float
    recall: dict[str, float]
    everyday_rows: int
    everyday_accuracy: float
    accuracy_on_unseen_sources: float  # cross-validated over whole sources


class Figures(msgspec.Struct, frozen=True):
    """`held_out`: on the held-out fifth, with the artefact itself. `refitted`: by heads of its kind on all rows, each
    measured on rows that it has not seen. `elsewhere`: the artefact on outcomes of another kind."""

    held_out: RouterFigures
    refitted: Refitted
    tasks: TaskFigures
    elsewhere: dict[str, Compared]


_HEADER = (
    "scored by", "APGR (95%)", "CPT(50)", "CPT(80)", "kept, 50% small", "70% small", "80% small",
    "at 30% of the cost", "AUC",
)  # fmt: skip


def pages(figures: Figures) -> str:
    """All figures as Markdown."""
    held, again = figures.held_out, figures.refitted
    return "\n\n".join(
        [
            f"### On {held.rows} held-out rows, {_ends(held.columns)}",
            _pooled_pages(held),
            *_refitted_pages(again, held.columns),
            *(
                f"### Elsewhere: {name}, {compared.rows} rows\n\n{_table(compared)}"
                for name, compared in figures.elsewhere.items()
            ),
            _task_page(figures.tasks),
        ]
    )


def router_pages(found: RouterFigures, again: Refitted | None) -> str:
    """What `headrace evaluate router` prints, as Markdown."""
    title = f"### {found.rows} rows that were not fitted on ({found.left_out} were), {_ends(found.columns)}"
    parts = [title, _pooled_pages(found)]
    if again is not None:
        parts += _refitted_pages(again, found.columns)
    return "\n\n".join(parts)


def _pooled_pages(found: RouterFigures) -> str:
    own = {source: _table(figures) for source, figures in found.per_source.items()}
    rows = {source: figures.rows for source, figures in found.per_source.items()}
    return "\n\n".join(
        [
            _comparison(found, found.baselines),
            _sentence(found.above_length),
            f"Mean AUC within a source: {found.auc_within:.3f}.",
            _all_tiers(found.all_tiers),
            _lines(
                ("P(good) of", "mean", "AUC", "calibration error", "log loss", "log loss of the mean"),
                (
                    (name, *(f"{x:.3f}" for x in (h.mean, h.auc, h.ece, h.log_loss, h.log_loss_of_mean)))
                    for name, h in found.tiers.items()
                ),
            ),
            *(f"Within {source}, {rows[source]} rows:\n\n{table}" for source, table in own.items()),
        ]
    )


def _refitted_pages(again: Refitted, columns: Sequence[str]) -> list[str]:
    parts = [
        f"### Fitted on these answers, cross-validated on {again.cross_validated.rows} rows, {_ends(columns)}",
        _table(again.cross_validated),
        _all_tiers(again.all_tiers),
    ]
    if again.few_labels is not None:
        few = again.few_labels
        draws = ", ".join(f"{draw:.3f}" for draw in few.draws)
        parts.append(f"With {few.labels:,} labels: APGR {few.apgr:.3f} on the other rows (draws: {draws}).")
    parts += [
        f"Fitted on all sources but {source}, {out.rows} rows of it:\n\n{_table(out)}\n\n"
        f"Calibration error: {out.ece:.3f}; without doubt {out.ece_without_doubt:.3f}."
        for source, out in again.leave_one_source_out.items()
    ]
    return parts


def _task_page(tasks: TaskFigures) -> str:
    named = [(f"recall of {task}", f"{recall:.3f}") for task, recall in tasks.recall.items()]
    return "### Tasks\n\n" + _lines(
        ("figure", "value"),
        [
            (f"accuracy on {tasks.rows} held-out prompts", f"{tasks.accuracy:.3f}"),
            *named,
            (
                f"accuracy on {tasks.everyday_rows} held-out prompts in everyday words",
                f"{tasks.everyday_accuracy:.3f}",
            ),
            ("accuracy on sources that were not trained on", f"{tasks.accuracy_on_unseen_sources:.3f}"),
        ],
    )


def _table(compared: Compared) -> str:
    return f"{_comparison(compared.router, compared.baselines)}\n\n{_sentence(compared.above_length)}"


def _comparison(router: Ranking, baselines: Mapping[str, Ranking]) -> str:
    named = [("this router", router), *baselines.items()]
    return _lines(_HEADER, ((name, *_numbers(ranking)) for name, ranking in named))


def _numbers(ranking: Ranking) -> list[str]:
    kept = [f"{share:.1%}" for share in ranking.quality_kept.values()]
    return [_apgr(ranking), f"{ranking.cpt50:.2f}", f"{ranking.cpt80:.2f}", *kept, f"{ranking.auc:.3f}"]


def _apgr(ranking: Ranking) -> str:
    if "apgr" not in ranking.intervals:
        return f"{ranking.apgr:.3f}"
    low, high = ranking.intervals["apgr"]
    return f"{ranking.apgr:.3f} ({low:.3f} to {high:.3f}{', chance included' if low <= 0.5 <= high else ''})"


def _sentence(above: tuple[float, float, float]) -> str:
    value, low, high = above
    return f"APGR above that of length: {value:+.3f} ({low:+.3f} to {high:+.3f})."


def _all_tiers(found: AllTiers) -> str:
    value, low, high = found.router
    return (
        f"All tiers at 30% of the dearest one's cost keep {value:.1%} ({low:.1%} to {high:.1%}) of its quality; the"
        f" best mix by chance {found.random:.1%}, an oracle {found.oracle:.1%}."
    )


def _ends(columns: Sequence[str]) -> str:
    return f"{columns[0]} to {columns[-1]}"


def _lines(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    table = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in table)
