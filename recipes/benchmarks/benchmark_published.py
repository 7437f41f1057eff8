r"""What others published on LabelMe, beside the same method here. Not a recipe itself.

    print(beside_published(read_cells(Path("results"))))

`benchmark_tables.py` writes the page, `docs/rivals.md`, which says in words what differs. A figure stands beside ours
only where the protocol can be the same: the last epoch beside the last epoch, and one that gold labels have chosen beside our
best epoch on the test items, which no such choice can exceed.
"""

from collections.abc import Iterable
from typing import NamedTuple

from benchmark_cells import BELOW, CEILING, REAL, Cell, Number, dataset_name, method_name, results
from benchmark_layout import text_of
from pages import markdown

LAST, VALIDATION, TEST = "last", "gold validation", "best on test"


class Published(NamedTuple):
    """A published figure.

    Args:
        method: a key of the benchmark.
        accuracy: on LabelMe's test items, as it is printed.
        epoch: the last, or the one with the best accuracy on gold validation labels or on the test items.
        source: who published it.
        remark: what else is to be known of it.
    """

    method: str
    accuracy: str
    epoch: str
    source: str
    remark: str = ""

    @property
    def mean(self) -> float:
        """The accuracy without its deviation."""
        return float(self.accuracy.split()[0])


_HERDE = "annot-mix, ECAI 2024"
_FROZEN = "its matrices are not trained there"
_AUGMENTED = "augmented images, one seed"
PUBLISHED: dict[str, tuple[Published, ...]] = {
    # frozen features: what was published with them
    "DINOv2 ViT-S/14 (384)": (
        Published("majority_vote", "80.5 ± 1.1", LAST, _HERDE),
        Published("crowd_layer", "85.7 ± 0.5", LAST, _HERDE),
        Published("trace", "82.6 ± 0.6", LAST, _HERDE),
        Published("geo_f", "85.4 ± 0.5", LAST, _HERDE),
        Published("geo_w", "85.5 ± 0.5", LAST, _HERDE),
        Published("union_net_b", "85.2 ± 0.3", LAST, _HERDE),
        Published("conal", "83.7 ± 0.4", LAST, _HERDE, _FROZEN),
        Published("crowd_ar", "84.6 ± 0.7", LAST, _HERDE, _FROZEN),
        Published("annot_mix", "85.8 ± 0.6", LAST, _HERDE),
        Published("madl", "82.5 ± 0.8", LAST, _HERDE),
        Published(CEILING, "93.9 ± 0.3", LAST, _HERDE),
        Published("union_net_b", "87.5", VALIDATION, _HERDE),
        Published("geo_f", "87.4", VALIDATION, _HERDE),
        Published("annot_mix", "86.5", VALIDATION, _HERDE),
    ),
    "VGG-16 (8,192)": (
        Published("conal", "87.12", VALIDATION, "CoNAL, AAAI 2021"),
        Published("max_mig", "86.42 ± 0.36", TEST, "Max-MIG, ICLR 2019"),
    ),
    "VGG-16 BN (25,088)": (
        Published("conal", "88.89", VALIDATION, "peerannot", _AUGMENTED),
        Published("glad", "87.54", VALIDATION, "peerannot", _AUGMENTED),
        Published("crowd_layer", "87.21", VALIDATION, "peerannot", _AUGMENTED),
        Published("conal_waum", "90.2", VALIDATION, "WAUM, TMLR 2024", "augmented images, read off a picture, ± 1.5"),
    ),
}  # fmt: skip


# On data with other networks and features: accuracy of annot-mix and of gold labels, as its authors print them.
ELSEWHERE = {"music": (73.8, 79.6), "cifar10n_features": (82.4, 94.0)}


def beside_published(cells: Iterable[Cell]) -> str:
    """Write the published figures on LabelMe, each beside the same method here.

    Args:
        cells: of any data sets.

    Returns:
        A table in Markdown, where our last epoch differs from a published last epoch by more than `BELOW`, and what gold
        labels lead to elsewhere. What was not measured here is blank.

    Raises:
        ValueError: as `results` does.
    """
    cells = list(cells)
    last, best = (_accuracies(cells, "labelme", pick) for pick in ("last", "best_on_test"))
    lines, lower, higher, compared = [], [], [], 0
    for features, rows in PUBLISHED.items():
        for row in rows:
            ours = last.get(row.method) if row.epoch == LAST else best.get(row.method)
            here = "" if ours is None else text_of(ours)
            lines.append(
                [
                    method_name(row.method),
                    features,
                    row.epoch,
                    row.accuracy,
                    here,
                    row.source,
                    row.remark,
                ]
            )
            if row.epoch == LAST and ours is not None and row.method != CEILING:
                compared += 1
                if ours.mean < row.mean - BELOW:
                    lower.append(method_name(row.method))
                if ours.mean > row.mean + BELOW:
                    higher.append(method_name(row.method))
    table = markdown(
        ["method", "features there", "epoch", "published", "here", "source", "remark"], lines
    )
    parts = [table]
    if compared:
        parts.append(
            f"Of {compared} methods whose last epoch is published, more than {BELOW:g} point lower here: "
            f"{_listed(lower)}; more than {BELOW:g} point higher: {_listed(higher)}."
        )
    for dataset, (accuracy, there) in ELSEWHERE.items():
        gold = _accuracies(cells, dataset, "last").get(CEILING)
        if gold is not None:
            parts.append(
                f"{dataset_name(dataset)}: annot-mix is published with {accuracy} %, where gold labels lead to {there} %; "
                f"here gold labels lead to {text_of(gold)} %."
            )
    return "\n\n".join(parts)


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _accuracies(cells: list[Cell], dataset: str, pick: str) -> dict[str, Number]:
    """Return the classifiers' accuracies on a real crowd, by method."""
    there = [cell for cell in cells if cell["dataset"] == dataset]
    if not there:
        return {}
    (result,) = results(there, pick)
    rows = {m: result.numbers.get((m, REAL, "accuracy")) for m in (*result.methods, CEILING)}
    return {method: number for method, number in rows.items() if number is not None}
