"""Aggregated: a method that uses only the votes runs first, and its posterior trains the classifier.

The vote-only methods are crowd-kit's (D. Ustalov, N. Pavlichenko, B. Tseitlin. Learning from
Crowds with Crowd-Kit. Journal of Open Source Software 9(96), 2024), the optional extra
`hf_maxmig[peers]`. None of them is in the paper's comparison; in practice they are the most common.
"""

import warnings
from collections.abc import Iterable
from importlib import import_module
from typing import Any

import numpy as np
from torch import Tensor

from ..data.posteriors import WithPosterior
from ..model.configuration_maxmig import MaxMIGConfig
from ..model.votes import Votes
from .posterior_targets import PosteriorTargetModel, votes_in_full

ALGORITHMS = {
    # our name: crowd-kit's class
    "dawid_skene": "DawidSkene",
    "one_coin_dawid_skene": "OneCoinDawidSkene",
    "glad": "GLAD",
    "kos": "KOS",  # two classes only
    "mace": "MACE",
    "mmsr": "MMSR",
    "wawa": "Wawa",
    "zero_based_skill": "ZeroBasedSkill",
}


class AggregatedConfig(MaxMIGConfig):
    """Configuration of `AggregatedModel`.

    Args:
        algorithm: one of `ALGORITHMS`.
        algorithm_options: arguments of crowd-kit's class, such as `{"n_iter": 10}`; by default its
            own.

    Raises:
        ValueError: if the algorithm is unknown, or it is KOS and there are not two classes.

    Example:
        >>> AggregatedConfig(annotators=["ann", "bob"], algorithm="glad").algorithm
        'glad'
    """

    model_type = "maxmig_aggregated"
    _auto_class = None
    algorithm: str = "dawid_skene"
    algorithm_options: dict | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.algorithm not in ALGORITHMS:
            raise ValueError(
                f"`algorithm` must be one of {', '.join(ALGORITHMS)}, got {self.algorithm!r}."
            )
        if self.algorithm == "kos" and self.num_labels != 2:
            raise ValueError(f"`algorithm` kos must have two classes, got {self.num_labels}.")


class AggregatedModel(PosteriorTargetModel):
    """Train on the posterior of a vote-only method for each training item.

    t_ic = P(c | all votes on all items), from crowd-kit. For methods without probabilities (KOS,
    MMSR), t_ic is one for the answer. It is computed once, when training starts; items without votes
    take no part. The method does not see the items themselves, so it cannot separate classes that the
    annotators confuse.

    Args:
        config: the model's configuration; `algorithm` names the method.
        classifier: h, if already built; see `from_classifier`.

    Raises:
        ImportError: at the start of the training, if crowd-kit is not installed.

    References:
        A. P. Dawid, A. M. Skene. Maximum Likelihood Estimation of Observer Error-Rates Using the EM
        Algorithm. Applied Statistics 28(1), 1979. (`dawid_skene`, `one_coin_dawid_skene`)
        J. Whitehill et al. Whose Vote Should Count More: Optimal Integration of Labels from
        Labelers of Unknown Expertise. NeurIPS 2009. (`glad`)
        D. R. Karger, S. Oh, D. Shah. Budget-Optimal Task Allocation for Reliable Crowdsourcing
        Systems. Operations Research 62(1), 2014. (`kos`)
        D. Hovy et al. Learning Whom to Trust with MACE. NAACL 2013. (`mace`)
        Q. Ma, A. Olshevsky. Adversarial Crowdsourcing Through Robust Rank-One Matrix Completion.
        NeurIPS 2020. (`mmsr`)
        `wawa` (worker agreement with aggregate) and `zero_based_skill` are crowd-kit's.

    Relations:
        `majority_vote` is the simplest of them. `aggnet` is `dawid_skene` with the classifier in
        the loop.

    Example:
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> head = HeadClassifier(HeadConfig(input_size=5, num_labels=2))
        >>> AggregatedModel.from_classifier(head, num_annotators=3, algorithm="wawa").method
        'Wawa'
    """

    config_class = AggregatedConfig
    reference = "Ustalov, Pavlichenko, Tseitlin. Learning from Crowds with Crowd-Kit. JOSS 2024."

    @property
    def method(self) -> str:  # type: ignore[override]
        """The name of the algorithm in crowd-kit."""
        return ALGORITHMS[self.config.algorithm]

    def prepare(self, dataset: Any, crowd: Iterable[Votes], unseen: Tensor | None = None) -> Any:
        """Add each item's posterior to the training set.

        Raises:
            TypeError: if the training set is a stream.
        """
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            raise TypeError(
                f"`train_dataset` must have a length for {self.method}, got "
                f"{type(dataset).__name__}: all votes are aggregated before the first step."
            )
        options = self.config.algorithm_options or {}
        return WithPosterior(
            dataset, aggregate_labels(crowd, self.method, self.config.num_labels, **options)
        )


def aggregate_labels(
    crowd: Iterable[Votes], algorithm: str, num_classes: int, **options: Any
) -> np.ndarray:
    """Run a vote-only method of crowd-kit over a whole crowd.

    Args:
        crowd: the crowd, part by part, in the order of the items.
        algorithm: the name of crowd-kit's class.
        num_classes: C.
        **options: arguments of the class.

    Returns:
        (N, C) float32 probabilities; zeros for an item without votes.

    Raises:
        ImportError: if crowd-kit is not installed.
        ValueError: if there are no votes, they have weights, or the method fails to give probabilities.
    """
    try:
        methods = import_module("crowdkit.aggregation")
        pandas = import_module("pandas")
    except ImportError as error:
        raise ImportError(
            f"{algorithm} needs crowd-kit: install it by `pip install 'hf_maxmig[peers]'`."
        ) from error
    flat = votes_in_full(crowd, algorithm, "crowd-kit counts each vote in full")
    numbers = {"task": flat.item, "worker": flat.annotator, "label": flat.annotation}
    votes = pandas.DataFrame({name: column.numpy() for name, column in numbers.items()})
    method = getattr(methods, algorithm)(**options)
    posterior = np.zeros((flat.num_items, num_classes), dtype=np.float32)
    with warnings.catch_warnings():
        # Users cannot change how crowd-kit calls pandas and numpy.
        for category in (DeprecationWarning, FutureWarning, RuntimeWarning):
            warnings.simplefilter("ignore", category)
        method.fit(votes)
        probabilities: Any = getattr(method, "probas_", None)
        answer: Any = getattr(method, "labels_", None)
        if probabilities is None and answer is None:
            # It has only weighted the annotators. (Its own `predict` fails with a recent scikit-learn.)
            vote = methods.MajorityVote().fit(votes, skills=method.skills_)
            answer = vote.labels_
            probabilities = vote.probas_ if hasattr(method, "predict_proba") else None
    if probabilities is not None:
        probabilities = probabilities.fillna(0.0)
        posterior[np.ix_(probabilities.index.to_numpy(), probabilities.columns.to_numpy())] = (
            probabilities.to_numpy()
        )
    else:
        posterior[answer.index.to_numpy(), answer.to_numpy().astype(int)] = 1
    total = posterior.sum(axis=1)
    if (posterior < 0).any() or not np.allclose(total[votes["task"].unique()], 1, atol=1e-3):
        raise ValueError(
            f"{algorithm} must give each item probabilities, got none for some: the crowd is too "
            "small, or violates the assumptions of the method."
        )
    return posterior
