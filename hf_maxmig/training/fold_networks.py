"""Networks of cross-fitting: their posteriors of items that they have not learned from.

A classifier's probabilities on the items it was trained on repeat the votes on them. Here the items are
divided into folds, and each item is judged by a small network that was trained on the other folds. The
networks read features of the items. All are trained at once, as one batch of matrices, so their cost does
not depend on the classifier that the features come from.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

from ..model.functional import log_softmax
from ..model.votes import Votes

FOLDS = 3
HIDDEN, DROPOUT, RATE, BATCH = 128, 0.5, 1.5e-3, 64  # the paper's head on LabelMe
MOST_IN_BATCH, EPOCH = 256, 80  # a batch is larger where an epoch would have more steps
MOST_FEATURES = 128  # principal components; more cost time and change little
UNLIKE = 30.0  # how many times as much some features differ as others, if they are of unlike scales
MOST_ITEMS = 20_000  # that the networks learn from; the others are judged by all of them
RISE = 0.3  # share of the steps over which W's rate rises, while the classes form
PRIOR_MULTIPLE = 100.0  # of the networks' rate, of a learned prior: C numbers, with a way to go


class Raced(NamedTuple):
    """What one setting of the race came to.

    Args:
        log_p: (C,), the prior that it was given, or has learned.
        multiple: of the classifier's rate, W's.
        log_h: (N, C), log-probabilities by networks that have not learned from the item.
        weight: (M, C, C), W: annotator, scored class, reported class.
    """

    log_p: Tensor
    multiple: float
    log_h: Tensor
    weight: Tensor


class VotedClasses:
    """The classes that somebody voted for: the others have no part in what is found before a training.

    Args:
        voted: (C,) bool.

    Example:
        >>> classes = VotedClasses(torch.tensor([True, False, True]))
        >>> classes.narrow(torch.tensor([0, 2, -1])), classes.spread(torch.tensor([0.3, 0.7]), empty=0.0)
        (tensor([ 0,  1, -1]), tensor([0.3000, 0.0000, 0.7000]))
    """

    def __init__(self, voted: Tensor) -> None:
        self.numbers, self.num_classes = voted.nonzero()[:, 0], len(voted)
        self._place = torch.full((len(voted) + 1,), -1)
        self._place[self.numbers] = torch.arange(len(self.numbers))

    def __len__(self) -> int:
        """How many there are."""
        return len(self.numbers)

    def narrow(self, annotations: Tensor) -> Tensor:
        """Number votes among these classes alone; -1 stays."""
        return self._place[annotations]

    def spread(self, table: Tensor, empty: float) -> Tensor:
        """Put a (..., number of these) table among all classes: (..., C), `empty` in the others."""
        wide = table.new_full((*table.shape[:-1], self.num_classes), empty)
        wide[..., self.numbers] = table
        return wide

    def spread_weight(self, weight: Tensor) -> Tensor:
        """Put an (M, number, number) W among all classes: (M, C, C), zeros in the others."""
        return self.spread(self.spread(weight, 0.0).mT, 0.0).mT.contiguous()


def principal_components(features: Tensor, most: int = MOST_FEATURES) -> Tensor:
    """Centre features, scale them, and keep the directions in which they differ most.

    All are divided by one number: in what a network has computed, a feature that differs little says
    little. Where some differ hundreds of times as much as others, as the columns of a table do, each is
    divided by its own standard deviation.

    Args:
        features: (N, D).
        most: how many directions at the most.

    Returns:
        (N, min(D, most)) float32, with a mean square of one.

    Example:
        >>> principal_components(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
        tensor([[-1.4142,  0.0000],
                [ 1.4142,  0.0000]])
    """
    centred = features.float() - features.float().mean(dim=0)
    deviation = centred.square().mean(dim=0).sqrt()
    some = deviation[deviation > 1e-6]
    if len(some):
        one, many = some.max() / some.median(), some.quantile(0.9) / some.quantile(0.1)
        if max(one, many) > UNLIKE:
            centred = centred / torch.where(deviation > 1e-6, deviation, 1.0)
    if centred.shape[1] > most:
        directions = torch.linalg.eigh(centred.T @ centred / len(centred)).eigenvectors
        centred = centred @ directions[:, -most:]
    return centred / centred.square().mean().sqrt().clamp(min=1e-6)


def divide(
    learned: Tensor,
    seed: int,
    folds: int = FOLDS,
    most: int = MOST_ITEMS,
    first: Tensor | None = None,
) -> Tensor:
    """Divide items into folds at random.

    Args:
        learned: (N,) bool, which items there is something to learn from.
        seed: of the division.
        folds: how many.
        most: how many items are divided at the most.
        first: (N,) bool, items that are divided before the others, so that no fold lacks them.

    Returns:
        (N,) int64, the fold of each item; -1 for one that no network learns from.

    Example:
        >>> divide(torch.tensor([True, True, False]), seed=0, folds=2).sort().values
        tensor([-1,  0,  1])
    """
    order = torch.randperm(len(learned), generator=torch.Generator().manual_seed(seed))
    if first is not None:
        order = order[first[order].int().argsort(descending=True, stable=True)]
    chosen = order[learned[order]][:most]
    fold = torch.full((len(learned),), -1)
    fold[chosen] = torch.arange(len(chosen)) % folds
    return fold


class Networks:
    """Networks of two layers side by side: an (n, ...) batch of matrices.

    Their gradient is written out, which takes half the time: the matrices are small.

    Args:
        flat: (n (D + 1) H + n (H + 1) C,), all parameters one after the other.
        shapes: of first (n, D, H), its bias (n, 1, H), output (n, H, C), its bias (n, 1, C).
    """

    def __init__(self, flat: Tensor, shapes: list[tuple[int, int, int]]) -> None:
        self.flat, self.shapes = flat, shapes
        self.number = shapes[0][0]
        self.gradient = torch.zeros_like(flat)
        self.moments = torch.zeros_like(flat), torch.zeros_like(flat)
        self.steps = 0
        self.first, self.first_bias, self.output, self.output_bias = self._views(flat)
        self._gradients = self._views(self.gradient)

    def _views(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split([math.prod(shape) for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    @classmethod
    def drawn(
        cls, number: int, num_features: int, num_classes: int, generator: torch.Generator
    ) -> "Networks":
        """Draw the first weights of n networks."""
        parts, shapes = [], []
        for size_in, size_out in ((num_features, HIDDEN), (HIDDEN, num_classes)):
            for rows in (size_in, 1):
                uniform = torch.rand(number * rows * size_out, generator=generator)
                parts.append((2 * uniform - 1) / math.sqrt(size_in))
                shapes.append((number, rows, size_out))
        return cls(torch.cat(parts), shapes)

    def repeated(self, times: int) -> "Networks":
        """Return as many copies of all, one after the other."""
        shapes = [(times * number, rows, columns) for number, rows, columns in self.shapes]
        parts = [part.repeat(times, 1, 1).flatten() for part in self._views(self.flat)]
        return Networks(torch.cat(parts), shapes)

    def hidden(self, features: Tensor) -> Tensor:
        """Turn features, (B, D) or (n, B, D) of each network's own items, into (n, B, H) hidden units."""
        each = features.expand(self.number, -1, -1)
        return torch.baddbmm(self.first_bias, each, self.first).relu_()

    def logits(self, hidden: Tensor) -> Tensor:
        """Turn (n, B, H) hidden units into (n, B, C) logits."""
        return torch.baddbmm(self.output_bias, hidden, self.output)

    def step(self, features: Tensor, hidden: Tensor, slope: Tensor, rate: float) -> None:
        """Take a step of Adam downhill.

        Args:
            features: (B, D), or (n, B, D) of each network's own items.
            hidden: (n, B, H), those units that did not drop out, zeros for the others.
            slope: (n, B, C), of the loss by the logits.
            rate: of the step.
        """
        inner = (slope @ self.output.mT).mul_(hidden > 0).div_(1 - DROPOUT)
        first, first_bias, output, output_bias = self._gradients
        torch.bmm(features.expand(self.number, -1, -1).mT, inner, out=first)
        torch.sum(inner, dim=1, keepdim=True, out=first_bias)
        torch.bmm(hidden.mT, slope, out=output)
        torch.sum(slope, dim=1, keepdim=True, out=output_bias)
        self.steps += 1
        _adam_step(self.flat, self.gradient, self.moments, rate, self.steps)


class CrossFit:
    """Networks on the features of items, each of which has not seen one fold.

    Args:
        features: (N, D), see `principal_components`.
        fold: (N,) int64, of `divide`.
        num_classes: C.
        seed: of weights, batches and what drops out.
        tick: called after each step.

    Example:
        >>> features, truth = torch.eye(2).repeat(60, 1), torch.arange(120) % 2
        >>> fitted = CrossFit(features, divide(truth >= 0, seed=0), num_classes=2, seed=0)
        >>> log_h = fitted.learn(torch.eye(2)[truth], steps=200)
        >>> bool((log_h.argmax(dim=1) == truth).all())
        True
    """

    def __init__(
        self,
        features: Tensor,
        fold: Tensor,
        num_classes: int,
        seed: int,
        tick: Callable[[], object] = lambda: None,
    ) -> None:
        self.features, self.fold, self.num_classes, self.seed = features, fold, num_classes, seed
        self.tick = tick
        self.folds = int(fold.max()) + 1
        # Row k names the other folds: those that network k learns from.
        every = torch.arange(self.folds).expand(self.folds, -1)
        self.others = every[every != every.mT].view(self.folds, -1)
        self.networks: Networks | None = None  # those that learned last

    def _fresh(self) -> Networks:
        generator = torch.Generator().manual_seed(self.seed)
        return Networks.drawn(self.folds, self.features.shape[1], self.num_classes, generator)

    def _batches(self, steps: int) -> list[Tensor]:
        """Draw the items of each step, equally many of each fold, (folds, S): each once before one comes again."""
        generator = torch.Generator().manual_seed(self.seed)
        parts = [(self.fold == k).nonzero()[:, 0] for k in range(self.folds)]
        each = min(map(len, parts))
        most = max(BATCH, min(MOST_IN_BATCH, self.folds * each // EPOCH))
        size = min(each, math.ceil(most / self.folds))
        drawn: list[Tensor] = []
        while len(drawn) < steps:
            order = [rows[torch.randperm(len(rows), generator=generator)[:each]] for rows in parts]
            drawn += torch.stack(order).split(size, dim=1)[: each // size]
        return drawn[:steps]

    @torch.no_grad()
    def _out_of_fold(self, networks: Networks) -> Tensor:
        """Compute the log-probabilities of each item by the networks that have not seen it: (settings, N, C)."""
        number, found = networks.number, []
        settings = number // self.folds
        rows = max(1, 2**24 // (number * max(HIDDEN, self.num_classes)))
        for features, fold in zip(self.features.split(rows), self.fold.split(rows), strict=True):
            log_h = log_softmax(networks.logits(networks.hidden(features)))
            log_h = log_h.unflatten(0, (settings, self.folds))
            own = log_h[:, fold.clamp(min=0), torch.arange(len(fold))]
            everyone = log_h.exp().mean(dim=1).log()
            found.append(torch.where((fold < 0)[None, :, None], everyone, own))
        return torch.cat(found, dim=1)

    def learn(self, targets: Tensor, steps: int) -> Tensor:
        """Train new networks by cross-entropy on a distribution per item.

        Args:
            targets: (N, C), rows summing to one, or zeros.
            steps: how many.

        Returns:
            (N, C), log-probabilities by networks that have not learned from the item.
        """
        networks = self._fresh()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            for step, batch in enumerate(self._batches(steps)):
                batch = batch[self.others].flatten(1)  # (folds, B), what each network learns from
                features, target = self.features[batch], targets[batch]
                hidden = networks.hidden(features)
                hidden *= _kept(hidden)
                slope = log_softmax(networks.logits(hidden)).exp_()
                slope = slope.mul_(target.sum(dim=-1, keepdim=True)).sub_(target)
                slope.div_(max(1, batch.shape[1]))
                networks.step(features, hidden, slope, RATE * _cosine(step / steps))
                self.tick()
        self.networks = networks
        return self._out_of_fold(networks)[0]

    def race(
        self,
        crowd: Votes,
        weight: Tensor,
        settings: list[tuple[Tensor, float]],
        steps: int,
        looks: tuple[float, ...],
        trusted: Tensor | None = None,
        learned: Tensor | None = None,
    ) -> list[Raced]:
        """Train networks and W by the gain, in several settings at once.

        The networks learn from g as the classifier does, and W learns only from networks that have
        not seen the item: no vote can be memorised by both. The networks continue from those that
        were trained last.

        Args:
            crowd: the votes on all items.
            weight: (M, C, C), the W to start from.
            settings: of each, a (C,) log prior, and what W's rate is a multiple of the networks'.
            steps: how many.
            looks: the shares of the steps at which to look.
            trusted: (N, C), added to the scores of g; see `gold.trusted_columns`.
            learned: (R,) bool, in which of the R settings the prior is learned together with W.

        Returns:
            The state of each setting at each look.
        """
        K, R, C, M = self.folds, len(settings), self.num_classes, len(weight)
        networks = (self._fresh() if self.networks is None else self.networks).repeated(R)
        crowd = Votes(*crowd)
        given = crowd.given
        cell = torch.where(given, crowd.annotators * C + crowd.annotations, 0)
        weights = given.float() if crowd.weights is None else crowd.weights * given
        log_p = torch.stack([prior for prior, _ in settings])  # (R, C)
        multiple = torch.tensor([multiple for _, multiple in settings])[:, None, None, None]
        # Kept as (annotator, reported) rows of all settings: a vote reads one.
        W = weight[None].repeat(R, 1, 1, 1).permute(1, 3, 0, 2).reshape(M * C, R * C).clone()
        moments = torch.zeros_like(W), torch.zeros_like(W)
        free, free_moments = log_p.clone(), (torch.zeros_like(log_p), torch.zeros_like(log_p))
        gradient = torch.zeros_like(W)
        scale = multiple.expand(R, M, C, C).permute(1, 3, 0, 2).reshape(M * C, R * C)
        looked_at = {max(1, round(share * steps)) for share in looks}
        found = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            for step, batch in enumerate(self._batches(steps), start=1):
                rate = RATE * _cosine((step - 1) / steps)
                # (R K, S, D): the items that each has not seen, and then those that it learns from.
                own = self.features[batch].repeat(R, 1, 1)
                unseen = log_softmax(networks.logits(networks.hidden(own))).view(R, -1, C)
                features = self.features[batch[self.others].flatten(1)].repeat(R, 1, 1)
                hidden = networks.hidden(features)
                hidden *= _kept(hidden)
                log_h = log_softmax(networks.logits(hidden)).view(R, K, -1, C)
                batch = batch.flatten()
                number = len(batch)
                votes, voted, counts = cell[batch], given[batch], weights[batch][..., None]
                scores = (embedding(votes, W) * counts).sum(dim=1)
                scores = scores.view(number, R, C).transpose(0, 1) + log_p[:, None]
                if trusted is not None:
                    scores = scores + trusted[batch]
                log_g = log_softmax(scores)  # (R, B, C)
                seen = log_g.view(R, K, -1, C)[:, self.others].flatten(2, 3)
                slope = _slope(log_h, seen, log_p)
                networks.step(features, hidden, slope.flatten(0, 1).neg_(), rate)
                slope = _slope(log_g, unseen, log_p)
                if learned is not None:
                    by_prior = _prior_slope(unseen, log_g, log_p, slope)
                slope = slope.transpose(0, 1).reshape(number, 1, R * C)
                slope = slope.expand(-1, votes.shape[1], -1)  # of each vote on the item
                if crowd.weights is not None:
                    slope = slope * counts
                gradient.zero_().index_add_(0, votes[voted], slope[voted], alpha=-1)
                rate *= min(1.0, (step / (RISE * steps)) ** 2)
                _adam_step(W, gradient, moments, rate * scale, step)
                if learned is not None:
                    free_rate = rate * PRIOR_MULTIPLE * learned[:, None]
                    _adam_step(free, -by_prior, free_moments, free_rate, step)
                    log_p = free.log_softmax(dim=-1)
                self.tick()
                if step in looked_at:
                    said = self._out_of_fold(networks)
                    each = W.detach().view(M, C, R, C).permute(2, 0, 3, 1).clone()
                    found += [
                        Raced(prior if learned is None else log_p[r], times, said[r], each[r])
                        for r, (prior, times) in enumerate(settings)
                    ]
        return found


def _kept(hidden: Tensor) -> Tensor:
    """Draw which of the (n, B, H) hidden units do not drop out, the same in all networks: (B, H)."""
    shape = hidden.shape[1:]
    # Each byte of a random number is odd in one half of all cases: much faster than a number per unit.
    drawn = torch.empty(shape.numel() // 8 + 1, dtype=torch.int64).random_().view(torch.uint8)
    return (drawn[: shape.numel()].view(shape) & 1) / (1 - DROPOUT)


def _cosine(progress: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * progress))


def _slope(own: Tensor, other: Tensor, log_p: Tensor) -> Tensor:
    """Differentiate the gain (KL) by the scores of one side, of many networks at once.

    `functional.mutual_information_gain` by what `own` is the log-softmax of, written out: one call
    instead of one for each network, and no graph.

    Args:
        own: (R, ..., B, C), log-probabilities of the side.
        other: as many of the other side, or what is broadcast to them.
        log_p: (R, C), log of the class priors.

    Returns:
        (R, ..., B, C).
    """
    log_p = log_p.view(len(log_p), *[1] * (own.dim() - 2), -1)
    probability, ratio = own.exp(), (other - log_p).exp()
    agreed = log_softmax(own + other - log_p).exp_()
    count, together = max(own.shape[-2], 2), ratio.sum(dim=-2, keepdim=True)
    slope = agreed.div_(count)
    slope.sub_((together - ratio).div_(count * (count - 1)) * probability)
    return slope.sub_(probability * slope.sum(dim=-1, keepdim=True))


def _prior_slope(log_h: Tensor, log_g: Tensor, log_p: Tensor, slope: Tensor) -> Tensor:
    """Differentiate the gain (KL) by the logits of a prior that is part of g's scores too.

    Args:
        log_h: (R, B, C).
        log_g: (R, B, C), log-softmax of what the votes say plus log p.
        log_p: (R, C), log-softmax of the logits.
        slope: (R, B, C), by the scores of g, see `_slope`.

    Returns:
        (R, C).
    """
    number, shared = log_h.shape[1], log_h + log_g - log_p[:, None]
    both = log_h.exp().sum(dim=1) * log_g.exp().sum(dim=1) / log_p.exp()
    others = (both - shared.exp().sum(dim=1)) / max(number * (number - 1), 1)
    by_log_p = slope.sum(dim=1) + others - shared.softmax(dim=-1).mean(dim=1)
    return by_log_p - log_p.exp() * by_log_p.sum(dim=1, keepdim=True)


def _adam_step(
    parameter: Tensor,
    gradient: Tensor,
    moments: tuple[Tensor, Tensor],
    rate: float | Tensor,
    step: int,
) -> None:
    """Take a step of Adam, with a rate per element if needed; torch's takes one rate and is as slow as a whole step."""
    mean, square = moments
    mean.lerp_(gradient, 0.1)
    square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    spread = (square / (1 - 0.999**step)).sqrt_().add_(1e-8)
    moved = mean / spread.mul_(1 - 0.9**step)
    if isinstance(rate, Tensor):
        parameter.sub_(rate * moved)
    else:
        parameter.sub_(moved, alpha=rate)
