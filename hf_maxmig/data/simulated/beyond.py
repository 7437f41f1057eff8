"""Simulated crowds beyond the paper's cases: few votes, hard items, annotators who tire.

Their annotators have the confusion matrices of the seniors of the paper's experts (`experts.py`), of high or
low expertise; juniors play no part. `simulation.py` draws the paper's own cases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .experts import Experts
from .simulation import CASES, SimulatedCrowd, senior_names, simulate_crowd, true_classes

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

MORE_CASES = ("sparse_one", "sparse_two", "hard_items", "tiring")
NUM_SPARSE = 300  # annotators of a sparse crowd
HARDNESS = 4  # the power of an item's rank: a fifth of the votes are about the look-alike


def simulate_case(
    labels: Tensor | ArrayLike,
    experts: Experts,
    case: str,
    *,
    features: Tensor | ArrayLike | None = None,
    generator: torch.Generator | None = None,
) -> SimulatedCrowd:
    """Draw the crowd of any named case, the paper's or one beyond it.

    Args:
        labels: (N,), integers in 0..C-1, true classes.
        experts: the crowd; only its seniors take part in the cases of `MORE_CASES`.
        case: one of the paper's `CASES`, or: `sparse_one` and `sparse_two`, a sparse crowd of 300 with one and
            two votes per item; `hard_items`; `tiring`.
        features: (N, D) floats, which only `hard_items` reads.
        generator: source of randomness, on the CPU; None is torch's default generator.

    Returns:
        Names and votes, as the function of the case returns them.

    Raises:
        TypeError, ValueError: as the function of the case does; ValueError if there is no such case or
            `hard_items` has no features.

    Example:
        >>> from hf_maxmig.data.simulated.experts import experts
        >>> crowd = simulate_case([0, 1, 1], experts("luna16", "high"), "sparse_two")
        >>> len(crowd.names), tuple(crowd.annotations.shape)
        (300, (3, 2))
    """
    if case in CASES:
        return simulate_crowd(labels, experts, case, generator=generator)
    if case == "tiring":
        return simulate_tiring_crowd(labels, experts, generator=generator)
    if case == "hard_items":
        if features is None:
            raise ValueError("`features` must be (N, D) in case 'hard_items', got None.")
        return simulate_hard_items(labels, experts, features, generator=generator)
    if case not in MORE_CASES:
        raise ValueError(f"`case` must be one of {', '.join((*CASES, *MORE_CASES))}, got {case!r}.")
    per_item = {"sparse_one": 1, "sparse_two": 2}[case]
    return simulate_sparse_crowd(labels, experts, labels_per_item=per_item, generator=generator)


def simulate_sparse_crowd(
    labels: Tensor | ArrayLike,
    experts: Experts,
    *,
    labels_per_item: int,
    num_annotators: int = NUM_SPARSE,
    generator: torch.Generator | None = None,
) -> SimulatedCrowd:
    """Draw a large crowd of which only a few vote on each item.

    Annotator m has the confusion matrix of senior m mod M_s. Each item's annotators are drawn uniformly,
    without replacement, and err independently given the true class.

    Args:
        labels: (N,), integers in 0..C-1, true classes.
        experts: the M_s seniors, whose matrices are used.
        labels_per_item: K, how many annotators vote on each item.
        num_annotators: M. Some may have no vote if the items are few.
        generator: source of randomness, on the CPU; None is torch's default generator.

    Returns:
        The names `worker_1` to `worker_M`; `annotators` and `annotations`, both (N, K) on the CPU.

    Raises:
        TypeError: if `labels` are not integers.
        ValueError: if `labels` are empty, not one-dimensional or out of range, or `labels_per_item` is not in 1..M.

    Example:
        >>> never_wrong = Experts("one", ("no", "yes"), torch.eye(2)[None])
        >>> crowd = simulate_sparse_crowd([0, 1], never_wrong, labels_per_item=2, num_annotators=5)
        >>> crowd.annotations
        tensor([[0, 0],
                [1, 1]])
    """
    true = true_classes(labels, num_classes=len(experts.classes))
    if not 1 <= labels_per_item <= num_annotators:
        raise ValueError(
            f"`labels_per_item` must lie in 1..M = 1..{num_annotators}, got {labels_per_item}."
        )
    noise = torch.rand(len(true), num_annotators, dtype=torch.float64, generator=generator)
    annotators = noise.topk(labels_per_item, dim=1).indices.sort(dim=1).values
    rows = experts.seniors[annotators % len(experts.seniors), true[:, None]]
    annotations = torch.multinomial(rows.flatten(0, 1), 1, generator=generator).view_as(annotators)
    return SimulatedCrowd(
        [f"worker_{m + 1}" for m in range(num_annotators)], annotators, annotations
    )


class LookAlikes(NamedTuple):
    """The class that each item may be mistaken for.

    Args:
        classes: (N,) int64, the class with the nearest mean, other than the item's own.
        shares: (N,) float64 in 0..1, how often the item is mistaken for it.
    """

    classes: Tensor
    shares: Tensor


def look_alikes(features: Tensor | ArrayLike, labels: Tensor) -> LookAlikes:
    """Find out which items are hard, and what they look like.

    An item is the harder the farther it is from the mean of its class and the nearer to that of another:
    items of a class are ranked by |x - mean of own class| - |x - nearest other mean|. With
    u = (rank + 1/2) / (items of the class), the share is u^4. Its mean is a fifth in each class; a sixth of
    the items are mistaken more often than not.

    Args:
        features: (N, D) floats.
        labels: (N,) int64, the true classes; at least 2 of them occur.

    Returns:
        The other class and the share of each item.

    Raises:
        ValueError: if `features` are not (N, D) finite numbers, or only one class occurs.

    Example:
        >>> features, labels = torch.tensor([[0.0], [1.0], [3.0], [4.0]]), torch.tensor([0, 0, 1, 1])
        >>> look_alikes(features, labels).shares
        tensor([0.0039, 0.3164, 0.3164, 0.0039], dtype=torch.float64)
    """
    x = torch.as_tensor(features, device="cpu").double()
    if x.ndim != 2 or len(x) != len(labels) or not x.isfinite().all():
        raise ValueError(
            f"`features` must be (N, D) = ({len(labels)}, D) finite numbers, got {tuple(x.shape)}"
            f"{'' if x.isfinite().all() else ' with NaN or infinity'}."
        )
    number = torch.bincount(labels)
    if (number > 0).sum() < 2:
        raise ValueError(
            f"`labels` must have items of at least 2 classes, got {int((number > 0).sum())}: "
            "an item is mistaken for one of another class."
        )
    sums = torch.zeros(len(number), x.shape[1], dtype=x.dtype).index_add_(0, labels, x)
    distance = torch.cdist(x, sums / number[:, None])
    distance[:, number == 0] = torch.inf  # no mean
    own = distance.gather(1, labels[:, None]).squeeze(1)
    nearest, classes = distance.scatter(1, labels[:, None], torch.inf).min(dim=1)
    order = (own - nearest).argsort(stable=True)
    order = order[labels[order].argsort(stable=True)]  # class by class, easy items first
    rank = torch.empty_like(labels)
    rank[order] = torch.arange(len(labels)) - (number.cumsum(0) - number)[labels[order]]
    return LookAlikes(classes, ((rank.double() + 0.5) / number[labels]) ** HARDNESS)


def simulate_hard_items(
    labels: Tensor | ArrayLike,
    experts: Experts,
    features: Tensor | ArrayLike,
    *,
    generator: torch.Generator | None = None,
) -> SimulatedCrowd:
    """Draw a crowd whose mistakes depend on the item: all annotators err on the same hard items.

    Item i of class c may be taken for one of class s_i, with the share d_i of `look_alikes`. An annotator with
    confusion matrix A says r with probability (1 - d_i) A_cr + d_i A_(s_i)r. So given the true class the votes
    on an item depend on each other, which a confusion matrix cannot describe.

    Args:
        labels: (N,), integers in 0..C-1, true classes.
        experts: the M seniors; A is theirs, and holds as it is for an item that is never mistaken.
        features: (N, D) floats, from which the difficulty is worked out.
        generator: source of randomness, on the CPU; None is torch's default generator.

    Returns:
        The names `senior_A`, `senior_B`, ...; `annotators` and `annotations`, both (N, M) on the CPU.

    Raises:
        TypeError: if `labels` are not integers.
        ValueError: if `labels` are empty, not one-dimensional or out of range, or as `look_alikes` does.

    Example:
        An annotator who never errs but for the look-alikes is right on 4 of 5 items of a class:

        >>> never_wrong = Experts("one", ("no", "yes"), torch.eye(2)[None])
        >>> labels = torch.arange(20_000) % 2
        >>> features = labels[:, None] + torch.linspace(0, 1, 20_000)[:, None]
        >>> crowd = simulate_hard_items(labels, never_wrong, features)
        >>> round((crowd.annotations[:, 0] == labels).double().mean().item(), 1)
        0.8
    """
    true = true_classes(labels, num_classes=len(experts.classes))
    other, share = look_alikes(features, true)
    votes = [
        torch.multinomial(
            torch.lerp(confusion[true], confusion[other], share[:, None]), 1, generator=generator
        )
        for confusion in experts.seniors
    ]
    return _of_all_seniors(votes)


def simulate_tiring_crowd(
    labels: Tensor | ArrayLike, experts: Experts, *, generator: torch.Generator | None = None
) -> SimulatedCrowd:
    """Draw a crowd of annotators who tire: they begin as the experts are and end by guessing.

    Each annotator labels all N items, in an order of their own, drawn uniformly. At their vote number t = 0, 1, ...,
    N - 1 an annotator with confusion matrix A says r with probability (1 - f) A_cr + f / C, f = t / (N - 1).
    Nobody sees the order. Over all their votes an annotator's matrix is the mean of A and of guessing.

    Args:
        labels: (N,), integers in 0..C-1, true classes.
        experts: the M seniors; A is theirs, and holds as it is for the first item.
        generator: source of randomness, on the CPU; None is torch's default generator.

    Returns:
        The names `senior_A`, `senior_B`, ...; `annotators` and `annotations`, both (N, M) on the CPU.

    Raises:
        TypeError: if `labels` are not integers.
        ValueError: if `labels` are empty, not one-dimensional or out of range.

    Example:
        An annotator who knows all two classes while awake is right on 3 of 4 items:

        >>> never_wrong = Experts("one", ("no", "yes"), torch.eye(2)[None])
        >>> labels = torch.zeros(20_000, dtype=torch.int64)
        >>> crowd = simulate_tiring_crowd(labels, never_wrong)
        >>> round((crowd.annotations[:, 0] == labels).double().mean().item() * 20)
        15
    """
    true = true_classes(labels, num_classes=len(experts.classes))
    votes = []
    for confusion in experts.seniors:
        place = torch.randperm(len(true), generator=generator)
        tired = (place / max(1, len(true) - 1)).double()[:, None]
        guess = torch.full_like(confusion[true], 1 / len(experts.classes))
        votes.append(torch.multinomial(confusion[true].lerp(guess, tired), 1, generator=generator))
    return _of_all_seniors(votes)


def _of_all_seniors(votes: list[Tensor]) -> SimulatedCrowd:
    """Bring together the (N, 1) votes of annotators who all vote on all items."""
    annotations = torch.cat(votes, dim=1)
    annotators = torch.arange(len(votes)).repeat(len(annotations), 1)
    return SimulatedCrowd(senior_names(len(votes)), annotators, annotations)
