"""CROWDLAB: a weighted mean of a classifier that has not seen the item, and of the votes on it.

H. W. Goh, U. Tkachenko, J. Mueller. CROWDLAB: Supervised learning to infer consensus labels and quality
scores for data with multiple annotators. NeurIPS 2022 Human in the Loop Learning Workshop. It is the method
of cleanlab for data with several annotators; its quality score is the posterior here.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax
from torch import Tensor

from ..data.flat_votes import FlatVotes
from ..data.posteriors import WithPosterior
from ..model.configuration_maxmig import MaxMIGConfig
from ..model.votes import Votes
from .posterior_targets import PosteriorTargetModel, votes_in_full

TEMPERATURES = (0.1, 0.2, 0.5, 0.8, 1.0, 2.0, 3.0, 5.0, 8.0)  # then finer beside the best one
FULL = "CROWDLAB counts each vote in full"
LEAST = 1e-6  # the smallest weight, and the smallest error of a guess that weights are relative to


class CrowdlabConfig(MaxMIGConfig):
    """Configuration of `CrowdlabModel`.

    Args:
        folds: of the cross-validation: each item is judged by a classifier of the other folds. 5, as in
            cleanlab's tutorials.
        calibrated: whether the classifiers' probabilities first get the temperature under which they
            predict the votes best. Off, as in cleanlab: where votes are noisy, it makes the classifiers too unsure.

    Raises:
        ValueError: if there are fewer than two folds.

    Example:
        >>> CrowdlabConfig(annotators=["ann", "bob"]).folds
        5
    """

    model_type = "maxmig_crowdlab"
    _auto_class = None
    folds: int = 5
    calibrated: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.folds < 2:
            raise ValueError(
                f"`folds` must be 2 or more, got {self.folds}: a classifier of all items has seen each of them."
            )


class Crowdlab(NamedTuple):
    """What CROWDLAB finds in votes and in a classifier that has not seen the items.

    Args:
        posterior: (N, C), probabilities; zeros for an item without votes.
        consensus: (N,) int64, the class with the most votes, ties broken; -1 without votes.
        annotator_weight: (M,), how much each annotator's vote counts.
        classifier_weight: how much the classifier counts, as one more vote.
        temperature: by which the classifier's scores were divided.
    """

    posterior: NDArray[np.floating]
    consensus: NDArray[np.integer]
    annotator_weight: NDArray[np.floating]
    classifier_weight: float
    temperature: float


def crowdlab(
    log_h: NDArray[np.floating], votes: FlatVotes, num_annotators: int, calibrated: bool = False
) -> Crowdlab:
    """Combine votes with a classifier that has not seen the items; the formulas are in `CrowdlabModel`.

    Args:
        log_h: (N, C), log-probabilities of each item by a classifier that has not learned from it.
        votes: on the items.
        num_annotators: M.
        calibrated: whether to divide `log_h` by the temperature that fits the votes best.

    Returns:
        The posterior, and the weights.

    Example:
        >>> import torch
        >>> who, said = torch.tensor([[0, 1]] * 3), torch.tensor([[0, 0], [1, 1], [1, 0]])
        >>> found = crowdlab(np.log([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]), FlatVotes.read([Votes(who, said)]), 2)
        >>> found.consensus, found.posterior.round(1)[2]
        (array([0, 1, 1]), array([0.3, 0.7]))
    """
    item, who, said = (t.numpy() for t in (votes.item, votes.annotator, votes.annotation))
    num_items, num_classes = log_h.shape
    counts = np.zeros((num_items, num_classes))
    np.add.at(counts, (item, said), 1)
    each = counts.sum(axis=1)
    voted, several = each > 0, each > 1
    log_h = log_h.astype(np.float64)
    temperature = best_temperature(log_h[voted], counts[voted]) if calibrated else 1.0
    p = np.exp(log_softmax(log_h / temperature, axis=1))
    consensus = majority(counts, p)
    if several.any():
        right, weight, own = _weights(votes, num_annotators, counts, consensus, p)
    else:
        # Nothing tells annotators apart: each counts as much as the classifier, which says how often they are right.
        right = max(float((p[item].argmax(axis=1) == said).mean()), 1 / num_classes)
        weight, own = np.ones(num_annotators), 1.0
    # A vote is P for its class and (1 - P) / (C - 1) for each other.
    wrong = (1 - right) / (num_classes - 1)
    of_item = np.bincount(item, weight[who], num_items)
    posterior = own * p + wrong * of_item[:, None]
    np.add.at(posterior, (item, said), weight[who] * (right - wrong))
    posterior /= own + of_item[:, None]
    posterior[~voted] = 0
    return Crowdlab(posterior, np.where(voted, consensus, -1), weight, own, temperature)


def _weights(
    votes: FlatVotes,
    num_annotators: int,
    counts: NDArray[np.floating],
    consensus: NDArray[np.integer],
    p: NDArray[np.floating],
) -> tuple[float, NDArray[np.floating], float]:
    """Find P, the weights of the annotators, and that of the classifier; an item has two votes or more."""
    item, who, said = (t.numpy() for t in (votes.item, votes.annotator, votes.annotation))
    num_items, each = len(counts), counts.sum(axis=1)
    voted, several = each > 0, each > 1
    agreeing = counts[np.arange(num_items), consensus][several] / each[several]
    right = float(agreeing.mean())
    settled = consensus[several]
    guess = np.bincount(settled).argmax()
    error_of_guess = max(float((settled != guess).mean()), LEAST)
    # An annotator's other votes on the same items, and those of them that say the same.
    others = np.bincount(who, each[item] - 1, num_annotators)
    same = np.bincount(who, counts[item, said] - 1, num_annotators)
    shares = others > 0
    agreement = np.full(num_annotators, (same[shares] / others[shares]).mean())
    agreement[shares] = same[shares] / others[shares]
    weight = np.maximum(1 - (1 - agreement) / error_of_guess, LEAST)
    error = float((p[several].argmax(axis=1) != settled).mean())
    own = max(1 - error / error_of_guess, LEAST) * float(each[voted].mean()) ** 0.5
    return right, weight, own


def best_temperature(log_h: NDArray[np.floating], counts: NDArray[np.floating]) -> float:
    """Find the temperature under which a classifier predicts the votes best.

    Args:
        log_h: (N, C), log-probabilities.
        counts: (N, C), of the votes; each item counts once, however many it has.

    Returns:
        The best of `TEMPERATURES`, refined by four steps on either side.

    Example:
        >>> unsure = np.log([[0.6, 0.4], [0.4, 0.6]])  # and the votes are not
        >>> best_temperature(unsure, np.array([[1.0, 0.0], [0.0, 1.0]]))
        0.1
    """
    share = counts / counts.sum(axis=1, keepdims=True)

    def cost(temperature: float) -> float:
        log_p = log_softmax(log_h / temperature, axis=1)
        return float(-np.where(share > 0, share * log_p, 0.0).sum(axis=1).mean())

    grid = TEMPERATURES
    best = int(np.argmin([cost(t) for t in grid]))
    below = np.linspace(grid[max(best - 1, 0)], grid[best], 5)
    above = np.linspace(grid[best], grid[min(best + 1, len(grid) - 1)], 5)
    finer = [float(t) for t in (*below, *above[1:])]
    return finer[int(np.argmin([cost(t) for t in finer]))]


def majority(counts: NDArray[np.floating], p: NDArray[np.floating]) -> NDArray[np.integer]:
    """Find the class with the most votes on each item.

    Of tied classes it is the one that the classifier believes in most; then the one with the fewest
    votes in all, as in cleanlab; then the first.

    Args:
        counts: (N, C), of the votes.
        p: (N, C), probabilities of the classifier.

    Returns:
        (N,) int64.

    Example:
        >>> majority(np.array([[2, 1], [1, 1], [1, 1]]), np.array([[0.1, 0.9], [0.1, 0.9], [0.5, 0.5]]))
        array([0, 1, 1])
    """
    tied = counts == counts.max(axis=1, keepdims=True)
    believed = np.where(tied, p, -1.0)
    tied = believed == believed.max(axis=1, keepdims=True)
    return np.where(tied, counts.sum(axis=0), np.inf).argmin(axis=1)


class CrowdlabModel(PosteriorTargetModel):
    """Train on a weighted mean of the votes on an item and of classifiers that have not seen it.

    Before the training, the classifier learns the plurality of the votes in `folds` copies, and each
    judges the items of its fold: p_i. Then, with n_i votes on item i, and consensus c_i, their plurality:

    P = the mean share of votes that are the consensus, e = how often the most frequent consensus is not that
    of an item, both over items with two votes or more. A vote for class r is the distribution
    q_r = P for r and (1 - P) / (C - 1) for each other class. Annotator m has the weight
    w_m = max(0, 1 - (1 - a_m) / e), a_m how often other votes on m's items agree with m's; the classifier
    w_h = max(0, 1 - err / e) sqrt(mean n_i), err how often p_i's class is not the consensus.

    t_i = (w_h p_i + sum_m w_m q_{y_i^m}) / (w_h + sum_m w_m). The classifier starts again and learns t. It
    is trained `folds` + 1 times in all. Items without votes take no part.

    Args:
        config: the model's configuration.
        classifier: h, if already built; see `from_classifier`.

    References:
        H. W. Goh, U. Tkachenko, J. Mueller. CROWDLAB: Supervised learning to infer consensus labels and
        quality scores for data with multiple annotators. NeurIPS 2022 Human in the Loop Learning Workshop.
        Weights are of the consensus by plurality; cleanlab's default finds them once more, of the consensus by
        t. Where no item has two votes, cleanlab has no weights; here all are one, and P is how often the
        classifier agrees with a vote. cleanlab leaves the classifier to the user, who may train it on the consensus; here it learns t.

    Relations:
        An annotator has one number, so their mistakes are taken to be spread evenly over the classes;
        `aggnet` has a matrix for each. `aggregated` aggregates without the items. `init="cross_fit"` of
        Max-MIG asks classifiers that have not seen the item too, and learns matrices with them.

    Example:
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> head = HeadClassifier(HeadConfig(input_size=5, num_labels=2))
        >>> CrowdlabModel.from_classifier(head, num_annotators=3, folds=10).folds
        10
    """

    config_class = CrowdlabConfig
    method = "CROWDLAB"
    reference = (
        "Goh, Tkachenko, Mueller. CROWDLAB: Supervised learning to infer consensus labels and quality "
        "scores for data with multiple annotators. NeurIPS 2022 HILL Workshop."
    )

    @property
    def folds(self) -> int:  # type: ignore[override]
        """How many classifiers judge the items before the training."""
        return self.config.folds

    def initialize_crowd(
        self,
        batches: Iterable[Votes],
        smoothing: float = 0.01,
        voted: Tensor | None = None,
    ) -> None:
        """Check the votes before the cross-validation, as `prepare` does after it; there is nothing to start."""
        votes_in_full(batches, self.method, FULL)

    def prepare(self, dataset: Any, crowd: Iterable[Votes], unseen: Tensor | None = None) -> Any:
        """Add each item's posterior to the training set.

        Raises:
            ValueError: if there is no cross-validation, there are no votes, or they have weights.
        """
        if unseen is None:
            raise ValueError(
                "`unseen` must be given for CROWDLAB, got None: `CrowdTrainer.train` cross-validates before the first step."
            )
        votes = votes_in_full(crowd, self.method, FULL)
        num_annotators, calibrated = self.config.num_annotators, self.config.calibrated
        found = crowdlab(unseen.numpy(), votes, num_annotators, calibrated)
        return WithPosterior(dataset, found.posterior.astype(np.float32))
