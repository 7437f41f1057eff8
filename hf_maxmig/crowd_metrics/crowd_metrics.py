"""A metric of `evaluate`: the quality of posteriors learned from a crowd, measured on gold labels.

It does not import the package, so that it can be loaded from a folder or as a Space. Its results agree
with the package's.
"""

from typing import Any

import datasets
import evaluate
import numpy as np

_CITATION = """\
@inproceedings{cao2019maxmig,
  title={Max-{MIG}: an Information Theoretic Approach for Joint Learning from Crowds},
  author={Cao, Peng and Xu, Yilun and Kong, Yuqing and Wang, Yizhou},
  booktitle={International Conference on Learning Representations},
  year={2019}
}
"""

_DESCRIPTION = """\
Measures what was learned from a crowd's votes on gold labels: accuracy, negative log-likelihood, expected
calibration error and Brier score of the classifier, of the aggregator of the votes and of the forecaster,
which combines both; how far the annotators' recovered confusion matrices are from the true ones; and
whether matrices and posterior tell which votes are right.
"""

_KWARGS_DESCRIPTION = """
Args:
    predictions: (N, C), the classifier's log-probabilities (natural) or probabilities.
    references: (N,) integers, the gold labels, 0 to C - 1; -1 or -100 for an item without one, which
        is left out.
    aggregator: (N, C), the aggregator's; optional.
    forecast: (N, C), the forecaster's; optional.
    annotated: (N,) booleans, which items have votes: aggregator and forecaster are measured on these.
        By default all items.
    classes: C names, of the columns of `predictions`, `aggregator` and `forecast`; only needed with
        `reference_classes`.
    reference_classes: the names of the numbers in `references`, such as `features["label"].names`. Gold
        labels are then matched by name. By default the numbers are those of the columns.
    bins: the number of bins of the calibration error, of equal width over [0, 1]; 15 by default.
    confusion: (M, C, C), the recovered confusion matrices: annotator, true class, reported class;
        each row sums to one. It is compared with `true_confusion`, or with votes, or both.
    true_confusion: (M, C, C), how often each annotator said what on items of each true class. A row
        weighs as much as its sum: counts weigh rows by votes, probabilities weigh all rows equally.
    annotators: N lists of integers, 0 to M - 1: who voted on each item; -1 for padding.
    annotations: N lists of as many integers, 0 to C - 1: what they said, as numbers of the columns; -1
        for padding.
Returns:
    accuracy: share of items whose likeliest class is the gold label.
    negative_log_likelihood: mean over items of -log p_c at the gold label c, in nats; infinite if a gold
        label had no probability.
    calibration_error: sum_b (n_b / N) |accuracy_b - confidence_b| over the bins, 0 to 1.
    brier_score: mean over items of sum_c (p_c - [c is the gold label])^2, 0 to 2.
    aggregator_accuracy and so on, the same four: if `aggregator` is given.
    forecast_accuracy and so on, the same four: if `forecast` is given.
    confusion_error: if `confusion` is given: mean over the rows of their total variation,
        sum_r |found_r - true_r| / 2, each row weighted by its votes, 0 to 1; if `true_confusion` is given.
    annotator_accuracy, annotator_auroc, annotator_brier_score, annotator_calibration_error: if `annotators`
        and `annotations` are given: of P(annotator m is right about item i) = sum_c p_ic A^m_cc, by the
        matrices A of `confusion` and the posterior p of the forecaster, or of the classifier if there is no
        forecaster, against whether the vote is the gold label. The accuracy takes more than one half for
        right. The area under the ROC curve is absent if all votes are right or all are wrong. The Brier
        score is the mean squared difference, 0 to 1. The calibration error is that of the likelier of right
        and wrong, over 10 bins.
"""

NO_LABEL = (-1, -100)
_VOTE_BINS = 10  # of the calibration error of P(vote is right)
_MOST_BINS = 1_000_000
_MOST_COUNTED = 1e15  # no count of votes is larger
_TOLERANCE = 1e-3  # of probabilities that sum to one


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class CrowdMetrics(evaluate.Metric):
    """The metric. `evaluate.load` finds it as the only metric class of this module."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features(
                predictions=datasets.Sequence(datasets.Value("float64")),
                references=datasets.Value("int64"),
            ),
            reference_urls=["https://openreview.net/forum?id=BJg9DoR9t7"],
        )

    def _compute(
        self,
        *,
        predictions: Any,
        references: Any,
        aggregator: Any = None,
        forecast: Any = None,
        annotated: Any = None,
        classes: Any = None,
        reference_classes: Any = None,
        bins: int = 15,
        confusion: Any = None,
        true_confusion: Any = None,
        annotators: Any = None,
        annotations: Any = None,
    ) -> dict[str, float]:
        if not isinstance(bins, int) or isinstance(bins, bool) or bins < 1:
            raise ValueError(f"`bins` must be a whole number of at least 1, got {str(bins)[:60]}.")
        if bins > _MOST_BINS:
            raise ValueError(f"`bins` must be at most {_MOST_BINS:,}, got {str(bins)[:60]}.")
        if (annotators is None) != (annotations is None):
            missing = "annotators" if annotators is None else "annotations"
            raise ValueError(
                f"`annotators` and `annotations` must be given together, got no `{missing}`."
            )
        if confusion is None and not (true_confusion is None and annotators is None):
            what = "true_confusion" if annotators is None else "annotators"
            raise ValueError(
                f"`confusion` and `{what}` must be given together, got no `confusion`."
            )
        if confusion is not None and true_confusion is None and annotators is None:
            raise ValueError(
                "`confusion` and `true_confusion`, or `confusion` and `annotators`, must be given together, got no "
                "`true_confusion` and no `annotators`: there is nothing to compare it with."
            )
        h, log_h = probabilities("predictions", predictions)
        if (classes is None) != (reference_classes is None):
            missing = "classes" if classes is None else "reference_classes"
            raise ValueError(
                f"`classes` and `reference_classes` must be given together, got no `{missing}`."
            )
        if reference_classes is not None:
            references = by_name(references, reference_classes, classes)
            if len(classes) != h.shape[1]:
                raise ValueError(
                    f"`classes` must name the C = {h.shape[1]} columns, got {len(classes)} names."
                )
        labels = gold_labels(references, *h.shape)
        gold = ~np.isin(labels, NO_LABEL)
        crowd = (
            np.ones(len(h), dtype=bool) if annotated is None else numbers("annotated", annotated)
        )
        if crowd.shape != gold.shape or crowd.dtype != bool:
            raise ValueError(
                f"`annotated` must be (N,) = ({len(gold)},) booleans, got {crowd.shape} of type "
                f"{crowd.dtype}."
            )
        if not gold.any():
            raise ValueError(f"`references` must hold a gold label, got none at {len(gold)} items.")
        scores = scored(h[gold], log_h[gold], labels[gold], bins)
        believed = h
        for name, given in (("aggregator", aggregator), ("forecast", forecast)):
            if given is None:
                continue
            p, log_p = probabilities(name, given)
            if p.shape != h.shape:
                raise ValueError(
                    f"`{name}` must have the shape of `predictions` (N, C) = {h.shape}, got {p.shape}."
                )
            taken = gold & crowd
            if not taken.any():
                raise ValueError(
                    f"`{name}` must be measured on an annotated item with a gold label, got none: "
                    "leave it out."
                )
            its = scored(p[taken], log_p[taken], labels[taken], bins)
            believed = p if name == "forecast" else believed
            scores.update({f"{name}_{key}": value for key, value in its.items()})
        if true_confusion is not None:
            scores["confusion_error"] = confusion_error(confusion, true_confusion)
        if annotators is not None:
            matrices = confusion_matrices(confusion, h.shape[1])
            item, who, said = votes(annotators, annotations, len(h), *matrices.shape[:2])
            kept = gold[item]
            if not kept.any():
                raise ValueError(
                    "`annotators` must hold a vote on an item with a gold label, got none: leave it out."
                )
            item, who, said = item[kept], who[kept], said[kept]
            recognised = matrices.diagonal(axis1=1, axis2=2)
            # Rounded probabilities may sum to a little more than one.
            claimed = (recognised[who] * believed[item]).sum(axis=1).clip(max=1)
            its = claims_of_right(claimed, said == labels[item])
            scores.update({f"annotator_{key}": value for key, value in its.items()})
        return scores


def numbers(name: str, given: Any) -> np.ndarray:
    """Turn nested lists of numbers or booleans into an array.

    Raises:
        ValueError: if they differ in length, or hold anything else.

    Example:
        >>> numbers("confusion", [[1, 0], [0, 1]]).shape
        (2, 2)
    """
    try:
        array = np.asarray(given)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(
            f"`{name}` must hold numbers, got rows of different lengths or no numbers."
        ) from error
    if array.dtype.kind not in "biuf":
        raise ValueError(f"`{name}` must hold numbers, got some of type {array.dtype}.")
    return array


def probabilities(name: str, posterior: Any) -> tuple[np.ndarray, np.ndarray]:
    """Turn log-probabilities or probabilities into both.

    Args:
        name: the name of the argument, for errors.
        posterior: (N, C): log-probabilities if any number is negative, else probabilities.

    Returns:
        (N, C) probabilities and (N, C) natural log-probabilities, in float64.

    Raises:
        ValueError: if the rows are neither.

    Example:
        >>> p, log_p = probabilities("predictions", np.log([[0.25, 0.75]]))
        >>> p, log_p.round(3)
        (array([[0.25, 0.75]]), array([[-1.386, -0.288]]))
    """
    array = numbers(name, posterior).astype(np.float64)
    if array.ndim != 2 or array.shape[0] < 1 or array.shape[1] < 2:
        raise ValueError(
            f"`{name}` must have shape (N, C) with N of at least 1 and C of at least 2, got {array.shape}."
        )
    logs = bool((array < 0).any())
    with np.errstate(over="ignore"):  # overflow is refused below
        p = np.exp(array) if logs else array
        sums = p.sum(axis=1)
    wrong = ~(np.abs(sums - 1) <= _TOLERANCE)
    if wrong.any():
        i = int(wrong.argmax())
        what = "probabilities (no number is negative)"
        raise ValueError(
            f"`{name}` must hold {'log-probabilities' if logs else what}: they must sum to one, got "
            f"a sum of {sums[i]:.4g} at item {i}. Normalise logits by log_softmax."
        )
    with np.errstate(divide="ignore"):  # the log of zero is minus infinity
        return p, array if logs else np.log(p)


def gold_labels(references: Any, num_items: int, num_classes: int) -> np.ndarray:
    """Check (N,) gold labels.

    Raises:
        ValueError: if their number is not N, or one is not a class.

    Example:
        >>> gold_labels([1, -100, 0], num_items=3, num_classes=2)
        array([   1, -100,    0])
    """
    labels = numbers("references", references)
    if labels.shape != (num_items,) or labels.dtype.kind not in "iu":
        raise ValueError(
            f"`references` must be (N,) = ({num_items},) integers, got {labels.shape} of type "
            f"{labels.dtype}."
        )
    wrong = ((labels < 0) | (labels >= num_classes)) & ~np.isin(labels, NO_LABEL)
    if wrong.any():
        i = int(wrong.argmax())
        raise ValueError(
            f"`references` must lie in 0..{num_classes - 1}, or be -1 or -100 for no gold label, got "
            f"{labels[i]} at item {i}."
        )
    return labels


def by_name(references: Any, names: Any, classes: Any) -> np.ndarray:
    """Renumber gold labels in the order of the columns, by name.

    Args:
        references: (N,) integers: positions in `names`; -1 or -100 for none.
        names: the names of the numbers in `references`.
        classes: C names of the columns.

    Returns:
        (N,) positions in `classes`; -1 and -100 are kept.

    Raises:
        ValueError: if a gold label has no name or one that is not among `classes`, or a name in
            `classes` occurs twice.

    Example:
        >>> by_name([0, 1, -1], names=["dog", "cat"], classes=["cat", "dog"])
        array([ 1,  0, -1])
    """
    labels = gold_labels(references, len(references), len(names))
    place = {str(name): c for c, name in enumerate(classes)}
    if len(place) != len(classes):
        raise ValueError(f"`classes` must be unique names, got {list(classes)}.")
    missing = [
        str(names[label])
        for label in np.unique(labels[labels >= 0])
        if str(names[label]) not in place
    ]
    if missing:
        raise ValueError(
            f"`references` must be of the classes {', '.join(place)}, got {', '.join(missing)}."
        )
    number = np.array([place.get(str(name), -1) for name in names], dtype=np.int64)
    return np.where(labels >= 0, number[np.maximum(labels, 0)], labels)


def scored(p: np.ndarray, log_p: np.ndarray, labels: np.ndarray, bins: int) -> dict[str, float]:
    """Compare (N, C) probabilities, and their logs, with (N,) gold labels.

    Example:
        >>> p = np.array([[0.75, 0.25], [0.25, 0.75]])
        >>> told = scored(p, np.log(p), np.array([0, 0]), bins=15)
        >>> told["accuracy"], told["calibration_error"], told["brier_score"]
        (0.5, 0.25, 0.625)
        >>> round(told["negative_log_likelihood"], 3)
        0.837
    """
    correct, confidence = p.argmax(axis=1) == labels, p.max(axis=1)
    truth = np.eye(p.shape[1])[labels]
    return {
        "accuracy": float(correct.mean()),
        # Minus zero is zero.
        "negative_log_likelihood": float(0.0 - log_p[np.arange(len(labels)), labels].mean()),
        "calibration_error": calibration_error(confidence, correct, bins),
        "brier_score": float(np.square(p - truth).sum(axis=1).mean()),
    }


def calibration_error(confidence: np.ndarray, correct: np.ndarray, bins: int) -> float:
    """Compare (N,) claimed probabilities with (N,) booleans, whether the claim is right.

    Example:
        >>> calibration_error(np.array([0.75, 0.75]), np.array([True, False]), bins=10)
        0.25
    """
    # Each bin includes its upper end.
    place = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    claimed, right = np.bincount(place, confidence, bins), np.bincount(place, correct, bins)
    return float(np.abs(right - claimed).sum() / len(confidence))


def claims_of_right(claimed: np.ndarray, right: np.ndarray) -> dict[str, float]:
    """Compare (V,) probabilities that a vote is right with (V,) booleans, whether it is.

    Example:
        >>> told = claims_of_right(np.array([0.75, 0.5, 0.25]), np.array([True, True, False]))
        >>> told["accuracy"], told["auroc"], round(told["brier_score"], 3)
        (0.6666666666666666, 1.0, 0.125)
    """
    said = claimed > 0.5
    scores = {"accuracy": float((said == right).mean())}
    if right.any() and not right.all():
        # Only here: the other measures need no scikit-learn.
        from sklearn.metrics import roc_auc_score

        scores["auroc"] = float(roc_auc_score(right, claimed))
    scores["brier_score"] = float(np.square(claimed - right).mean())
    likelier = np.maximum(claimed, 1 - claimed)
    scores["calibration_error"] = calibration_error(likelier, said == right, _VOTE_BINS)
    return scores


def confusion_matrices(confusion: Any, num_classes: int) -> np.ndarray:
    """Check (M, C, C) confusion matrices.

    Raises:
        ValueError: if the shape is another, or a row is no distribution.

    Example:
        >>> confusion_matrices([[[1, 0], [0, 1]]], num_classes=2).shape
        (1, 2, 2)
    """
    matrices = numbers("confusion", confusion).astype(np.float64)
    if matrices.ndim != 3 or matrices.shape[1:] != (num_classes, num_classes):
        raise ValueError(
            f"`confusion` must have shape (M, C, C) with C = {num_classes}, got {matrices.shape}."
        )
    wrong = ~((matrices >= 0).all(axis=-1) & (np.abs(matrices.sum(axis=-1) - 1) <= _TOLERANCE))
    if wrong.any():
        m, c = (int(i) for i in np.argwhere(wrong)[0])
        raise ValueError(
            "`confusion` must have rows of probabilities that sum to one, got "
            f"{matrices[m, c].tolist()} for annotator {m}, true class {c}."
        )
    return matrices


def votes(
    annotators: Any, annotations: Any, num_items: int, num_annotators: int, num_classes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Flatten the votes of all items.

    Args:
        annotators: N lists of integers, who voted; -1 for padding.
        annotations: N lists of integers, what they said; -1 for padding.
        num_items: N.
        num_annotators: M.
        num_classes: C.

    Returns:
        (V,) item, (V,) annotator, (V,) annotation.

    Raises:
        ValueError: if the lists do not fit together, or hold another number.

    Example:
        >>> votes([[0, 2], [1, -1]], [[1, 1], [0, -1]], num_items=2, num_annotators=3, num_classes=2)
        (array([0, 0, 1]), array([0, 2, 1]), array([1, 1, 0]))
    """
    try:
        who, said = ([list(row) for row in rows] for rows in (annotators, annotations))
        lengths = [len(row) for row in who]
    except TypeError as error:
        raise ValueError(
            "`annotators` and `annotations` must hold a list for each item."
        ) from error
    if len(lengths) != num_items or lengths != [len(row) for row in said]:
        raise ValueError(
            f"`annotators` and `annotations` must be N = {num_items} lists of equal lengths, got {len(who)} and "
            f"{len(said)} lists, with {sum(lengths)} and {sum(map(len, said))} numbers."
        )
    item = np.repeat(np.arange(num_items), lengths)
    flat = []
    for name, rows, end in (
        ("annotators", who, num_annotators), ("annotations", said, num_classes)
    ):  # fmt: skip
        column = numbers(name, [number for row in rows for number in row])
        if len(column) and column.dtype.kind not in "iu":
            raise ValueError(f"`{name}` must hold integers, got some of type {column.dtype}.")
        wrong = (column < -1) | (column >= end)
        if wrong.any():
            v = int(wrong.argmax())
            raise ValueError(
                f"`{name}` must lie in 0..{end - 1} or be -1 for padding, got {column[v]} at item {item[v]}."
            )
        flat.append(column.astype(np.int64))
    given = (flat[0] >= 0) & (flat[1] >= 0)
    return item[given], flat[0][given], flat[1][given]


def confusion_error(confusion: Any, true_confusion: Any) -> float:
    """Total variation between rows of confusion matrices, each row weighted by its votes.

    Args:
        confusion: (M, C, C), as recovered; each row sums to one if the true row has votes.
        true_confusion: (M, C, C), counts or probabilities: annotator, true class, reported class.

    Returns:
        The mean, 0 to 1.

    Raises:
        ValueError: if the shapes differ, a number is negative, or a row does not sum to one.

    Example:
        >>> found = [[[0.5, 0.5], [0.0, 1.0]]]
        >>> confusion_error(found, true_confusion=[[[3, 0], [0, 1]]])  # three votes on the first row
        0.375
    """
    found = numbers("confusion", confusion).astype(np.float64)
    counts = numbers("true_confusion", true_confusion).astype(np.float64)
    if found.shape != counts.shape or found.ndim != 3 or found.shape[1] != found.shape[2]:
        raise ValueError(
            "`confusion` and `true_confusion` must have the same shape (M, C, C), got "
            f"{found.shape} and {counts.shape}."
        )
    for name, matrices in (("confusion", found), ("true_confusion", counts)):
        if not ((matrices >= 0) & np.isfinite(matrices)).all():
            raise ValueError(f"`{name}` must hold numbers of at least 0, got {matrices.min():.4g}.")
        if matrices.max(initial=0) > _MOST_COUNTED:
            raise ValueError(
                f"`{name}` must hold counts or probabilities, got {matrices.max():.4g}."
            )
    weight = counts.sum(axis=-1)
    if not weight.any():
        raise ValueError("`true_confusion` must hold at least one vote, got zeros.")
    sums = found.sum(axis=-1)
    wrong = (weight > 0) & (np.abs(sums - 1) > _TOLERANCE)
    if wrong.any():
        m, c = (int(i) for i in np.argwhere(wrong)[0])
        raise ValueError(
            f"`confusion` must have rows that sum to one, got {sums[m, c]:.4g} for annotator {m}, "
            f"true class {c}."
        )
    true = counts / np.where(weight > 0, weight, 1)[..., None]
    distance = np.abs(found - true).sum(axis=-1) / 2
    return float((distance * weight).sum() / weight.sum())
