"""Cross-fitting before a training: it finds how much each annotator counts, and the class of each item.

Networks on features of the items are trained by the gain, together with W. Each item is judged by networks
that have not seen it (`fold_networks`). Left-out votes decide which setting is best, and how much the
networks and the votes count (`left_out`). The result is a value, a `CrossFitted`, which the trainer applies
in one place and keeps whole in its checkpoints. No gold label is used, except those that the user hands
over (`gold`).
"""

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers.trainer_utils import has_length
from transformers.utils import logging

from ..data.collator import CrowdCollator, crowd_batches, padded
from ..model.annotator_rows import SMOOTHING, shrunk_weight
from ..model.functional import NO_MASS, aggregate, confusion_counts, forecast, vote_share_prior
from ..model.surgery import scale_outputs
from ..model.votes import Votes, voted_classes
from .class_names import clear_names
from .fold_networks import CrossFit, Raced, VotedClasses, divide, principal_components
from .gold import number_of, taught, trusted_columns, with_trusted
from .informed_start import informed_share
from .left_out import Judged, LeftOutVotes
from .one_voice import copies_by, joined, sharing_votes
from .tempering import GoldLabels, clearly_likelier
from .training_args import MaxMIGTrainingArguments

logger = logging.get_logger(__name__)

STEPS, STEPS_A_STEP = 500, 0.35  # steps of the networks: at most, and per step of the training
LEAST_STEPS = 200  # of a short training before the training, if an epoch has as many
BRIEF = 60  # steps of the networks that only weigh annotators
MULTIPLES = (10.0, 100.0)  # rates of W, as multiples of the networks' rate; the usual one first
# The cells of W of an annotator with this many votes learn in each step: they need no other rate than the usual one, and
# no second race if others copy them.
MANY_VOTES = 2_000
# Share of the votes by annotators with fewer, from which on the other rate is tried too.
SELDOM = 0.1
# If networks and annotators make the same mistakes, accuracies fall while the gain rises: then the early look is taken.
LOOKS = (0.25, 1.0)
MOST_JUDGED = 2_500  # items whose votes judge the settings of the race
# Scale of the first W: vote shares are overconfident. If W starts too weak, classes that most annotators confuse merge.
FIRST_STRENGTH = 0.75
# What the entropy of the votes' class shares lacks of that of equal shares, as a share of it, above which the votes'
# shares are taken for those of the classes. Less may be a bias of the annotators: five experts who each know some of
# ten classes lack 0.03. Two classes of 1 : 2 lack 0.08, ten of which one is five times the others 0.10.
UNEVEN = 0.05
TELLS_APART = 3.0  # standard errors by which telling annotators apart must predict votes better
BY_CHANCE = 1e-6  # how improbable votes for one class only must be
MOST_CELLS = 2**22  # cells of W, M C^2, that may be raced in all settings at once


@dataclass(frozen=True)
class CrossFitted:
    """The result of cross-fitting, with items in the order of the training set.

    Args:
        targets: (N, C), the targets of the classifier: class probabilities of each item by its votes and
            by networks that have not seen it. Zeros for an item without votes.
        log_h: (N, C), log-probabilities by those networks alone, tempered by how much they count.
        weight: (M, C, C), W: annotator, scored class, reported class.
        log_p: (C,), log of the class prior.
        classifier: how much a classifier counts beside the votes: the factor of the logits of networks
            that have not seen the item.
        likelihoods: for each setting that was tried, the mean log-likelihood of a left-out vote.
        tells_apart: whether left-out votes are predicted clearly better if annotators are distinguished
            than if all votes count the same; if not, all votes count the same in `targets` and `weight`.
        gold: (N,) int64, the gold labels that were used, -1 for an item without; None if none were.
        votes: digest of the votes that were used (`cross_fit.votes_digest`); empty if unknown.
    """

    targets: Tensor
    log_h: Tensor
    weight: Tensor
    log_p: Tensor
    classifier: float
    likelihoods: dict[str, float]
    tells_apart: bool = True
    gold: Tensor | None = None
    votes: str = ""

    def save(self, path: Path) -> None:
        """Write a safetensors file."""
        tensors = {name: getattr(self, name).contiguous() for name in _TENSORS}
        if self.gold is not None:
            tensors["gold"] = self.gold
        numbers = self.likelihoods | {"classifier": self.classifier, "apart": self.tells_apart}
        texts = {name: repr(float(value)) for name, value in numbers.items()}
        save_file(tensors, path, texts | {"votes": self.votes})

    @classmethod
    def load(cls, path: Path) -> "CrossFitted":
        """Read what `save` wrote."""
        with safe_open(path, "pt") as file:
            texts = file.metadata()
            votes = texts.pop("votes", "")  # an earlier version wrote none
            numbers = {name: float(value) for name, value in texts.items()}
            named: list[str] = file.keys()
            tensors = {name: file.get_tensor(name) for name in named}
        return cls(
            **tensors,
            classifier=numbers.pop("classifier"),
            tells_apart=bool(numbers.pop("apart")),
            likelihoods=numbers,
            votes=votes,
        )


_TENSORS = ("targets", "log_h", "weight", "log_p")


def cross_fit(
    features: Tensor,
    crowd: Votes,
    num_annotators: int,
    num_classes: int,
    prior: Tensor | None = None,
    seed: int = 0,
    steps: int = STEPS,
    quiet: bool = True,
    gold: Tensor | None = None,
) -> CrossFitted:
    """Find how much each annotator counts, and the class of each item.

    Args:
        features: (N, D), of the items.
        crowd: the votes on all items.
        num_annotators: M.
        num_classes: C.
        prior: (C,) log prior, if it is given. By default it is uniform if the votes are nearly even
            (`UNEVEN`). If they are not, it is that of the votes, unless the uniform prior predicts
            left-out votes clearly better.
        seed: of all random numbers.
        steps: of the networks.
        quiet: whether to hide the progress bar.
        gold: (N,) int64, gold labels that the user hands over (`hf_maxmig.training.gold`); negative
            for an item without. By default no gold label is used.

    Returns:
        The result, in all C classes.

    Raises:
        ValueError: if the votes name fewer than two classes.
    """
    voted = voted_classes([crowd], num_classes)
    if gold is not None:
        voted[gold[gold >= 0]] = True
    classes = VotedClasses(voted)
    if len(classes) < 2:
        raise ValueError(f"the votes must name two classes or more, got {len(classes)}.")
    crowd = Votes(*crowd)
    crowd = crowd.saying(classes.narrow(crowd.annotations))
    labelled = crowd.annotated
    trusted = (
        None if gold is None else trusted_columns(classes.narrow(gold.clamp(min=-1)), len(classes))
    )
    if gold is not None:
        labelled = labelled | (gold >= 0)
    given = None if prior is None else prior[classes.numbers].log_softmax(dim=0)
    total = 3 * min(BRIEF, steps) + 2 * steps
    with tqdm(desc="Cross-fitting", total=total, unit="step", disable=quiet) as bar:

        def tick() -> None:
            bar.total = max(bar.total, bar.n + 1)  # where copies share a vote, there are more steps
            bar.update()

        fitted = CrossFit(
            principal_components(features),
            divide(labelled, seed, first=None if gold is None else gold >= 0),
            len(classes), seed, tick,
        )  # fmt: skip
        found = _find(fitted, crowd, num_annotators, given, steps, trusted)
        bar.update(bar.total - bar.n)
    found = replace(found, gold=None if gold is None else gold.clamp(min=-1))
    if len(classes) == num_classes:
        return found
    return replace(
        found,
        targets=classes.spread(found.targets, 0.0),
        log_h=classes.spread(found.log_h, NO_MASS),
        weight=classes.spread_weight(found.weight),
        log_p=classes.spread(found.log_p, NO_MASS),
    )


def _find(
    fitted: CrossFit,
    crowd: Votes,
    M: int,
    given: Tensor | None,
    steps: int,
    trusted: Tensor | None,
) -> CrossFitted:
    labelled = crowd.annotated
    if trusted is not None:
        labelled |= (trusted != 0).any(dim=1)
    C, seed = fitted.num_classes, fitted.seed
    # Constant annotators tell nothing about items, and any forecast predicts their votes.
    silent = constant(crowd, M, C)
    spoke = torch.where(silent[crowd.annotators.clamp(min=0)], -1, crowd.annotations)
    crowd = crowd.saying(spoke)
    uniform = torch.full((C,), -math.log(C))
    known = fitted.fold >= 0  # the items that the networks learn from are enough to judge by
    rows = _drawn(known, trusted, seed)
    votes, best, likelihoods = _best_setting(fitted, crowd, M, given, steps, rows, trusted)
    combined, log_p, log_h = best[0], best[1].log_p, best[1].log_h
    drawn_to = log_p  # the posterior of a classifier that does not count
    shift = torch.zeros(C)  # of the classes' scores: only gold labels can show it
    if trusted is not None:
        combined, _, shift = GoldLabels(votes, log_h[rows], log_p).best(combined)

    def counted() -> Tensor:
        """Temper the networks by how much they count: (N, C) scores."""
        return combined.classifier * log_h + (1 - combined.classifier) * drawn_to + shift

    def forecasts() -> Tensor:
        """Forecast each item by `log_h` and `combined`: (N, C), zeros without votes."""
        log_g = aggregate(combined.weight, log_p, *crowd)
        log_forecast = forecast(counted().log_softmax(dim=-1), log_g, log_p)
        log_forecast = with_trusted(log_forecast, trusted)
        log_forecast[rows] = combined.log_forecast  # here copies share a vote only if both voted
        return torch.where(labelled[:, None], log_forecast.exp(), 0.0)

    fitted.seed = seed + 1
    # Two trainings are better than one; neither judges items that it has learned from.
    both = torch.stack([log_h, fitted.learn(forecasts(), steps)])
    log_h = both.logsumexp(dim=0).log_softmax(dim=-1)
    combined = votes.best(log_h[rows], log_p, log_h[rows].exp()[votes.item], surer=True)
    alike = votes.alike(log_h[rows])
    likelihoods |= {"search_taught": combined.score, "search_votes_alike": alike.score}
    tells_apart = votes.clearly_better(combined, alike, TELLS_APART)
    if trusted is not None:
        tempered = GoldLabels(votes, log_h[rows], log_p).best(combined)
        even = GoldLabels(votes, log_h[rows], uniform).alike(alike)
        tells_apart |= clearly_likelier(tempered, even)
        combined, alike = tempered.found, even.found
        shift = tempered.shift if tells_apart else even.shift
    if not tells_apart:
        combined, drawn_to = alike, uniform
    if len(rows) < int(known.sum()):
        by_some = forecasts()
        rows = known.nonzero()[:, 0]
        sure = None if trusted is None else trusted[rows]
        votes = LeftOutVotes(crowd.rows(rows), M, C, votes.groups, seed, sure)
        weight = votes.each
        if tells_apart:
            # One round, for W is known from some of the items: more would flatten it.
            posterior = by_some[rows][votes.item]
            weight = votes.learn(0.5 * (log_h[rows] + log_p), posterior, iterations=1)
        combined = votes.again(combined, counted()[rows], weight)
    targets, log_h = forecasts(), counted()
    order = torch.arange(C)
    if trusted is None:  # gold labels name their classes
        voices = 1 / torch.bincount(votes.groups)[votes.groups].float()
        voices = voices[crowd.annotators.clamp(min=0)]
        each = voices if crowd.weights is None else voices * crowd.weights
        order = clear_names(lambda: [(targets, crowd.known, each)])
    return CrossFitted(
        targets=targets[:, order],
        log_h=log_h.log_softmax(dim=-1)[:, order],
        weight=torch.where(silent[:, None, None], 0.0, combined.weight)[:, order],
        log_p=log_p[order],
        classifier=combined.classifier,
        likelihoods=likelihoods,
        tells_apart=tells_apart,
    )


class First(NamedTuple):
    """What the race starts from.

    Args:
        share: (N, C), the vote share weighted by agreement.
        weight: (M, C, C), W: annotator, scored class, reported class.
    """

    share: Tensor
    weight: Tensor


def first_weight(
    fitted: CrossFit,
    crowd: Votes,
    num_annotators: int,
    brief: int,
    smoothing: float,
    scale: float,
    trusted: Tensor | None = None,
) -> First:
    """Weigh annotators by their agreement with networks that have not seen the item; the networks then learn that.

    Args:
        fitted: the networks; they are trained.
        crowd: the votes on all items.
        num_annotators: M.
        brief: steps of the networks, each time.
        smoothing: pseudo-votes in each cell of the confusions.
        scale: of W.
        trusted: (N, C) of `trusted_columns`; None without gold labels.

    Returns:
        What the race starts from.
    """
    share = informed_share(
        [crowd], num_annotators, fitted.num_classes,
        lambda shares: with_trusted(fitted.learn(taught(shares, trusted), brief), trusted),
    )  # fmt: skip
    share = taught(share, trusted)
    who, said, *weights = crowd
    counts = confusion_counts(share, who, said, num_annotators, *weights)
    fitted.learn(share, brief)
    return First(share, scale * shrunk_weight(counts, smoothing))


def _best_setting(
    fitted: CrossFit,
    crowd: Votes,
    M: int,
    given: Tensor | None,
    steps: int,
    rows: Tensor,
    trusted: Tensor | None,
) -> tuple[LeftOutVotes, tuple[Judged, Raced], dict[str, float]]:
    """Race all settings, and judge them by left-out votes on some of the items.

    Where annotators copy, networks that learn from all their votes may merge classes that the copied one confuses.
    Then the best setting is trained again, and copies share a vote. This is not always better: copies who were not
    found outvote those who share.

    Returns:
        The votes that judge, with those in groups who count as one voice; the best setting with its
        result; and the likelihood of a left-out vote with each prior.
    """
    sure = None if trusted is None else trusted[rows]
    multiples = _multiples(crowd)

    def begin(learned: Votes) -> First:
        brief = min(BRIEF, steps)
        return first_weight(fitted, learned, M, brief, SMOOTHING, FIRST_STRENGTH, trusted)

    def on_rows(one: Raced) -> Raced:
        return one._replace(log_h=with_trusted(one.log_h[rows], sure))

    first = begin(crowd)
    priors = {"given": given} if given is not None else _priors(first.share)
    settings = [(log_p, multiple) for log_p in priors.values() for multiple in multiples]
    raced = fitted.race(crowd, first.weight, settings, steps, LOOKS, trusted)
    groups = copies_by([on_rows(one) for one in raced[-len(settings) :]], crowd.rows(rows))
    votes = LeftOutVotes(crowd.rows(rows), M, fitted.num_classes, groups, fitted.seed, sure)
    (judged, chosen), likelihoods = _best_of(raced, priors, votes, rows, len(multiples))
    votes, judged = joined(
        votes, judged, on_rows(chosen), lambda other: _judge(other, chosen, rows)
    )
    shared = sharing_votes(crowd, votes.groups)
    if shared is not crowd and len(multiples) > 1:
        best = [(chosen.log_p, chosen.multiple)]
        raced = fitted.race(shared, begin(shared).weight, best, steps, LOOKS, trusted)
        (other, one), _ = _best_of(raced, {"same": chosen.log_p}, votes, rows, 1)
        likelihoods["search_copies_share"] = other.score
        if not votes.clearly_better(judged, other):
            judged, chosen = other, one
    return votes, (judged, chosen), likelihoods


def _best_of(
    raced: list[Raced],
    priors: dict[str, Tensor],
    votes: LeftOutVotes,
    rows: Tensor,
    multiples: int,
) -> tuple[tuple[Judged, Raced], dict[str, float]]:
    """Judge what was raced.

    Args:
        raced: for each look and prior, the settings with each rate of W.
        priors: by name.
        votes: on these items.
        rows: (n,) int64, the items.
        multiples: how many rates of W there are.

    Returns:
        The best setting; and the likelihood of a left-out vote with each prior.
    """
    likelihoods: dict[str, float] = {}
    best: tuple[Judged, Raced] | None = None
    for name, log_p in priors.items():
        pairs = [(_judge(votes, one, rows), one) for one in raced if one.log_p is log_p]
        of_looks = [pairs[i : i + multiples] for i in range(0, len(pairs), multiples)]
        *early, judged = [max(look, key=lambda pair: pair[0].score) for look in of_looks]
        # Where an early look predicts votes as well, the last one still knows more of the items.
        for one in early:
            if votes.clearly_better(one[0], judged[0]):
                judged = one
        likelihoods[f"search_prior_{name}"] = judged[0].score
        # A later setting must be clearly better.
        if best is None or votes.clearly_better(judged[0], best[0]):
            best = judged
    assert best is not None
    return best, likelihoods


def _multiples(crowd: Votes) -> tuple[float, ...]:
    """List the rates of W to try: the usual one alone if nearly all votes are by annotators with many."""
    votes = torch.bincount(crowd.annotators[crowd.given])
    few = int(votes[votes < MANY_VOTES].sum())
    return MULTIPLES[:1] if few < SELDOM * int(votes.sum()) else MULTIPLES


def _priors(share: Tensor) -> dict[str, Tensor]:
    """List the priors to try: that of the votes first if they are uneven."""
    uniform = torch.full(share.shape[1:], -math.log(share.shape[1]))
    of_votes = vote_share_prior(share.sum(dim=0))
    lacking = float((of_votes.exp() * (of_votes - uniform)).sum())
    if lacking > UNEVEN * math.log(share.shape[1]):
        return {"votes": of_votes, "uniform": uniform}
    return {"uniform": uniform}


def _drawn(known: Tensor, trusted: Tensor | None, seed: int) -> Tensor:
    """Draw the items that settings are judged by, those with gold labels before the others.

    They are drawn at random because data sets are often sorted by class.
    """
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))
    worth = known.int() if trusted is None else known.int() + (trusted != 0).any(dim=1)
    order = order[worth[order].argsort(descending=True, stable=True)]
    return order[: min(MOST_JUDGED, int(known.sum()))].sort().values


def _judge(votes: LeftOutVotes, one: Raced, rows: Tensor) -> Judged:
    """Judge the result of a setting of the race on these items."""
    log_h = one.log_h[rows]
    _, without = votes.forecasts(log_h, one.weight, 1.0)
    return votes.best(log_h, one.log_p, without.exp())


def network_steps(args: MaxMIGTrainingArguments, num_items: int) -> int:
    """Return how many steps the networks are trained: more change little, fewer teach too little.

    Args:
        args: of the training.
        num_items: N.

    Example:
        >>> network_steps(MaxMIGTrainingArguments("out", use_cpu=True, max_steps=800), num_items=90)
        280
    """
    batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    epoch = math.ceil(num_items / batch)
    planned = args.max_steps if args.max_steps > 0 else epoch * (args.num_train_epochs or 1)
    return max(LEAST_STEPS, min(STEPS, round(planned * STEPS_A_STEP)))


def votes_digest(crowd: Votes) -> str:
    """Hash the votes, with their annotators and weights, in the order of the items.

    Args:
        crowd: (N, K) annotators and annotations, int64, padded with -1 to the widest K; and weights, if any.

    Returns:
        32 hexadecimal digits.

    Example:
        >>> ann = torch.zeros(2, 1, dtype=torch.int64)
        >>> votes_digest((ann, torch.tensor([[0], [1]]))) == votes_digest((ann, torch.tensor([[1], [0]])))
        False
    """
    digest = hashlib.blake2b(digest_size=16)
    for table in crowd:
        digest.update(f"{tuple(table.shape)}".encode())
        digest.update(table.contiguous().numpy().data)
    return digest.hexdigest()


def has_votes_of(found: CrossFitted, dataset: Any) -> bool:
    """Check whether a start was found by the votes of a data set; all of them are read.

    Args:
        found: the start; one that does not know its votes passes.
        dataset: with crowd columns.
    """
    if not found.votes:
        return True
    collator = CrowdCollator(*found.weight.shape[:2])
    return votes_digest(padded(crowd_batches(dataset, collator))) == found.votes


def check_found_for(found: CrossFitted, dataset: Any, gold: Tensor | None = None) -> None:
    """Raise if a checkpoint's start was found for other items, by other votes or by other gold labels.

    Args:
        found: the start of the checkpoint.
        dataset: the training set.
        gold: (N,) int64, its gold labels that the user hands over, -1 for an item without.

    Raises:
        ValueError: if the start has another number of items, if that number is unknown, if the items have
            other votes, or if other gold labels were used.
    """
    items = len(dataset) if has_length(dataset) else None
    if items != len(found.targets):
        raise ValueError(
            f"the training set must be that of the checkpoint, N = {len(found.targets)} items, got "
            f"{'a stream' if items is None else items}: the checkpoint holds the classifier's targets for each of them."
        )
    if not has_votes_of(found, dataset):
        raise ValueError(
            "the training set must be that of the checkpoint, with its votes in its order, got other votes on as many "
            "items: the classifier's targets were found by the votes of the checkpoint. Train anew, without "
            "`resume_from_checkpoint`."
        )
    used = torch.full((items,), -1) if found.gold is None else found.gold
    if not torch.equal(used, torch.full((items,), -1) if gold is None else gold):
        counts = [number_of(found.gold), number_of(gold)]
        raise ValueError(
            f"the gold labels in use must be those of the checkpoint, {counts[0]} of them, got "
            f"{f'others on {counts[1]} items' if counts[1] else 'none'}: set `use_gold_labels` as it was, or train anew."
        )


def temper(classifier: nn.Module, found: CrossFitted, inputs: dict[str, Tensor]) -> bool:
    """Temper a trained classifier by its last layer, as left-out votes suggest.

    It has learned targets that the votes made surer than the networks were. So it is only ever made less sure: where the
    networks count more than once, it is already as sure as they should have been.

    Args:
        classifier: it has learned the targets of the start.
        found: the start, whose networks count less than once.
        inputs: a batch for the classifier, to check that its outputs change as they should.

    Returns:
        Whether the classifier has changed.
    """
    # If all votes count the same, it is drawn towards equal probabilities: see `LeftOutVotes.alike`.
    even = torch.where(found.log_p > NO_MASS, 0.0, NO_MASS)
    shift = (1 - found.classifier) * (found.log_p if found.tells_apart else even)
    if scale_outputs(classifier, found.classifier, shift, inputs):
        logger.info(
            "The classifier's logits were multiplied by %.2f, by left-out votes.", found.classifier
        )
        return True
    logger.warning(
        "The classifier is more confident than left-out votes justify, but its output layer was not found: forecasts "
        "of new items give it too much weight."
    )
    return False


def constant(crowd: Votes, num_annotators: int, num_classes: int) -> Tensor:
    """Find the annotators who name one class whatever the item is: (M,) bool.

    An annotator whose votes all name one class may have seen no other class. They are constant only if
    the class's share among all votes would make so many equal votes less probable than one in a million.

    Args:
        crowd: the votes on all items.
        num_annotators: M.
        num_classes: C.

    Returns:
        True for constant annotators; all False if every annotator with votes is constant.

    Example:
        >>> who, truth = torch.arange(2).repeat(90, 1), torch.arange(90) % 3
        >>> constant(Votes(who, torch.stack([truth, torch.zeros_like(truth)], dim=1)), 2, 3)
        tensor([False,  True])
    """
    given = crowd.given
    cells = crowd.annotators[given] * num_classes + crowd.annotations[given]
    each = None if crowd.weights is None else crowd.weights[given].double()
    said = torch.bincount(cells, each, num_annotators * num_classes).view(-1, num_classes)
    votes, most = said.sum(dim=1), said.max(dim=1)
    chance = (said.sum(dim=0) / said.sum()).log()[most.indices]
    found = (votes == most.values) & (votes * chance < math.log(BY_CHANCE))
    return found & ~found[votes > 0].all()
