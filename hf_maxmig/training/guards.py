"""Guards: warnings of what has almost surely gone wrong in a training, once each, with cause and remedy.

Each guard is a pure function of numbers that training and evaluation compute anyway. It returns a
message or None, and uses no gold label. A `Watch` calls them during a training; `guards=False` turns
them off. Correct runs are silent.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.utils.data import Subset
from transformers import TrainerState
from transformers.utils import logging

from ..data.collator import padded_annotations
from ..data.columns import has_crowd_columns, has_votes
from ..data.flat_votes import FlatVotes
from ..model.functional import Posteriors, vote_share
from ..model.modeling_maxmig import CrowdModel
from ..model.outputs import PosteriorParts
from ..model.votes import Votes
from .class_names import clear_names, votes_by_class
from .training import votes_of
from .training_args import MaxMIGTrainingArguments

logger = logging.get_logger(__name__)

# A user need not set these. On ten digits with the paper's experts, correct models lie at ten times
# these limits or more, models that had merged classes at a twentieth or less.
LOST = 0.1  # of the mass that a class should have
ALIKE = 1e-3  # variance of P(first | one of two classes), as a share of its value if they are told apart
EXPECTED_ITEMS = 10  # a class with fewer expected items is not judged: it may have none
RENAMED = 0.1  # by how much another name must fit the votes of a class better, on average
GUARDED_ITEMS = 2000  # how many items the guards look at, plus 20 per class
CLASSES_FORMED = 0.75  # share of the training after which merged classes are likely to stay merged
_SHOWN = 5  # how many classes a message lists


def too_few_votes(votes: Tensor, items: int, num_classes: int) -> str | None:
    """Check before the training whether there are enough votes to tell which annotators to trust.

    There are too few if fewer than two annotators vote. There are also too few if items have fewer than
    two votes on average while most annotators have fewer than one vote per class: then neither the
    others' votes nor an annotator's own habits show who is right.

    Args:
        votes: (M,) int64, the number of votes by each annotator.
        items: the number of items with votes.
        num_classes: C.

    Returns:
        A warning, or None.

    Example:
        >>> too_few_votes(torch.tensor([30, 30]), items=30, num_classes=3)
        >>> print(too_few_votes(torch.tensor([30, 0]), items=30, num_classes=3))
        The votes are all by one annotator: nothing shows where they err but the classifier. Let others label some of the same items.
    """
    active = votes[votes > 0]
    if len(active) == 0:
        return "No training item has a vote: nothing can be learned. See `add_annotations`."
    if len(active) == 1:
        return (
            "The votes are all by one annotator: nothing shows where they err but the classifier. "
            "Let others label some of the same items."
        )
    mean, few = int(votes.sum()) / max(1, items), int((active < num_classes).sum())
    if mean < 2 and few > len(active) / 2:
        return (
            f"There are very few votes: {mean:.1f} per item, and {few} of {len(active)} annotators have "
            f"fewer than {num_classes}, one per class. It will be guesswork which of them to trust: collect "
            "a second vote on some items, or leave such annotators out."
        )
    return None


def merged_classes(
    who: str,
    posterior: Tensor,
    annotations: Tensor,
    classes: Sequence[str],
    usual: Tensor | None = None,
    weights: Tensor | None = None,
) -> str | None:
    """Check whether a posterior uses fewer classes than the votes do.

    A class c is lost if two things hold. Its mean probability is under a tenth (`LOST`) of what it should
    be: its share of the votes, or an even share if that is less, for the votes of an annotator who always
    says c do not show how often it occurs. And c is the likeliest class of fewer than `EXPECTED_ITEMS`
    items, for a rare class rightly has a small mass, and a larger share of careless votes.

    Two classes c and d are merged if the items do not differ in which of the two they are. Let
    J_cd = mean_i q_ic q_id, the probability that two answers drawn for an item are c and d. The variance
    of P(c | c or d), as a share of what it could be, is
    (J_cc J_dd - J_cd^2) / ((J_cc + J_cd) (J_dd + J_cd)), and c and d are merged if it is under `ALIKE`.

    The gain has such maxima: the classifier loses one of two classes that the crowd confuses, and the
    aggregator splits each evenly between the two. Both rows of W are then nearly equal.

    Args:
        who: whose posterior it is, for the message.
        posterior: (N, C), probabilities q of items that have votes.
        annotations: (N, K) int64, their votes, padded with -1.
        classes: C names.
        usual: (C,), how often the classes occur by another posterior that uses all of them; no class
            is expected more often than that.
        weights: (N, K), how much each vote counts; None if all count as 1.

    Returns:
        A warning, or None. None if every class should have fewer than `EXPECTED_ITEMS` items.

    Example:
        >>> said = torch.tensor([0, 1, 2]).repeat(20)[:, None]
        >>> right = torch.eye(3)[said[:, 0]]
        >>> merged_classes("classifier", right, said, ["cat", "dog", "emu"])
        >>> wrong = torch.eye(3)[[0, 1, 1]][said[:, 0]]
        >>> merged_classes("classifier", wrong, said, ["cat", "dog", "emu"]).split(". ")[0]
        'The classifier uses fewer classes than the crowd: emu (mostly dog in its place) is hardly ever its answer'
    """
    N, C = posterior.shape
    q = posterior.double()
    share = vote_share(annotations, C, weights).double()
    expected = share.mean(dim=0).clamp(max=1 / C)
    if usual is not None:
        expected = expected.minimum(usual)
    enough = expected * N >= EXPECTED_ITEMS
    answers = torch.bincount(q.argmax(dim=1), minlength=C)
    lost = enough & (q.mean(dim=0) < LOST * expected) & (answers < EXPECTED_ITEMS)
    pair = q.T @ q / N
    own = pair.diagonal()
    most = (own[:, None] + pair) * (own[None] + pair)
    apart = (own[:, None] * own[None] - pair**2) / torch.where(most > 0, most, 1.0)
    kept = enough & ~lost
    alike = ((apart < ALIKE) & kept[:, None] & kept[None]).triu(diagonal=1)
    found = []
    if lost.any():
        votes = votes_by_class([(q, annotations, *([] if weights is None else [weights]))])
        votes[lost] = -1
        names = [f"{classes[c]} (mostly {classes[int(votes[:, c].argmax())]} in its place)"
                 for c in lost.nonzero()[:, 0].tolist()]  # fmt: skip
        verb = "is hardly ever its answer" if len(names) == 1 else "are hardly ever its answers"
        found.append(f"{_listed(names)} {verb}")
    if alike.any():
        names = [f"{classes[c]} and {classes[d]}" for c, d in alike.nonzero().tolist()]
        found.append(f"it does not tell {_listed(names)} apart")
    if not found:
        return None
    return (
        f"The {who} uses fewer classes than the crowd: {'; '.join(found)}. Either the votes do not "
        "tell these classes apart, or training has merged them: train again with another seed and "
        "keep the run with the higher gain, or raise `num_train_epochs`."
    )


def permuted_classes(
    forecast: Tensor, annotations: Tensor, classes: Sequence[str], weights: Tensor | None = None
) -> str | None:
    """Check whether other class names fit the votes clearly better than the present ones.

    Args:
        forecast: (N, C), probabilities zeta of items that have votes.
        annotations: (N, K) int64, their votes, padded with -1.
        classes: C names.
        weights: (N, K), how much each vote counts; None if all count as 1.

    Returns:
        A warning, or None.

    Example:
        >>> said = torch.tensor([0, 1, 2]).repeat(20)[:, None]
        >>> permuted_classes(torch.eye(3)[said[:, 0]], said, ["cat", "dog", "emu"])
        >>> swapped = torch.eye(3)[[1, 0, 2]][said[:, 0]]
        >>> permuted_classes(swapped, said, ["cat", "dog", "emu"]).split(". ")[0][-48:]
        'exchanged (dog should be cat, cat should be dog)'
    """
    if not forecast.isfinite().all():  # a training that diverged shows it by its loss
        return None
    parts = [(forecast.double(), annotations, *([] if weights is None else [weights]))]
    votes, order = votes_by_class(parts), clear_names(lambda: parts)
    place = torch.arange(len(order))
    moved = order != place
    if not moved.any() or (votes[order, place] - votes.diagonal())[moved].mean() <= RENAMED:
        return None
    pairs = zip(order[moved].tolist(), place[moved].tolist(), strict=True)
    names = [f"{classes[c]} should be {classes[r]}" for c, r in pairs]
    return (
        "The forecast disagrees with the votes throughout: classes came out exchanged "
        f"({_listed(names)}). Call `trainer.name_classes()`, leave `name_classes=True`, or rename "
        "them in `id2label`."
    )


def overfitted(
    training: Sequence[float], held_out: Sequence[float], high: Sequence[float], ceiling: float
) -> str | None:
    """Check whether the gain rises on training items while it falls on others.

    It falls if the whole intervals of the last two evaluations lie below the best evaluation, while the
    training gain is higher than it was at the best one.

    Args:
        training: for each evaluation, the mean gain of the training steps since the previous one, in
            nats.
        held_out: the gain of the evaluations.
        high: the upper ends of their intervals.
        ceiling: the gain of a perfect model.

    Returns:
        A warning, or None.

    Example:
        >>> overfitted([0.5, 0.6, 0.7], [0.4, 0.5, 0.6], [0.5, 0.6, 0.7], ceiling=0.7)
        >>> overfitted([0.5, 0.7, 0.7], [0.4, 0.2, 0.1], [0.5, 0.3, 0.2], ceiling=0.7).split(": ")[0]
        'The model memorises the training items'
    """
    best = max(range(len(held_out)), key=lambda i: held_out[i], default=0)
    later = high[best + 1 :][-2:]
    if len(later) < 2 or max(later) >= held_out[best] or not training[-1] > training[best]:
        return None
    return (
        f"The model memorises the training items: its gain is {training[-1]:.3f} nats there, of "
        f"at most {ceiling:.3f}, and on held-out items it fell from {held_out[best]:.3f} to "
        f"{held_out[-1]:.3f}. Train for fewer epochs, set `load_best_model_at_end=True`, or lower "
        "`aggregator_learning_rate`."
    )


@dataclass
class Guards:
    """The warnings given in one training, and the numbers that further warnings need.

    Args:
        on: whether to warn at all.
    """

    on: bool
    _said: set[str] = field(default_factory=set)
    _sum: Tensor | float = 0.0
    _steps: int = 0
    _training: float = float("nan")
    _evaluations: dict[str, list[tuple[float, float, float]]] = field(default_factory=dict)

    def say(self, guard: str, message: str | None) -> None:
        """Warn, once per guard."""
        if self.on and message is not None and guard not in self._said:
            self._said.add(guard)
            logger.warning(message)

    def note_step(self, gain: Tensor) -> None:
        """Remember the gain of a training step, without moving it to the host."""
        if self.on:
            self._sum, self._steps = self._sum + gain.detach(), self._steps + 1

    def note_evaluation(self, name: str, gain: float, high: float) -> None:
        """Remember the gain of an evaluation of the set of that name."""
        if self._steps:
            self._training = float(self._sum) / self._steps
            self._sum, self._steps = 0.0, 0
        self._evaluations.setdefault(name, []).append((self._training, gain, high))

    def overfitted(self, name: str, ceiling: float) -> str | None:
        """Call `overfitted` on the evaluations of the set of that name."""
        training, held_out, high = zip(*self._evaluations[name], strict=True)
        return overfitted(training, held_out, high, ceiling)


class Watch:
    """Calls the guards in the course of one training, each at its time and on its numbers.

    Args:
        model: the model that is trained.
        args: of the training.
        on: whether to call any guard.
        speaks: whether to warn; only one of several processes does.
    """

    def __init__(
        self, model: CrowdModel, args: MaxMIGTrainingArguments, on: bool, speaks: bool = True
    ) -> None:
        self.model, self.args, self.on = model, args, on
        self.guards = Guards(on=on and speaks)
        self.asked_for_classes = False
        self._seen: Posteriors | None = None
        self._empty_steps: Tensor | int = 0
        self._empty_steps_told = False

    def tell_empty_steps(self) -> None:
        """Warn once if steps had too few items with votes, even with the guards off."""
        if not self._empty_steps_told and int(self._empty_steps):
            self._empty_steps_told = True
            logger.warning(
                "%d step(s) had no effect: they had fewer than the %d items with votes that %s needs. Use larger batches, "
                "or leave out items without votes.",
                int(self._empty_steps), self.model.least_items, self.model.method,
            )  # fmt: skip

    def begin(self, dataset: Any) -> None:
        """Before the training: check whether there are enough votes."""
        # A stream would have to be read to its end.
        if not self.on or not has_crowd_columns(dataset):
            return
        config, items = self.model.config, 0
        votes = torch.zeros(config.num_annotators, dtype=torch.int64)
        for part in votes_of(dataset, self.model):
            answers = FlatVotes.read([part]).answers()  # the parts of a soft vote are one vote
            votes += torch.bincount(answers.annotator, minlength=len(votes))
            items += int(part.annotated.sum())
        self.guards.say("votes", too_few_votes(votes, items, config.num_labels))

    def step(self, loss: Tensor, empty: Tensor) -> None:
        """After a training step: note its gain, and whether there was anything to learn."""
        self._empty_steps = self._empty_steps + empty
        if self.on and self.model.loss_is_minus_gain:
            self.guards.note_step(-loss)

    def see(self, posteriors: Posteriors) -> None:
        """While an evaluation is measured: keep its predictions."""
        if self.on:
            self._seen = posteriors

    def evaluated(
        self, dataset: Any, prefix: str, metrics: dict[str, float], state: TrainerState
    ) -> None:
        """After an evaluation in training: check for memorised items and for lost or exchanged classes.

        Args:
            dataset: the data set that was evaluated; a dictionary is skipped, for each of its data sets
                has been passed already.
            prefix: of the metrics.
            metrics: of the evaluation.
            state: of the training.
        """
        seen, self._seen = self._seen, None
        if not self.on or isinstance(dataset, dict):
            return
        gain, high = (metrics.get(f"{prefix}_{name}") for name in ("gain", "gain_high"))
        if self.model.loss_is_minus_gain and gain is not None and high is not None:
            self.guards.note_evaluation(prefix, gain, high)
            if not self.args.load_best_model_at_end:
                message = self.guards.overfitted(prefix, metrics[f"{prefix}_gain_ceiling"])
                self.guards.say("overfitted", message)
        formed = state.global_step >= CLASSES_FORMED * state.max_steps
        if formed and seen and has_votes(dataset) and len(seen[0]) == len(dataset):
            rows = self._some_rows(len(dataset))
            self._ask_for_classes(
                Posteriors(*(part[rows] for part in seen)),
                votes_of(dataset.select(rows), self.model),
            )

    def end(
        self,
        dataset: Any,
        predict: Callable[[Any], PosteriorParts],
    ) -> None:
        """After the training: check the classes on some training items, if no evaluation has.

        Args:
            dataset: the training set.
            predict: gives the posteriors of items, with their votes, part by part.
        """
        if not self.on or self.asked_for_classes or not hasattr(dataset, "__len__"):
            return
        rows = self._some_rows(len(dataset))
        some = dataset.select(rows) if isinstance(dataset, Dataset) else Subset(dataset, rows)
        parts = list(predict(some))
        posteriors = Posteriors(*(torch.cat([part[0][k] for part in parts]) for k in range(3)))
        self._ask_for_classes(posteriors, (Votes(*votes) for _, *votes in parts))

    def _some_rows(self, number: int) -> list[int]:
        step = -(-number // (GUARDED_ITEMS + 20 * self.model.config.num_labels))
        return list(range(0, number, max(1, step)))

    def _ask_for_classes(self, posteriors: Posteriors, crowd: Iterable[Votes]) -> None:
        self.asked_for_classes = True
        model = self.model
        annotations, *weights = padded_annotations(crowd)
        voted = (annotations >= 0).any(dim=1)
        if not voted.any():
            return
        h, g, forecast = (t[voted].exp() for t in posteriors)
        annotations, classes = annotations[voted], model.config.class_names
        each = weights[0][voted] if weights else None
        message = merged_classes("classifier", h, annotations, classes, weights=each)
        if message is None and hasattr(model, "aggregator"):
            message = merged_classes("aggregator", g, annotations, classes, h.mean(dim=0), each)
        self.guards.say("merged", message)
        named = self.args.name_classes and model.blind_to_class_names
        if message is None and not named:  # else they are named when training ends
            self.guards.say("permuted", permuted_classes(forecast, annotations, classes, each))


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
