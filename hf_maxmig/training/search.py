"""The search before a training: for a start that merges no classes, a rate and a prior.

If small networks on features can stand in for the classifier, they are trained in all settings at once
(`raced`). Otherwise the classifier itself is trained briefly, once for each setting. No gold label is used:
settings are judged by the gain on the votes of held-out items, and by whether the classifier uses all
classes that the votes use.
"""

import copy
import math
from typing import NamedTuple, cast

import torch
from datasets import Dataset
from torch import Tensor
from transformers.utils import logging

from ..data.collator import padded, padded_annotations
from ..data.columns import has_votes
from ..data.numbered import part_of
from ..metrics import LEAST_ITEMS, gain_parts
from ..model.aggregators import AGGREGATORS
from ..model.functional import NO_MASS, mutual_information_gain, vote_share
from ..model.heads import FeatureHead
from ..model.modeling_maxmig import MaxMIGModel
from ..model.surgery import output_layers
from ..model.votes import Votes, voted_classes
from .cross_fit import MOST_CELLS, network_steps
from .guards import merged_classes
from .informed_start import FOLDS, start_from_information, warm_up
from .item_features import missing_in_features
from .raced import Outcome, race
from .stopping import DivergedError
from .training import Training

logger = logging.get_logger(__name__)

# Multiples of the classifier's rate. The gain has a single maximum over them (see `recipes/benchmarks/defaults.py`):
# the search starts in the middle, tries the higher one, and the lower one only if the higher was worse.
MIDDLE, UP, DOWN = 10.0, 100.0, 1.0
PAPERS_AGGREGATOR = "weighted_average"
SHORT = 0.4  # share of the epochs; after a fifth the best setting is not yet clearly ahead
SEARCHED_ITEMS = 20_000  # at most
HELD_OUT = 0.2  # share of these, unless there is an evaluation set with votes
RACED_ITEMS = 5 * LEAST_ITEMS  # fewest items with votes
STARTS = 2  # if the first start merges classes, one from other halves of the items may not


class Try(NamedTuple):
    """A short training with one rate, one prior and one aggregator.

    Args:
        rate: of the aggregator.
        prior: of the model.
        aggregator: of the model.
        gain: on held-out votes, in nats; NaN if the training diverged.
        parts: `gain_parts` of each of these items; empty if the training diverged.
        merged: whether the classifier uses fewer classes than these votes do.
    """

    rate: float
    prior: str | list[float]
    aggregator: str
    gain: float
    parts: Tensor
    merged: bool

    def beats(self, other: "Try") -> bool:
        """Whether the gain is higher by more than a standard error of the difference."""
        if not (self.is_finite and other.is_finite):
            return self.is_finite
        difference = self.parts - other.parts
        return self.gain - other.gain > float(difference.std()) / len(difference) ** 0.5

    @property
    def tells_something(self) -> bool:
        """Whether the gain exceeds zero, the gain of knowing nothing, by more than a standard error."""
        return self.is_finite and self.gain > float(self.parts.std()) / len(self.parts) ** 0.5

    @property
    def is_finite(self) -> bool:
        """Whether the training did not diverge."""
        return math.isfinite(self.gain)

    @property
    def name(self) -> str:
        """The name of its gain in the log."""
        name = f"gain_{self.rate:g}" + ("_learned_prior" if self.prior == "learned" else "")
        return name + (f"_{self.aggregator}" if self.on_trial else "")

    @property
    def on_trial(self) -> bool:
        """Whether the aggregator is kept only if its gain is clearly higher than that of the paper's."""
        return AGGREGATORS[self.aggregator].on_trial


def can_start_from_information(training: Training) -> bool:
    """Whether each half of the training set can be predicted by a classifier of the other half."""
    args, dataset = training.args, training.train_dataset
    if args.fsdp or args.deepspeed or not isinstance(dataset, Dataset):
        return False
    # Several devices drop an incomplete batch, so there must be a complete one.
    least = args.train_batch_size * args.world_size if args.world_size > 1 else 1
    return len(dataset) // FOLDS >= least and has_votes(dataset)


def can_race(training: Training) -> bool:
    """Whether small networks on features can stand in for the classifier in the search: see `raced`.

    A `HeadClassifier` is such a network itself. A race needs the paper's aggregator and divergence, one
    device, and an output layer whose input are the features.
    """
    model, config = training.model, training.model.config
    return (
        training.searches
        and training.gold_labels is None
        and type(model) is MaxMIGModel
        and not isinstance(model.classifier, FeatureHead)
        and bool(output_layers(model.classifier, config.num_labels))
        and (config.aggregator, config.divergence) == (PAPERS_AGGREGATOR, "kl")
        and config.num_annotators * config.num_labels**2 <= MOST_CELLS
        and training.args.world_size == 1
        and has_votes(training.train_dataset, RACED_ITEMS)
        and int(voted_classes(training.crowd_of(training.train_dataset), config.num_labels).sum())
        > 1
    )


def start_by_race(training: Training) -> list[Try]:
    """Warm the classifier up on the votes, and start W and the prior from a race on its features.

    Args:
        training: its model is started.

    Returns:
        The best setting with each prior. Empty if the input of the output layer is no vector, or the
        same for all items; W and the prior are then unchanged.
    """
    args, model, dataset = training.args, training.model, training.train_dataset
    config = model.config
    crowd = padded(training.crowd_of(dataset))
    warm_up(training, vote_share(crowd.annotations, config.num_labels, crowd.weights), args.seed)
    voted = voted_classes([crowd], config.num_labels)
    rows = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(args.seed))
    rows = rows[crowd.annotated[rows]][:SEARCHED_ITEMS]
    features = training.features_of(model, part_of(dataset, rows.tolist()))
    if features is None or missing_in_features(features) is not None:
        return []
    crowd = crowd.rows(rows)
    held_out = torch.arange(len(rows)) < round(HELD_OUT * len(rows))
    model.prior.initialize(torch.zeros(config.num_labels), voted)
    follows = config.prior in ("learned", "vote_share")
    priors = {config.prior == "learned": None if follows else model.log_prior().detach().cpu()}
    if args.prior == "auto" and training.is_ours:
        priors[True] = None
    raced = race(
        features, crowd, held_out, config.num_annotators, priors, voted, args.smoothing, args.init_strength,
        network_steps(args, len(rows)), args.seed,
    )  # fmt: skip
    judged = [(one, _judged(training, one, crowd, held_out)) for one in raced]
    logger.info(
        "Gains on held-out votes in the race: %s.",
        "; ".join(f"{o.multiple:g} times the rate, prior {t.prior}: {t.gain:.3f}" for o, t in judged),
    )  # fmt: skip
    # For each prior the W with the highest gain, by whatever margin: neither W is the default.
    firsts = [
        max((pair for pair in judged if pair[0].learned == learned), key=lambda pair: pair[1].gain)
        for learned in priors
    ]
    tries = [measured for _, measured in firsts]
    taken = chosen(tries)
    best = next(one for one, measured in firsts if measured is taken)
    if best.learned and config.prior != "learned":
        model.use_prior("learned", [])
    with torch.no_grad():
        # Unscaled, g would be so confident from the first step that the classifier memorised its errors.
        model.aggregator.table.copy_(args.init_strength * best.weight.transpose(1, 2))
        if best.learned or config.prior == "vote_share":
            left_out = best.log_p <= NO_MASS
            model.prior.logits.copy_(torch.where(left_out, 2 * NO_MASS, best.log_p))
    return tries


def _judged(training: Training, one: Outcome, crowd: Votes, held_out: Tensor) -> Try:
    config = training.model.config
    log_h, log_g = one.log_h[held_out], one.log_g[held_out]
    parts = gain_parts(log_h, log_g, one.log_p, config.divergence)
    gain = float(mutual_information_gain(log_h, log_g, one.log_p, config.divergence))
    some, names = crowd.rows(held_out), config.class_names
    merged = merged_classes(
        "classifier", log_h.exp(), some.annotations, names, weights=some.weights
    )
    prior = "learned" if one.learned else config.prior
    # Whatever its rate in the race was: from now on W only has to follow the classifier.
    rate = MIDDLE * training.args.learning_rate
    return Try(rate, prior, config.aggregator, gain, parts, merged is not None)


def start_and_search(training: Training) -> list[Try]:
    """Start the model from information and try rates from there; repeat both if classes were merged.

    Where a race is possible it does both: see `start_by_race`.

    Args:
        training: its model is started.

    Returns:
        The trainings that were tried from the model's start; empty if there was nothing to try, or too
        few items to hold any out.
    """
    args, model = training.args, training.model
    before = copy.deepcopy(model.state_dict())
    if can_race(training):
        raced = start_by_race(training)
        if raced:
            return raced
        model.load_state_dict(before)
    best: list[Try] = []
    for attempt in range(STARTS):
        if attempt:
            kept = copy.deepcopy(model.state_dict())
            model.load_state_dict(before)
        start_from_information(training, seed=args.seed + attempt)
        tries = search_rate(training) if training.searches else []
        if attempt and not chosen(tries).gain > chosen(best).gain:
            model.load_state_dict(kept)
            break
        best = tries
        if not best or not chosen(best).merged:
            break
        logger.info("The start merged classes (gain %.3f): another is tried.", chosen(best).gain)
    if best and chosen(best).on_trial and not chosen(best).tells_something:
        # Single votes carry no information, and what the start has learned from them is noise.
        model.load_state_dict(before)
        crowd = training.crowd_of(training.train_dataset)
        cast(MaxMIGModel, model).initialize_crowd(crowd, args.smoothing, scale=args.init_strength)
    return best


def search_rate(training: Training) -> list[Try]:
    """Train copies of the model briefly, each with another rate, prior or aggregator.

    Args:
        training: all copies start from its model.

    Returns:
        The short trainings; empty if there are too few held-out votes, or too few items to train on.
    """
    args, dataset = training.args, training.train_dataset
    rows = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(args.seed))
    rows = rows[:SEARCHED_ITEMS]
    if has_votes(training.eval_dataset):
        held_out = training.eval_dataset
    else:
        number = round(HELD_OUT * len(rows))
        held_out, rows = part_of(dataset, rows[:number].tolist()), rows[number:]
    if args.world_size > 1 and len(rows) < args.train_batch_size * args.world_size:
        return []
    if not has_votes(held_out, LEAST_ITEMS):
        return []
    config = training.model.config
    given: str | list[float] = config.prior
    on_trial = AGGREGATORS[config.aggregator].on_trial
    usual = PAPERS_AGGREGATOR if on_trial else config.aggregator

    def attempt(multiple: float, prior: str | list[float], aggregator: str = usual) -> Try:
        return _try(training, multiple, prior, aggregator, rows.tolist(), held_out)

    tries = [attempt(MIDDLE, given), attempt(UP, given)]
    if chosen(tries) is tries[0]:
        tries.append(attempt(DOWN, given))
    # Only now: if W is too slow to learn how often classes occur, a learned prior wins for that alone.
    if args.prior == "auto" and training.is_ours:
        tries.append(attempt(chosen(tries).rate / args.learning_rate, "learned"))
    # At this rate only: the parameters of pairs of votes start at random, and stay so at a low rate.
    if on_trial:
        tries.append(attempt(MIDDLE, chosen(tries).prior, config.aggregator))
    logger.info(
        "Gains on held-out votes in short trainings: %s.",
        "; ".join(f"{t.aggregator} at {t.rate:g}, prior {t.prior}: {t.gain:.3f}" for t in tries),
    )
    return tries


def chosen(tries: list[Try]) -> Try:
    """Return the one with the highest gain, among those that clearly beat the ones before them.

    Later trainings are further from the defaults: another rate than the middle one, a learned prior,
    pairs of votes. A training that diverged beats nothing. If single votes carry no information, an
    aggregator of pairs is chosen without a higher gain: a short training is too short for it to learn.
    """
    best = tries[0]
    for one in tries[1:]:
        all_to_gain = one.on_trial and one.is_finite and not best.tells_something
        if one.beats(best) or all_to_gain:
            best = one
    return best


def _try(
    training: Training,
    multiple: float,
    prior: str | list[float],
    aggregator: str,
    rows: list[int],
    held_out: Dataset,
) -> Try:
    model, rate = copy.deepcopy(training.model), multiple * training.args.learning_rate
    if aggregator != model.config.aggregator:
        model.use_aggregator(aggregator)
    if prior != model.config.prior:
        model.use_prior(prior, training.crowd_of(training.train_dataset))
    try:
        output = training.train_briefly(model, rows, SHORT, rate=rate)(held_out)
    except DivergedError as error:
        logger.warning("A rate of %g is left out: %s", rate, error)
        return Try(rate, prior, aggregator, math.nan, torch.empty(0), False)
    annotations, *weights = padded_annotations(training.crowd_of(held_out))
    voted = (annotations >= 0).any(dim=1)
    log_h, log_g = (torch.from_numpy(table)[voted] for table in output.predictions[:2])
    log_p, config = model.log_prior().detach().cpu(), model.config
    parts = gain_parts(log_h, log_g, log_p, config.divergence)
    each = weights[0][voted] if weights else None
    merged = merged_classes(
        "classifier", log_h.exp(), annotations[voted], config.class_names, weights=each
    )
    assert output.metrics is not None
    return Try(rate, prior, aggregator, output.metrics["test_gain"], parts, merged is not None)
