"""Cross-fitting: what classifiers say of items that they have not learned from.

A classifier's probabilities on the items it was trained on repeat the votes on them. Here the items are
divided into folds, and each item is judged by a small network that was trained on the other folds. The
networks read features of the items, and all of them are trained at once, as one batch of matrices: what
they cost does not depend on the classifier that the features come from.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, embedding

from .functional import is_given

FOLDS = 3
HIDDEN, DROPOUT, RATE, BATCH = 128, 0.5, 1e-3, 64  # the paper's head on LabelMe
MOST_FEATURES = 128  # principal components; more cost time and change little
UNLIKE = 30.0  # how many times as much some features differ as others, if they are of unlike scales
MOST_ITEMS = 20_000  # that the networks learn from; the others are judged by all of them
RISE = 0.3  # share of the steps over which W's rate rises, while the classes form


class Raced(NamedTuple):
    """What one setting of the race came to.

    Args:
        log_p: (C,), the prior that it was given.
        multiple: of the classifier's rate, W's.
        log_h: (N, C), log-probabilities by networks that have not learned from the item.
        weight: (M, C, C), W: annotator, scored class, reported class.
    """

    log_p: Tensor
    multiple: float
    log_h: Tensor
    weight: Tensor


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


class Networks(nn.Module):
    """Networks of two layers side by side, which read the same items: an (n, ...) batch of matrices.

    Args:
        number: n, how many.
        num_features: D.
        num_classes: C.
        generator: of their first weights.
    """

    def __init__(
        self, number: int, num_features: int, num_classes: int, generator: torch.Generator
    ) -> None:
        super().__init__()

        def drawn(*shape: int, size_in: int) -> nn.Parameter:
            return nn.Parameter(
                (2 * torch.rand(*shape, generator=generator) - 1) / math.sqrt(size_in)
            )

        self.first = drawn(number, num_features, HIDDEN, size_in=num_features)
        self.first_bias = drawn(number, 1, HIDDEN, size_in=num_features)
        self.output = drawn(number, HIDDEN, num_classes, size_in=HIDDEN)
        self.output_bias = drawn(number, 1, num_classes, size_in=HIDDEN)

    def forward(self, features: Tensor) -> Tensor:
        """Turn (B, D) features into (n, B, C) log-probabilities."""
        same = features.expand(len(self.first), -1, -1)
        hidden = torch.baddbmm(self.first_bias, same, self.first).relu()
        hidden = dropout(hidden, DROPOUT, self.training)
        return torch.baddbmm(self.output_bias, hidden, self.output).log_softmax(dim=-1)

    @torch.no_grad()
    def repeated(self, times: int) -> "Networks":
        """Return as many copies of all, one after the other."""
        copied = Networks.__new__(Networks)
        nn.Module.__init__(copied)
        for name, value in self.named_parameters():
            setattr(copied, name, nn.Parameter(value.repeat(times, 1, 1)))
        return copied


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
        self.networks: Networks | None = None  # those that learned last

    def _fresh(self) -> Networks:
        generator = torch.Generator().manual_seed(self.seed)
        return Networks(self.folds, self.features.shape[1], self.num_classes, generator)

    def _batches(self, steps: int) -> "list[Tensor]":
        """Draw the items of each step: each once before one comes again."""
        generator = torch.Generator().manual_seed(self.seed)
        rows = (self.fold >= 0).nonzero()[:, 0]
        size = min(BATCH, len(rows))
        parts: list[Tensor] = []
        while len(parts) < steps:
            order = rows[torch.randperm(len(rows), generator=generator)]
            parts += order.split(size)[: len(rows) // size]
        return parts[:steps]

    @torch.no_grad()
    def _out_of_fold(self, networks: Networks) -> Tensor:
        """Say of each item what the networks say that have not seen it: (settings, N, C)."""
        networks.eval()
        settings, found = len(networks.first) // self.folds, []
        rows = max(1, 2**24 // (len(networks.first) * max(HIDDEN, self.num_classes)))
        for features, fold in zip(self.features.split(rows), self.fold.split(rows), strict=True):
            log_h = networks(features).unflatten(0, (settings, self.folds))
            own = log_h[:, fold.clamp(min=0), torch.arange(len(fold))]
            everyone = log_h.exp().mean(dim=1).log()
            found.append(torch.where((fold < 0)[None, :, None], everyone, own))
        networks.train()
        return torch.cat(found, dim=1)

    def learn(self, targets: Tensor, steps: int) -> Tensor:
        """Train anew on a distribution an item, by cross-entropy.

        Args:
            targets: (N, C), rows summing to one, or zeros.
            steps: how many.

        Returns:
            (N, C), log-probabilities by networks that have not learned from the item.
        """
        networks = self._fresh()
        optimizer = torch.optim.Adam(networks.parameters(), lr=RATE, foreach=True)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            for step, batch in enumerate(self._batches(steps)):
                optimizer.param_groups[0]["lr"] = RATE * _cosine(step / steps)
                learns = (self.fold[batch][None] != torch.arange(self.folds)[:, None]).float()
                said = (targets[batch] * networks(self.features[batch])).sum(dim=-1)
                loss = -(said * learns).sum() / learns.sum(dim=1).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                self.tick()
        self.networks = networks
        return self._out_of_fold(networks)[0]

    def race(
        self,
        crowd: tuple[Tensor, Tensor],
        weight: Tensor,
        settings: list[tuple[Tensor, float]],
        steps: int,
        looks: tuple[float, ...],
        trusted: Tensor | None = None,
    ) -> list[Raced]:
        """Train networks and W by the gain, in several settings at once.

        The networks learn from g as the classifier does, and W learns only from networks that have
        not seen the item: there is nothing that both could have learned by heart. They go on from the
        networks that have learned last.

        Args:
            crowd: (N, K) annotators and annotations, int64, padded with -1.
            weight: (M, C, C), the W to start from.
            settings: of each, a (C,) log prior, and what W's rate is a multiple of the networks'.
            steps: how many.
            looks: the shares of the steps at which to look.
            trusted: (N, C), added to the scores of g; see `gold.trusted_columns`.

        Returns:
            What each setting has come to at each look.
        """
        K, R, C, M = self.folds, len(settings), self.num_classes, len(weight)
        networks = (self._fresh() if self.networks is None else self.networks).repeated(R)
        optimizer = torch.optim.Adam(networks.parameters(), lr=RATE, foreach=True)
        annotators, annotations = crowd
        given = is_given(annotators, annotations)
        cell = torch.where(given, annotators * C + annotations, 0)
        log_p = torch.stack([prior for prior, _ in settings])  # (R, C)
        multiple = torch.tensor([multiple for _, multiple in settings])[:, None, None, None]
        # Kept as (annotator, reported) rows of all settings: a vote reads one.
        W = weight[None].repeat(R, 1, 1, 1).permute(1, 3, 0, 2).reshape(M * C, R * C).clone()
        W.requires_grad_(True)
        moments = torch.zeros_like(W), torch.zeros_like(W)
        scale = multiple.expand(R, M, C, C).permute(1, 3, 0, 2).reshape(M * C, R * C)
        looked_at = {max(1, round(share * steps)) for share in looks}
        found = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            for step, batch in enumerate(self._batches(steps), start=1):
                features, fold, number = self.features[batch], self.fold[batch], len(batch)
                optimizer.param_groups[0]["lr"] = RATE * _cosine((step - 1) / steps)
                log_h = networks(features).view(R, K, number, C)
                networks.eval()
                with torch.no_grad():
                    unseen = networks(features).view(R, K, number, C)
                networks.train()
                unseen = unseen[:, fold, torch.arange(number)]
                scores = (embedding(cell[batch], W) * given[batch][..., None]).sum(dim=1)
                scores = scores.view(number, R, C).transpose(0, 1) + log_p[:, None]
                if trusted is not None:
                    scores = scores + trusted[batch]
                log_g = scores.log_softmax(dim=-1)  # (R, B, C)
                learns = (fold[None] != torch.arange(K)[:, None]).float()
                gained = _gains(log_h, log_g.detach()[:, None], log_p, learns[None]).sum()
                gained = gained + _gains(unseen[:, None], log_g[:, None], log_p, None).sum()
                optimizer.zero_grad()
                W.grad = None
                (-gained).backward()
                optimizer.step()
                rate = RATE * _cosine((step - 1) / steps) * min(1.0, (step / (RISE * steps)) ** 2)
                _adam_step(W, moments, rate * scale, step)
                self.tick()
                if step in looked_at:
                    seen = self._out_of_fold(networks)
                    each = W.detach().view(M, C, R, C).permute(2, 0, 3, 1).clone()
                    found += [
                        Raced(prior, times, seen[r], each[r])
                        for r, (prior, times) in enumerate(settings)
                    ]
        return found


def _cosine(progress: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * progress))


def _gains(log_h: Tensor, log_g: Tensor, log_p: Tensor, taken: Tensor | None) -> Tensor:
    """Compute the gain (KL) of many networks at once, each over the items that it takes.

    `functional.mutual_information_gain` for (R, n, B, C) and (R, 1, B, C): one call instead of R n.
    """
    h_over_p = log_h - log_p[:, None, None]
    log_k = (h_over_p + log_g).logsumexp(dim=-1)
    if taken is None:
        taken = torch.ones_like(log_k)
    count = taken.sum(dim=-1).clamp(min=2)
    h, g = ((t.exp() * taken[..., None]).sum(dim=2) for t in (h_over_p, log_g))
    others = (h * g).sum(dim=-1) - (log_k.exp() * taken).sum(dim=-1)
    return 1 + (log_k * taken).sum(dim=-1) / count - others / (count * (count - 1))


@torch.no_grad()
def _adam_step(parameter: Tensor, moments: tuple[Tensor, Tensor], rate: Tensor, step: int) -> None:
    """Take a step of Adam with a rate an element, which no optimizer of torch has."""
    gradient = parameter.grad
    assert gradient is not None
    mean, square = moments
    mean.lerp_(gradient, 0.1)
    square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    mean_now, square_now = mean / (1 - 0.9**step), square / (1 - 0.999**step)
    parameter.sub_(rate * mean_now / (square_now.sqrt() + 1e-8))
