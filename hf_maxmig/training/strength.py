"""The strength of the aggregator: how much the votes count, by the gain on held-out votes.

Classifier and aggregator learn from the same items. A classifier that memorises some of them agrees
with the annotators on their mistakes too, and W grows beyond log confusion. The forecast then trusts
the votes too much, and can be worse than the classifier alone. On other items there is nothing to agree
on but the classes, and the gain is highest at the posteriors (Theorem 3.4). So the strength, the factor
of W, is found on held-out items; no gold label is needed.
"""

import math

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from ..model.functional import mutual_information_gain, posterior_of
from ..model.outputs import PosteriorParts
from ..model.votes import Votes

LARGEST = 8.0  # the smallest is its inverse: beyond these the votes have no effect, or no doubt
MOST_ITEMS = 10_000  # enough for one number; Jensen-Shannon compares all pairs of them
USUAL = 2.0  # a factor by which W is easily too large or too small: a standard deviation


def with_strength(log_g: Tensor, log_p: Tensor, strength: float) -> Tensor:
    """Compute what g would be if W were multiplied by a strength.

    softmax(s sum_m W^m e(y^m) + log p), from g itself.

    Args:
        log_g: (N, C), log-probabilities of the aggregator.
        log_p: (C,), log of the class prior.
        strength: s; 0 leaves the prior, 1 changes nothing.

    Returns:
        (N, C), log-probabilities.

    Example:
        >>> half, says = torch.tensor([0.5, 0.5]).log(), torch.tensor([[0.8, 0.2]]).log()
        >>> with_strength(says, half, 2.0).exp()
        tensor([[0.9412, 0.0588]])
    """
    return posterior_of((log_g - log_p) * strength + log_p, log_p)


@torch.no_grad()
def best_strength(log_h: Tensor, log_g: Tensor, log_p: Tensor, divergence: str = "kl") -> float:
    """Find the likeliest strength of W, by the gain.

    The gain is a mean over N items, in nats, so N times the gain serves as a log-likelihood. The prior of
    log s is normal around zero, with a standard deviation of log `USUAL`. With few items the strength
    stays near 1; with many it is where the gain is highest.

    Args:
        log_h: (N, C), log-probabilities of the classifier for items with annotations that neither
            it nor the aggregator was trained on, in nats.
        log_g: (N, C), log-probabilities of the aggregator for the same items.
        log_p: (C,), log of the class prior.
        divergence: a row of Table 1.

    Returns:
        The strength, between 1 / `LARGEST` and `LARGEST`; 1 for fewer than two items.

    Raises:
        ValueError: if the shapes do not fit.

    Example:
        >>> half, item = torch.tensor([0.5, 0.5]).log(), torch.arange(10_000)
        >>> right, sure = (torch.tensor([[p, 1 - p], [1 - p, p]]).log() for p in (0.8, 0.99))
        >>> truth = item % 2  # h and g are right on 80 %, each for itself; g claims 99 %
        >>> h, g = right[truth ^ (item // 2 % 5 < 1)], sure[truth ^ (item // 10 % 5 < 1)]
        >>> round(best_strength(h, g, half), 2)  # log 4 / log 99
        0.3
    """
    if len(log_h) < 2:
        return 1.0
    drawn = torch.randperm(len(log_h), generator=torch.Generator().manual_seed(0))[:MOST_ITEMS]
    log_h, log_g = log_h[drawn.to(log_h.device)], log_g[drawn.to(log_g.device)]
    # A search for a maximum needs differences too small for float32.
    log_h, log_g, log_p = log_h.double(), log_g.double(), log_p.double()

    def unlikely(log_strength: float) -> float:
        g = with_strength(log_g, log_p, math.exp(log_strength))
        gain = float(mutual_information_gain(log_h, g, log_p, divergence))
        return (log_strength / math.log(USUAL)) ** 2 / 2 - len(log_h) * gain

    ends = -math.log(LARGEST), math.log(LARGEST)
    found = minimize_scalar(unlikely, bounds=ends, method="bounded", options={"xatol": 1e-7})
    return math.exp(found.x) if math.isfinite(found.fun) else 1.0


def voted_posteriors(parts: PosteriorParts) -> tuple[Tensor, Tensor]:
    """Keep the posteriors of items that have votes by annotators whom the model knows.

    Args:
        parts: the posteriors of the items, with the tensors of their votes.

    Returns:
        (N, C) log-probabilities of the classifier, and of the aggregator.
    """
    h, g = [], []
    for (log_h, log_g, _), *votes in parts:
        voted = Votes(*votes).annotated
        h.append(log_h[voted])
        g.append(log_g[voted])
    return torch.cat(h), torch.cat(g)
