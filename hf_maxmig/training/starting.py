"""How a training starts: the choice of the way, and what is found before the first step, as a `Start`.

A training starts by cross-fitting where that is possible (`cross_fit.py`). Elsewhere, if the method
maximises the gain, it starts from information and a search (`search.py`); otherwise from the votes
(paper, equation 2). Nothing here knows the trainer, which applies the `Start` in one place. Nothing
here changes the model that is trained.
"""

import copy
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers.utils import logging

from ..data.collator import padded
from ..data.columns import has_crowd_columns, has_votes
from ..data.numbered import first_batch, first_items
from ..metrics import LEAST_ITEMS
from ..model.functional import vote_share
from ..model.heads import FeatureHead
from ..model.modeling_maxmig import CrowdModel, MaxMIGModel
from ..model.surgery import output_layers
from ..model.votes import Votes, voted_classes
from .cross_fit import MOST_CELLS, CrossFitted, cross_fit, network_steps, votes_digest
from .distributed import from_first_process
from .gold import number_of, taught, trusted_columns
from .informed_start import start_from_votes_and_gold
from .item_features import missing_in_features, reads_items
from .search import can_start_from_information, chosen, search_rate, start_and_search
from .start import Start
from .training import Training
from .training_args import MaxMIGTrainingArguments

logger = logging.get_logger(__name__)


def way(training: Training) -> str:
    """Return how a training starts, even if the arguments leave it open.

    Args:
        training: before its first step.

    Returns:
        `cross_fit`, `information`, `vote_share` or `keep`.
    """
    args, model = training.args, training.model
    if args.init is not None:
        return args.init
    rates = args.searches_rate and not training.own_optimizer
    if rates and missing_for_cross_fit(training) is None:
        return "cross_fit"
    # Rivals start as their authors start them.
    asks_items = model.loss_is_minus_gain and training.start_from is None
    return "information" if asks_items and can_start_from_information(training) else "vote_share"


def find_start(training: Training, quiet: bool = True) -> Start:
    """Find the start of a training.

    Args:
        training: before its first step.
        quiet: whether to hide the progress bar.

    Returns:
        The start. For `vote_share` it holds no parameters: `initialize_from_votes` sets them.

    Raises:
        ValueError: if the start that the arguments ask for is not possible.
    """
    start = _by_cross_fitting(training, quiet) if way(training) == "cross_fit" else None
    return _by_search(training, quiet) if start is None else start


def initialize_from_votes(training: Training, model: CrowdModel) -> None:
    """Start a model from the votes alone (paper, equation 2).

    Args:
        training: the training whose votes are used.
        model: it is changed.
    """
    args = training.args
    # The scale of W is Max-MIG's own: rivals start from probabilities.
    own = {"scale": args.init_strength} if model.loss_is_minus_gain else {}
    model.initialize_crowd(
        training.crowd_of(start_items(training)), args.smoothing, _voted(training), **own
    )
    if model.loss_is_minus_gain and training.start_from is None and training.uses_gold_labels:
        start_from_votes_and_gold(dataclasses.replace(training, model=model))


def start_items(training: Training) -> Any:
    """Return the items whose votes start the aggregator and name the classes."""
    if isinstance(training.start_from, int):
        return first_items(training.train_dataset, training.start_from)
    return training.train_dataset if training.start_from is None else training.start_from


def _voted(training: Training) -> Tensor | None:
    """The classes that the whole crowd has voted for; None if the whole crowd starts the aggregator."""
    if training.start_from is None:
        return None
    num_classes = training.model.config.num_labels
    if not has_crowd_columns(training.train_dataset):  # a stream would have to be read to its end
        return torch.ones(num_classes, dtype=torch.bool)
    parts = itertools.chain(
        training.crowd_of(training.train_dataset), training.crowd_of(start_items(training))
    )
    return voted_classes(parts, num_classes)


# By cross-fitting


def missing_for_start(
    model: CrowdModel, args: MaxMIGTrainingArguments, dataset: Any, start_from: Any = None
) -> str | None:
    """Say what a training lacks for a start by cross-fitting.

    Args:
        model: the model to be trained.
        args: of the training.
        dataset: the training set.
        start_from: the trainer's argument of that name.

    Returns:
        The first thing that is missing; None if nothing is.

    Example:
        >>> from hf_maxmig.model.heads import HeadClassifier
        >>> head = HeadClassifier(HeadClassifier.config_class(input_size=2, num_labels=2))
        >>> model = MaxMIGModel.from_classifier(head, annotators=["ann", "bob"], divergence="pearson")
        >>> missing_for_start(model, MaxMIGTrainingArguments("out", use_cpu=True), None)
        "the divergence 'kl'"
    """
    config = model.config
    cells = config.num_annotators * config.num_labels**2
    needed = (
        (type(model) is MaxMIGModel, "a MaxMIGModel"),
        (getattr(config, "aggregator", None) == "weighted_average", "the aggregator 'weighted_average'"),
        (getattr(config, "divergence", None) == "kl", "the divergence 'kl'"),
        (getattr(config, "prior", None) != "learned", "a prior that is not learned"),
        (not (args.fsdp or args.deepspeed), "a whole model on each device, without FSDP or DeepSpeed"),
        (start_from is None, "no `start_from`"),
        (isinstance(dataset, Dataset) and has_votes(dataset, 3 * LEAST_ITEMS), f"a datasets.Dataset with votes on {3 * LEAST_ITEMS} items"),
        (cells <= MOST_CELLS, f"M C^2 of at most {MOST_CELLS:,}"),
        (_has_features(model.classifier, config.num_labels), "a `HeadClassifier`, or a pretrained classifier whose output layer is found"),
    )  # fmt: skip
    return next((what for holds, what in needed if not holds), None)


def _has_features(classifier: nn.Module, num_classes: int) -> bool:
    """Whether a classifier reads features as its input, or is pretrained and so has learned some."""
    if isinstance(classifier, FeatureHead):
        return True
    pretrained = getattr(getattr(classifier, "config", None), "_name_or_path", None)
    return bool(pretrained) and bool(output_layers(classifier, num_classes))


def missing_for_cross_fit(training: Training) -> str | None:
    """Say what is missing for a start by cross-fitting; None if nothing is.

    The input of a pretrained classifier's output layer is checked once, on two items.

    Args:
        training: before its first step.
    """
    model, unread = training.model, training.unread
    missing = missing_for_start(model, training.args, training.train_dataset, training.start_from)
    if missing is not None or isinstance(model.classifier, FeatureHead):
        return missing or unread.get(model.classifier)
    if model.classifier not in unread:
        batch = first_batch(training.train_dataset, training.collate, 2)
        inputs = {n: t.to(model.device) for n, t in batch.items() if isinstance(t, Tensor)}
        reads = reads_items(model.classifier, inputs, model.config.num_labels)
        unread[model.classifier] = None if reads else missing_in_features(None)
    return unread[model.classifier]


def _by_cross_fitting(training: Training, quiet: bool) -> Start | None:
    """Estimate the class of each item, with W and the prior.

    Returns:
        The start; None if the features turn out to be unusable and `init` does not ask for this start.
    """
    args, dataset, gold = training.args, training.train_dataset, training.gold_labels
    problem, features = missing_for_cross_fit(training), None
    if problem is None:
        features = training.features_of(training.model, dataset)
        problem = training.unread[training.model.classifier] = missing_in_features(features)
        if problem is not None and args.init is None:
            logger.warning(
                "The training does not start by cross-fitting, the default, which needs %s: it starts from `%s`.",
                problem, way(training),
            )  # fmt: skip
            return None
    if problem is not None or features is None:
        raise ValueError(f"`init='cross_fit'` needs {problem}. Use another `init`.")
    # The copy shares the classifier with the model.
    classifier = training.model.classifier
    model = copy.deepcopy(training.model, {id(classifier): classifier})
    crowd, num_classes = padded(training.crowd_of(dataset)), model.config.num_labels
    prior = None
    if not training.is_ours or args.prior != "auto":
        shares = vote_share(crowd.annotations, num_classes, crowd.weights)
        voted = shares.sum(dim=0) > 0
        if gold is not None:
            shares = taught(shares, trusted_columns(gold, num_classes))
            voted[gold[gold >= 0]] = True
        model.prior.initialize(shares.sum(dim=0), voted)
        prior = model.log_prior().detach().cpu()
    found = from_first_process(
        lambda: cross_fitted(model, args, features, crowd, prior, quiet, gold)
    )
    model.use_start(found.weight, found.log_p)
    return _as_start(training, model, "cross_fit", tried=found.likelihoods, items=found)


def cross_fitted(
    model: CrowdModel,
    args: MaxMIGTrainingArguments,
    features: Tensor,
    crowd: Votes,
    prior: Tensor | None = None,
    quiet: bool = True,
    gold: Tensor | None = None,
) -> CrossFitted:
    """Cross-fit for a training; the model stays as it is.

    Args:
        model: the model to be trained, for its numbers of annotators and classes.
        args: of the training.
        features: (N, D), of the training items.
        crowd: the votes on all items.
        prior: (C,) log prior, if it is given; else left-out votes choose one.
        quiet: whether to hide the progress bar.
        gold: (N,) int64, gold labels that the user hands over, -1 for an item without.

    Returns:
        The estimated classes of the items, W and the prior.
    """
    config = model.config
    found = cross_fit(
        features, crowd, config.num_annotators, config.num_labels, prior, args.seed,
        steps=network_steps(args, len(features)), quiet=quiet, gold=gold,
    )  # fmt: skip
    if not found.tells_apart:
        logger.warning(
            "The votes do not show that some annotators are better than others, so every vote counts the same: the "
            "forecasts follow the plurality of the votes, and the classifier learns from that. With more votes by each "
            "annotator this may change."
        )
    return dataclasses.replace(found, votes=votes_digest(crowd))


# From information, or from the votes


def _by_search(training: Training, quiet: bool) -> Start:
    init, can = way(training), can_start_from_information(training)
    _check_information(training, can)
    model = training.model
    searched = init == "information" or (can and training.searches)
    if not searched:
        return _as_start(training, model, init, keep_state=False)
    model = copy.deepcopy(model)
    with tqdm(desc="Short trainings, to find a start and a rate", unit="", disable=quiet) as bar:

        def train_briefly(*given: Any, **named: Any) -> Callable[[Any], Any]:
            bar.update()
            return training.train_briefly(*given, **named)

        counted = dataclasses.replace(training, model=model, train_briefly=train_briefly)
        if init == "vote_share":
            initialize_from_votes(training, model)
            tries = search_rate(counted)
        else:
            tries = start_and_search(counted)
    found: dict[str, Any] = {}
    if tries:
        best = chosen(tries)
        found = {"rate": best.rate, "tried": {one.name: one.gain for one in tries if one.is_finite}}
        if best.aggregator != model.config.aggregator:
            model.use_aggregator(best.aggregator)
        if best.prior != model.config.prior:
            model.use_prior(best.prior, training.crowd_of(training.train_dataset))
    return _as_start(training, model, init, **found)


def _as_start(
    training: Training, model: CrowdModel, init: str, keep_state: bool = True, **found: Any
) -> Start:
    """Make a start of a model's parameters, without the classifier's if that is the training's own."""
    state = {}
    if keep_state:
        own = model.classifier is not training.model.classifier
        state = {
            n: t for n, t in model.state_dict().items() if own or not n.startswith("classifier.")
        }
    used = number_of(training.gold_labels)
    return Start(init, gold_labels=used, state=state, **found).of(model)


def _check_information(training: Training, can: bool) -> None:
    """Raise if a start from information is asked for and is not possible."""
    args, model = training.args, training.model
    if args.init != "information":
        return
    if not model.loss_is_minus_gain:
        raise ValueError(
            f"`init` must be 'vote_share' or 'keep' for {model.method}, got 'information': only methods that maximise the "
            "gain start so."
        )
    if not can:
        raise ValueError(
            "`init` must be 'vote_share' or 'keep' unless the training set is a datasets.Dataset with votes and each "
            "half of it fills a batch, got 'information' with "
            f"{type(training.train_dataset).__name__}: a classifier of one half predicts the other."
        )
    if training.start_from is not None:
        given = training.start_from
        raise ValueError(
            "`start_from` must not be given with `init='information'`, which uses all training items, got "
            f"{f'{given} items' if isinstance(given, int) else type(given).__name__}."
        )
