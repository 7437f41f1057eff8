"""The crowd's side of the model: the class prior p, the aggregator g, and how both start.

The formulas are in `functional.py`; here is what has parameters.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from .functional import (
    NO_MASS,
    aggregate,
    aggregate_factored,
    confusion_counts,
    confusion_sums,
    initial_weight,
    label_pairs,
    posterior_of,
    vote_share,
    vote_share_prior,
)
from .kept_gradients import TableRows
from .votes import Votes

LEAST_PRIOR = (
    1e-12  # float32 just holds its inverse squared, summed over the pairs of 100,000 items
)
PRIORS = ("uniform", "vote_share", "learned")
# Chosen on seeds 0 to 7 of the crowds that `recipes/benchmarks/latent_seniors.py` measures on other seeds.
EMBEDDING_SCALE, PAIR_DROPOUT = 0.2, 0.5
MOST_NUMBERS = 2**27  # of a W that is written out: half a gigabyte
_AT_A_TIME = 2**22  # numbers of the vote share

Weigh = Callable[[Tensor, float | Tensor], Tensor]  # (M, C, R) counts and smoothing, to their logs


def check_prior(prior: str | list[float], num_classes: int) -> str | list[float]:
    """Check a prior as a config gives it, and normalise a list.

    Args:
        prior: one of `PRIORS`, or C positive numbers.
        num_classes: C.

    Returns:
        The name, or the list scaled to sum to one.

    Raises:
        ValueError: if the name is unknown, the list has another length than C, a number is not
            positive, or a class has less than `LEAST_PRIOR`.

    Example:
        >>> check_prior([8, 2], num_classes=2)
        [0.8, 0.2]
    """
    if isinstance(prior, str):
        if prior not in PRIORS:
            raise ValueError(
                f"`prior` must be one of {', '.join(PRIORS)} or a list of C = {num_classes} numbers, got {prior!r}."
            )
        return prior
    values = [float(value) for value in prior]
    if len(values) != num_classes:
        raise ValueError(
            f"`prior` must have C = {num_classes} numbers, one per class, got {len(values)}: {values}."
        )
    if not all(0 < value < 1e300 for value in values):
        raise ValueError(
            f"`prior` must be positive and finite, got {values}: a class of probability zero has no log; leave it out."
        )
    total = math.fsum(values)
    normal = [value / total for value in values]
    if not min(normal) >= LEAST_PRIOR:
        raise ValueError(
            f"`prior` must give each class {LEAST_PRIOR:g} of the probability or more, got {min(normal):g} of {values}: the "
            "gain divides by it, and float32 does not hold the sum over a batch. Leave the class out."
        )
    return normal


class Float32Module(nn.Module):
    """A module whose parameters stay in float32 or wider when the model around it is cast down.

    The aggregator adds up the evidence of many votes: in bfloat16 an update of 1e-3 to a weight of
    4 is lost.
    """

    # Parameters and buffers with one row per annotator.
    of_annotators: ClassVar[tuple[str, ...]] = ()

    @torch.no_grad()
    def reorder_annotators(self, order: Tensor) -> None:
        """Reorder the annotators: m becomes the former `order[m]`.

        Args:
            order: (M,) int64, a permutation.
        """
        for name in self.of_annotators:
            rows = getattr(self, name)
            if rows is not None:
                rows.copy_(rows[order.to(rows.device)])

    @torch.no_grad()
    def add_annotators(self, number: int) -> None:
        """Append annotators, all of whose numbers are zero.

        A parameter becomes another one: an optimizer that knows the former must be made anew.

        Args:
            number: how many.
        """
        for name in self.of_annotators:
            rows = getattr(self, name)
            if rows is None:
                continue
            longer = torch.cat([rows, rows.new_zeros(number, *rows.shape[1:])])
            is_trained = isinstance(rows, nn.Parameter)
            setattr(self, name, nn.Parameter(longer, rows.requires_grad) if is_trained else longer)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        def keep_wide(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if not moved.is_floating_point() or torch.finfo(moved.dtype).bits >= 32:
                return moved
            return tensor.to(moved.device)

        return super()._apply(keep_wide, recurse)


def check_any_label(found: bool) -> None:
    """Raise a ValueError if a training crowd has no vote to start from."""
    if not found:
        raise ValueError(
            "the training set must have at least one label by a known annotator, got none: "
            "check the columns `annotators` and `annotations`."
        )


class ClassPrior(Float32Module):
    """The prior p over classes (paper, Section 3.1), as logits on the simplex; trained if learned.

    Args:
        num_classes: C.
        prior: `"uniform"`; C numbers; `"vote_share"`, which stays uniform until the crowd is seen;
            or `"learned"`, which starts from the vote share and is then trained with the
            aggregator.

    A class that nobody voted for has no mass, see `initialize`. C numbers given by the user stay as
    they are.

    Example:
        >>> ClassPrior(2, prior=[0.8, 0.2])().exp()
        tensor([0.8000, 0.2000])
    """

    logits: Tensor

    def __init__(self, num_classes: int, prior: str | list[float] = "uniform") -> None:
        super().__init__()
        self.prior = check_prior(prior, num_classes)
        logits = self.initial_logits(num_classes)
        if prior == "learned":
            self.logits = nn.Parameter(logits)
        else:  # a buffer: `from_pretrained` makes every parameter trainable
            self.register_buffer("logits", logits)

    def initial_logits(self, num_classes: int) -> Tensor:
        """Return the (C,) logits before any crowd is seen."""
        if isinstance(self.prior, list):
            return torch.tensor(self.prior, dtype=torch.float32).log()
        return torch.zeros(num_classes, dtype=torch.float32)

    def forward(self) -> Tensor:
        """Return (C,) log p, in float32 or wider."""
        with torch.autocast(self.logits.device.type, enabled=False):
            left_out = self.left_out
            log_p = torch.where(left_out, -torch.inf, self.logits).log_softmax(dim=-1)
            return torch.where(left_out, NO_MASS, log_p)

    @property
    def left_out(self) -> Tensor:
        """(C,) bool, classes without mass: their logits are lower than any other class can have."""
        if isinstance(self.prior, list):
            return torch.zeros_like(self.logits, dtype=torch.bool)
        return self.logits <= 1.5 * NO_MASS

    @torch.no_grad()
    def initialize(self, shares: Tensor, voted: Tensor | None = None) -> None:
        """Follow the crowd, if this prior does, and leave out the classes that nobody voted for.

        Nothing is known about such a class, neither how often it occurs nor how annotators answer on
        it. If it had mass, training would move part of another class to it. Its log p is
        `functional.NO_MASS`, and g leaves it out (`functional.posterior_of`). The classifier may still
        predict it; the training items teach it not to.

        Args:
            shares: (C,), vote share summed over the annotated items.
            voted: (C,) bool, whether somebody voted for a class; by default the classes with mass so
                far.
        """
        if isinstance(self.prior, list):
            return
        left_out = self.left_out if voted is None else ~voted.to(self.logits.device)
        follows = self.prior in ("vote_share", "learned")
        logits = vote_share_prior(shares) if follows else torch.zeros_like(shares)
        self.logits.copy_(torch.where(left_out, 2 * NO_MASS, logits.to(self.logits)))


class WeightedAverageAggregator(Float32Module):
    """The paper's aggregator g (Section 3.1): one matrix per annotator, summed over the votes given.

    An aggregator class with `on_trial` is only a candidate. A training that asks for it keeps the
    weighted average unless the candidate's gain on held-out votes is clearly higher.

    Args:
        num_annotators: M.
        num_classes: C.

    Example:
        >>> aggregator = WeightedAverageAggregator(num_annotators=3, num_classes=2)
        >>> aggregator.weight.shape  # annotator, scored class, reported class
        torch.Size([3, 2, 2])
        >>> half = torch.tensor([0.5, 0.5]).log()
        >>> who, said = torch.tensor([[0, 2]]), torch.tensor([[1, 1]])
        >>> aggregator(half, who, said).exp().tolist()  # not trained yet
        [[0.5, 0.5]]
    """

    on_trial: ClassVar[bool] = False
    of_annotators: ClassVar[tuple[str, ...]] = ("table",)

    def __init__(self, num_annotators: int, num_classes: int) -> None:
        super().__init__()
        # Kept as (annotator, reported, scored), so that a vote reads one contiguous row; see
        # `functional.aggregate`.
        self.table = nn.Parameter(
            torch.zeros(num_annotators, num_classes, num_classes, dtype=torch.float32)
        )
        self.read = TableRows()

    @property
    def weight(self) -> Tensor:
        """W, a view of the table: (M, C, C): annotator, scored class, reported class."""
        return self.table.transpose(1, 2)

    def forward(
        self,
        log_p: Tensor,
        annotators: Tensor,
        annotations: Tensor,
        annotation_weights: Tensor | None = None,
    ) -> Tensor:
        """Aggregate (B, K) annotators, annotations and their weights under a (C,) log prior to (B, C) log g."""
        votes = annotators, annotations, annotation_weights
        return aggregate(self.weight, log_p, *votes, self.read)

    def reset(self, init: Any) -> None:
        """Go back to the state before any crowd was seen.

        Args:
            init: `transformers.initialization`, whose functions leave loaded tensors alone.
        """
        init.zeros_(self.table)

    def initialize(self, batches: Iterable[Votes], smoothing: float, scale: float = 1.0) -> Tensor:
        """Initialise W from the training crowd alone, in one pass (paper, equation 2).

        Args:
            batches: the crowd, part by part.
            smoothing: pseudo-labels added to each cell of a confusion matrix.
            scale: the factor on the initial W; 1 is the paper's start. Equation 2 counts each vote
                twice, in the vote share and as evidence, and so makes the first g too confident. A
                scale below one corrects that.

        Returns:
            (C,), the vote share summed over the annotated items, which the prior starts from.

        Raises:
            ValueError: if no item has a vote.
        """
        num_classes = self.table.shape[-1]
        votes = (Votes(*part) for part in batches)
        parts = ((vote_share(part.known, num_classes, part.weights), *part) for part in votes)
        return self.start_from(parts, smoothing, scale)

    @torch.no_grad()
    def start_from(
        self,
        parts: Iterable[tuple[Tensor, ...]],
        smoothing: float,
        scale: float,
        weigh: Weigh = initial_weight,
    ) -> Tensor:
        """Initialise W from beliefs about the items, in one pass.

        Args:
            parts: triples of (n, C) probabilities of the true class and the items' (n, K) annotators
                and annotations, padded with -1; with their weights as a fourth if they have any.
            smoothing: pseudo-labels added to each cell of a confusion matrix.
            scale: the factor on the initial W.
            weigh: turns counts into log-probabilities.

        Returns:
            (C,), the probabilities summed over the items.

        Raises:
            ValueError: if no item has a vote.
        """
        num_annotators, num_classes, _ = self.table.shape
        counts = torch.zeros(num_annotators, num_classes, num_classes)
        mass = torch.zeros(num_classes)
        for posterior, *tables in parts:
            who, said, *weights = tables
            counts += confusion_counts(posterior, who, said, num_annotators, *weights)
            mass += posterior.sum(dim=0)
        check_any_label(bool(mass.sum() > 0))
        self.table.copy_((weigh(counts, smoothing) * scale).transpose(1, 2))
        return mass

    @torch.no_grad()
    def strengthen(self, strength: float) -> None:
        """Multiply W, and every other term of a score, by `strength`: see `strength.py`."""
        self.table.mul_(strength)

    @torch.no_grad()
    def reorder_classes(self, order: Tensor) -> None:
        """Reorder the scored classes: r becomes the former `order[r]`; reported classes stay."""
        self.table.copy_(self.table[:, :, order].clone())


class InteractionAggregator(WeightedAverageAggregator):
    """The weighted average, with scores for pairs of votes.

    g(y) = softmax(sum_m W^m e(y^m) + b + sum_{a < b} A (v_a * v_b)). Each vote (m, r) has a row v of
    `embedding`, the products of all pairs of an item's votes are pooled (`functional.label_pairs`),
    and `mix` turns them into scores. A latent senior's answer may follow only from two juniors' votes
    together; the weighted average cannot express that posterior (the paper's conclusion leaves this
    open). Here, with enough features, any function of two votes can be added.

    The pairs start small and at random, so that the first g is nearly that of equation 2. They must
    not start at zero: products of zeros have no gradient, and where single votes carry no
    information training would stay there. Half of the pooled features are dropped in training;
    otherwise the pairs would be memorised.

    `weight` is W alone. `judge_annotators` and `find_copies`, which read it, therefore use only the
    classifier and the single votes, and leave out the pairs for every annotator. The forecast still
    excludes the vote in question, but it is weaker: an annotator whose votes are informative only
    together with another's looks random.

    Args:
        num_annotators: M.
        num_classes: C.
        num_features: D, features per vote.

    Example:
        >>> aggregator = InteractionAggregator(num_annotators=2, num_classes=2, num_features=1).eval()
        >>> signs = torch.tensor([[1.0], [-1.0]])
        >>> _ = aggregator.embedding.data.copy_(signs.expand(2, 2, 1))
        >>> _ = aggregator.mix.data.copy_(torch.tensor([[1.0, -1.0]]))
        >>> who, said = torch.tensor([[0, 1], [0, 1]]), torch.tensor([[1, 1], [0, 1]])
        >>> aggregator(torch.tensor([0.5, 0.5]).log(), who, said).exp()  # class 0: they agree
        tensor([[0.8808, 0.1192],
                [0.1192, 0.8808]], grad_fn=<ExpBackward0>)
    """

    on_trial = True
    of_annotators = ("table", "embedding")

    def __init__(self, num_annotators: int, num_classes: int, num_features: int = 32) -> None:
        super().__init__(num_annotators, num_classes)
        # (annotator, reported, feature) and (feature, scored)
        self.embedding = nn.Parameter(
            torch.empty(num_annotators, num_classes, num_features, dtype=torch.float32)
        )
        self.mix = nn.Parameter(torch.empty(num_features, num_classes, dtype=torch.float32))
        self.draw_pairs(nn.init.normal_)

    def draw_pairs(self, normal: Callable[..., Tensor]) -> None:
        """Initialise the pairs: the score of a pair has standard deviation `EMBEDDING_SCALE` squared.

        Args:
            normal: `torch.nn.init.normal_`, or that of transformers.
        """
        normal(self.embedding, std=EMBEDDING_SCALE)
        normal(self.mix, std=self.mix.shape[0] ** -0.5)

    def reset(self, init: Any) -> None:
        """Go back to the state before any crowd was seen, see `WeightedAverageAggregator.reset`."""
        super().reset(init)
        self.draw_pairs(init.normal_)

    def forward(
        self,
        log_p: Tensor,
        annotators: Tensor,
        annotations: Tensor,
        annotation_weights: Tensor | None = None,
    ) -> Tensor:
        """Aggregate (B, K) annotators, annotations and their weights under a (C,) log prior to (B, C) log g."""
        votes = annotators, annotations, annotation_weights
        log_g = super().forward(log_p, *votes)
        pairs = label_pairs(self.embedding, *votes, self.read)
        with torch.autocast(log_g.device.type, enabled=False):
            scores = dropout(pairs, PAIR_DROPOUT, self.training) @ self.mix
            return posterior_of(log_g + scores, log_p)

    @torch.no_grad()
    def initialize(self, batches: Iterable[Votes], smoothing: float, scale: float = 1.0) -> Tensor:
        """Initialise W by equation 2 and redraw the pairs, see `WeightedAverageAggregator.initialize`."""
        shares = super().initialize(batches, smoothing, scale)
        self.draw_pairs(nn.init.normal_)
        return shares

    @torch.no_grad()
    def strengthen(self, strength: float) -> None:
        """Multiply W and the scores of pairs, see `WeightedAverageAggregator.strengthen`."""
        super().strengthen(strength)
        self.mix.mul_(strength)

    @torch.no_grad()
    def reorder_classes(self, order: Tensor) -> None:
        """Reorder the scored classes: r becomes the former `order[r]`; reported classes stay."""
        super().reorder_classes(order)
        self.mix.copy_(self.mix[:, order].clone())


class FactoredAggregator(WeightedAverageAggregator):
    """The weighted average for crowds that are too large for one matrix per annotator.

    W^m = a_m P + s^m 1^T + diag(d^m), see `functional.aggregate_factored`: (C + 2 M) C + M numbers
    instead of M C^2. With C = 1,000 classes and M = 10,000 annotators that is 84 MB instead of
    40 GB. Annotators differ in how often they are right on each class and in how far they follow the
    crowd. They share which classes are mistaken for which; with two classes that is no restriction.

    It starts from equation 2. P is computed from all annotators together. Each annotator starts with
    their own accuracies, and their mistakes spread over the classes as the crowd's do. An annotator
    without votes starts as the crowd.

    `weight` writes W out as a copy, not a view, if it has at most `MOST_NUMBERS` numbers. Training
    does not need it.

    Args:
        num_annotators: M.
        num_classes: C.

    Example:
        >>> aggregator = FactoredAggregator(num_annotators=2, num_classes=3)
        >>> who, said = torch.tensor([[0, 1], [0, 1], [0, -1]]), torch.tensor([[0, 0], [1, 0], [2, -1]])
        >>> _ = aggregator.initialize([(who, said)], smoothing=0.1)
        >>> aggregator.weight.exp().sum(dim=2)  # rows of confusion matrices
        tensor([[1.0000, 1.0000, 1.0000],
                [1.0000, 1.0000, 1.0000]], grad_fn=<SumBackward1>)
        >>> sum(parameter.numel() for parameter in aggregator.parameters())
        23
    """

    of_annotators = ("scale", "shift", "diagonal")
    speaks_for: Tensor

    def __init__(self, num_annotators: int, num_classes: int) -> None:
        Float32Module.__init__(self)
        M, C = num_annotators, num_classes
        self.table = nn.Parameter(torch.zeros(C, C, dtype=torch.float32))  # P: reported, scored
        self.scale = nn.Parameter(torch.ones(M, dtype=torch.float32))
        self.shift = nn.Parameter(torch.zeros(M, C, dtype=torch.float32))  # annotator, scored
        self.diagonal = nn.Parameter(torch.zeros(M, C, dtype=torch.float32))  # annotator, reported
        # The scored class that each report speaks for: its own, until classes are reordered. It is
        # float32 because `from_pretrained` reads all tensors of an aggregator so.
        self.register_buffer("speaks_for", torch.arange(C, dtype=torch.float32))
        self.read = TableRows()

    @property
    def weight(self) -> Tensor:
        """W, written out: (M, C, C): annotator, scored class, reported class.

        Raises:
            ValueError: if it is too large.
        """
        M, C = self.diagonal.shape
        if M * C**2 > MOST_NUMBERS:
            raise ValueError(
                f"`weight` must have M C^2 <= {MOST_NUMBERS:,} numbers to be written out, got M = {M:,}, "
                f"C = {C:,}: read `weight_of(annotators)`, some at a time. `judge_annotators`, "
                "`find_copies` and `report` need all of it; `relabel` does not."
            )
        return self.weight_of(torch.arange(M, device=self.diagonal.device))

    def weight_of(self, annotators: Tensor) -> Tensor:
        """Write out W for some annotators.

        Args:
            annotators: (n,) int64.

        Returns:
            (n, C, C): annotator, scored class, reported class.
        """
        weight = self.scale[annotators, None, None] * self.table.T + self.shift[annotators, :, None]
        cells = self.speaks_for.long().expand(len(annotators), 1, -1)
        return weight.scatter_add(1, cells, self.diagonal[annotators, None, :])

    def forward(
        self,
        log_p: Tensor,
        annotators: Tensor,
        annotations: Tensor,
        annotation_weights: Tensor | None = None,
    ) -> Tensor:
        """Aggregate (B, K) annotators, annotations and their weights under a (C,) log prior to (B, C) log g."""
        return aggregate_factored(
            self.table.T, self.scale, self.shift, self.diagonal, log_p, annotators, annotations,
            self.speaks_for.long(), annotation_weights, self.read,
        )  # fmt: skip

    def reset(self, init: Any) -> None:
        """Go back to the state before any crowd was seen, see `WeightedAverageAggregator.reset`."""
        for parameter in (self.table, self.shift, self.diagonal):
            init.zeros_(parameter)
        init.ones_(self.scale)
        init.copy_(self.speaks_for, torch.arange(len(self.speaks_for), dtype=torch.float32))

    def initialize(self, batches: Iterable[Votes], smoothing: float, scale: float = 1.0) -> Tensor:
        """Initialise by equation 2, see the class and `WeightedAverageAggregator.initialize`."""
        step = max(1, _AT_A_TIME // len(self.speaks_for))
        parts = (
            Votes(*part)
            for tables in batches
            for part in zip(*(table.split(step) for table in tables), strict=True)
        )
        return super().initialize(parts, smoothing, scale)

    @torch.no_grad()
    def start_from(
        self,
        parts: Iterable[tuple[Tensor, ...]],
        smoothing: float,
        scale: float,
        weigh: Weigh = initial_weight,
    ) -> Tensor:
        """Initialise from beliefs about the items, see `WeightedAverageAggregator.start_from`.

        `weigh` gets two counts per annotator and class: how often they are right, and how often wrong.
        """
        M, C = self.diagonal.shape
        sums = confusion_sums(parts, M, C)
        check_any_label(bool(sums.mass.sum() > 0))
        pooled = initial_weight(sums.pooled[None], smoothing)[0].float()
        right, diagonal = pooled.diagonal(), torch.eye(C, dtype=torch.bool)
        wrong = pooled.masked_fill(diagonal, -torch.inf).logsumexp(dim=1)
        # Equation 2 with two reports, the right one and all C - 1 others, with their pseudo-labels.
        smoothings = torch.tensor([smoothing, (C - 1) * smoothing])
        own = weigh(torch.stack([sums.right, sums.wrong], dim=2), smoothings)
        seen = sums.said.sum(dim=1) > 0
        own = torch.where(seen[:, None, None], own, torch.stack([right, wrong], dim=1))
        shift = own[..., 1] - wrong
        self.table.copy_(pooled.T * scale)
        self.scale.fill_(1.0)
        self.shift.copy_(shift * scale)
        self.diagonal.copy_((own[..., 0] - right - shift) * scale)
        self.speaks_for.copy_(torch.arange(C))
        return sums.mass

    @torch.no_grad()
    def strengthen(self, strength: float) -> None:
        """Multiply all factors of W by a number, see `WeightedAverageAggregator.strengthen`."""
        for scores in (self.table, self.shift, self.diagonal):
            scores.mul_(strength)

    @torch.no_grad()
    def reorder_classes(self, order: Tensor) -> None:
        """Reorder the scored classes: r becomes the former `order[r]`; reported classes stay."""
        for scores in (self.table, self.shift):
            scores.copy_(scores[:, order].clone())
        self.speaks_for.copy_(torch.argsort(order)[self.speaks_for.long()])


AGGREGATORS: dict[str, type[WeightedAverageAggregator]] = {
    "weighted_average": WeightedAverageAggregator,
    "interaction": InteractionAggregator,
    "factored": FactoredAggregator,
}


def check_aggregator(name: str) -> None:
    """Check the name of an aggregator in a config.

    Args:
        name: one of `AGGREGATORS`.

    Raises:
        ValueError: if the name is unknown.

    Example:
        >>> check_aggregator("interaction")
    """
    if name not in AGGREGATORS:
        raise ValueError(f"`aggregator` must be one of {', '.join(AGGREGATORS)}, got {name!r}.")
