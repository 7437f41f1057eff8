"""Simulated crowds: draw the votes of experts on items of known class (paper, cases 4.1 to 4.3).

It also draws one crowd with latent seniors, which the paper leaves open. `experts.py` defines the
experts, `beyond.py` has further cases; `columns.py` adds annotations to a data set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .experts import Experts

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

CASES = ("independent", "naive_majority", "correlated")


class SimulatedCrowd(NamedTuple):
    """The votes of a simulated crowd, as the two tensors of a batch.

    Every item has K votes, so nothing is padded.

    Args:
        names: M annotator names, seniors first: `senior_A`, `senior_B`, ..., `junior_1`, ...
        annotators: (N, K), int64, numbers of the item's annotators, ascending.
        annotations: (N, K), int64, the class that each of them said.
    """

    names: list[str]
    annotators: Tensor
    annotations: Tensor


def simulate_crowd(
    labels: Tensor | ArrayLike,
    experts: Experts,
    case: str = "independent",
    *,
    labels_per_item: int | None = None,
    generator: torch.Generator | None = None,
) -> SimulatedCrowd:
    """Draw a crowd's annotations for items of known class (paper, cases 4.1, 4.2 and 4.3).

    Each senior's vote is drawn from the row of their confusion matrix that belongs to the true
    class, independently of the other seniors. In case `naive_majority` each of `experts.num_naive`
    juniors always says `experts.naive_class`; in case `correlated` junior j repeats every vote of
    senior `experts.copied[j]`. The seniors are drawn first. So generators of equal state give the same
    senior votes in all three cases, and the cases carry the same information.

    Args:
        labels: (N,), integers in 0..C-1, true classes.
        experts: the crowd; `hf_maxmig.data.simulated.experts` has the paper's.
        case: `independent` (4.1, seniors only), `naive_majority` (4.2) or `correlated` (4.3).
        labels_per_item: how many of the M annotators, drawn without replacement, vote on each item;
            None is all of them.
        generator: source of randomness, on the CPU; None is torch's default generator.

    Returns:
        The M names, `annotators` and `annotations`, both (N, K) on the CPU, where K is
        `labels_per_item` or M.

    Raises:
        TypeError: if `labels` are not integers.
        ValueError: if `labels` are empty, not one-dimensional or out of range, `case` is unknown or
            needs juniors that `experts` does not have, or `labels_per_item` is not in 1..M.

    Example:
        A senior who is always right and one who always says "no", with a junior who copies the
        first:

        >>> always_right, always_no = [[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]
        >>> seniors = torch.tensor([always_right, always_no])
        >>> two = Experts("two", ("no", "yes"), seniors, copied=(0,))
        >>> crowd = simulate_crowd([0, 1, 1], two, case="correlated")
        >>> crowd.names
        ['senior_A', 'senior_B', 'junior_1']
        >>> crowd.annotations
        tensor([[0, 0, 0],
                [1, 0, 1],
                [1, 0, 1]])
    """
    true = true_classes(labels, num_classes=len(experts.classes))
    num_juniors = _num_juniors(experts, case)
    num_items, num_annotators = len(true), len(experts.seniors) + num_juniors
    if labels_per_item is not None and not 1 <= labels_per_item <= num_annotators:
        raise ValueError(
            f"`labels_per_item` must lie in 1..M = 1..{num_annotators}, got {labels_per_item}."
        )

    seniors = _draw_seniors(true, experts, generator)
    if case == "naive_majority":
        juniors = torch.full((num_items, num_juniors), experts.naive_class)
    elif case == "correlated":
        juniors = seniors[:, list(experts.copied)]
    else:
        juniors = seniors[:, :0]
    annotations = torch.cat([seniors, juniors], dim=1)

    annotators = torch.arange(num_annotators).repeat(num_items, 1)
    if labels_per_item is not None:
        # The first K of a random order of the annotators, in float64 so that ties are negligible.
        noise = torch.rand(annotators.shape, dtype=torch.float64, generator=generator)
        annotators = noise.argsort(dim=1)[:, :labels_per_item].sort(dim=1).values
        annotations = annotations.gather(1, annotators)

    names = senior_names(len(experts.seniors))
    names += [f"junior_{j + 1}" for j in range(num_juniors)]
    return SimulatedCrowd(names, annotators, annotations)


def simulate_latent_seniors(
    labels: Tensor | ArrayLike, experts: Experts, *, generator: torch.Generator | None = None
) -> SimulatedCrowd:
    """Draw a crowd whose seniors are latent, the paper's open question; not one of its cases.

    Each senior answers S as in `simulate_crowd`, but the answer is only visible in the votes of two
    juniors together. One votes for a class R drawn uniformly, the other for the class S places after it,
    (R + S) mod C, so that their difference is S. Each junior alone is uniform whatever the true class.
    So an aggregator that adds up single votes learns nothing, and no count of votes can name the
    classes. The experts' own juniors are not used.

    Args:
        labels: (N,), integers in 0..C-1, true classes.
        experts: the seniors.
        generator: source of randomness, on the CPU; None is torch's default generator.

    Returns:
        M = 2 M_s names, `junior_A1` and `junior_A2` of senior A and so on; `annotators` and
        `annotations`, both (N, M) on the CPU. With a generator of equal state the seniors answer as in
        `simulate_crowd`.

    Raises:
        TypeError: if `labels` are not integers.
        ValueError: if `labels` are empty, not one-dimensional or out of range.

    Example:
        >>> one = Experts("one", ("no", "maybe", "yes"), torch.eye(3)[None])  # never wrong
        >>> crowd = simulate_latent_seniors([0, 1, 2, 2], one)
        >>> first, second = crowd.annotations.unbind(dim=1)
        >>> ((second - first) % 3).tolist()
        [0, 1, 2, 2]
    """
    num_classes = len(experts.classes)
    true = true_classes(labels, num_classes)
    seniors = _draw_seniors(true, experts, generator)
    first = torch.randint(num_classes, seniors.shape, generator=generator)
    annotations = torch.stack([first, (first + seniors) % num_classes], dim=2).flatten(1)
    annotators = torch.arange(annotations.shape[1]).repeat(len(true), 1)
    names = [f"junior_{_letters(m)}{k}" for m in range(len(experts.seniors)) for k in (1, 2)]
    return SimulatedCrowd(names, annotators, annotations)


def _draw_seniors(true: Tensor, experts: Experts, generator: torch.Generator | None) -> Tensor:
    """Draw (N, M_s) senior votes, one senior at a time: all at once would hold (M_s, N, C)."""
    return torch.cat(
        [
            torch.multinomial(confusion[true], num_samples=1, generator=generator)
            for confusion in experts.seniors
        ],
        dim=1,
    )


def true_classes(labels: Tensor | ArrayLike, num_classes: int) -> Tensor:
    """Return `labels` as (N,) int64 on the CPU, or raise if they are not classes."""
    true = torch.as_tensor(labels, device="cpu")
    if true.ndim != 1 or len(true) == 0:
        raise ValueError(f"`labels` must be (N,) with N at least 1, got {tuple(true.shape)}.")
    if true.is_floating_point() or true.is_complex() or true.dtype == torch.bool:
        raise TypeError(f"`labels` must be integers, got {true.dtype}.")
    true = true.long()  # torch reads an index of uint8 as a mask
    outside = (true < 0) | (true >= num_classes)
    if outside.any():
        item = int(outside.nonzero()[0])
        raise ValueError(
            f"`labels` must lie in 0..C-1 = 0..{num_classes - 1}, got {true[item]} at item {item}."
        )
    return true


def _num_juniors(experts: Experts, case: str) -> int:
    """Return the number of juniors of a case, or raise if there is no such case or it has none."""
    if case not in CASES:
        raise ValueError(f"`case` must be one of {', '.join(CASES)}, got {case!r}.")
    if case == "independent":
        return 0
    num_juniors = experts.num_naive if case == "naive_majority" else len(experts.copied)
    if num_juniors == 0:
        field = "num_naive" if case == "naive_majority" else "copied"
        raise ValueError(
            f"`case` must be 'independent' for experts without juniors, got {case!r} "
            f"with {field} = {getattr(experts, field)}."
        )
    return num_juniors


def senior_names(number: int) -> list[str]:
    """Name seniors: `senior_A`, `senior_B`, ..."""
    return [f"senior_{_letters(m)}" for m in range(number)]


def _letters(number: int) -> str:
    """Count in letters as spreadsheets name their columns: 0 is A, 25 is Z, 26 is AA."""
    rest, last = divmod(number, 26)
    return (_letters(rest - 1) if rest else "") + chr(ord("A") + last)
