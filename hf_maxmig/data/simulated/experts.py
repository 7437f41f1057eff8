"""The simulated experts of the paper's Appendix B ("Experts' expertise"), as data.

`Experts` describes how each annotator of a simulated crowd makes mistakes, and the table `EXPERTS` lists
the paper's six crowds. Nothing is drawn here: `simulation.py` draws annotations from experts and true
classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

DOGS_VS_CATS = ("cat", "dog")
CIFAR10 = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"
)  # fmt: skip
LUNA16 = ("benign", "malignant")


@dataclass(frozen=True, eq=False)  # eq=False: comparing two tensors has no single truth value
class Experts:
    """A crowd before it has seen any item: the seniors' confusion and the juniors' behaviour.

    Seniors make independent mistakes given the true class. Juniors appear in two of the three cases
    of the paper (Section 4 and Appendix B): in case 4.2 all of them say `naive_class`, in case 4.3
    each copies one senior.

    Args:
        name: the name of the crowd.
        classes: C distinct names, C at least 2, in the order of the class numbers.
        seniors: (M_s, C, C), `seniors[m, c, r]` = P(senior m says r given true class c), so rows
            sum to 1. Any floating-point type is accepted and converted to float64.
        num_naive: number of juniors in case 4.2.
        naive_class: the class that those juniors always say, in 0..C-1.
        copied: for each junior of case 4.3 the senior whose votes they copy, in 0..M_s-1.

    Raises:
        TypeError: if `seniors` is not a floating-point tensor.
        ValueError: if the shape of `seniors` does not fit `classes`, a row is not a distribution,
            the class names are fewer than two or repeat, or a number of juniors or an index is out
            of range.

    Example:
        Two seniors on three classes, right with probability 0.8 and 0.6, and a junior who copies
        the second:

        >>> experts = Experts(
        ...     name="birds",
        ...     classes=("crow", "raven", "rook"),
        ...     seniors=torch.stack([uniform_mistakes(*[right] * 3) for right in (0.8, 0.6)]),
        ...     copied=(1,),
        ... )
        >>> experts.seniors[1]
        tensor([[0.6000, 0.2000, 0.2000],
                [0.2000, 0.6000, 0.2000],
                [0.2000, 0.2000, 0.6000]], dtype=torch.float64)
    """

    name: str
    classes: tuple[str, ...]
    seniors: Tensor
    num_naive: int = 0
    naive_class: int = 0
    copied: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check every field, and raise what the class docstring lists."""
        num_classes = len(self.classes)
        if num_classes < 2 or len(set(self.classes)) < num_classes:
            raise ValueError(f"`classes` must be at least 2 distinct names, got {self.classes!r}.")
        _check_confusions(self.seniors, num_classes)
        object.__setattr__(self, "seniors", self.seniors.double())  # the dataclass is frozen
        if self.num_naive < 0:
            raise ValueError(f"`num_naive` must be at least 0, got {self.num_naive}.")
        if not 0 <= self.naive_class < num_classes:
            raise ValueError(
                f"`naive_class` must lie in 0..C-1 = 0..{num_classes - 1}, got {self.naive_class}."
            )
        num_seniors = len(self.seniors)
        for junior, senior in enumerate(self.copied):
            if not 0 <= senior < num_seniors:
                raise ValueError(
                    f"`copied` must lie in 0..M_s-1 = 0..{num_seniors - 1}, "
                    f"got {senior} at junior {junior}."
                )


def _check_confusions(seniors: Tensor, num_classes: int) -> None:
    """Raise unless `seniors` is (M_s, C, C) with a distribution in each row."""
    if not isinstance(seniors, Tensor) or not seniors.is_floating_point():
        actual = seniors.dtype if isinstance(seniors, Tensor) else type(seniors).__name__
        raise TypeError(f"`seniors` must be a floating-point tensor, got {actual}.")
    if seniors.ndim != 3 or seniors.shape[1:] != (num_classes, num_classes) or len(seniors) == 0:
        raise ValueError(
            f"`seniors` must be (M_s, C, C) = (M_s, {num_classes}, {num_classes}), M_s at least 1, "
            f"got {tuple(seniors.shape)}: each senior has a confusion matrix over the classes."
        )
    outside = ~((seniors >= 0) & (seniors <= 1))  # written so that NaN counts as outside
    if outside.any():
        m, c, r = outside.nonzero()[0].tolist()
        raise ValueError(
            f"`seniors` must lie in 0..1, got {seniors[m, c, r].item():.6g} "
            f"at senior {m}, true class {c}, reported class {r}."
        )
    sums = seniors.double().sum(dim=-1)
    uneven = (sums - 1).abs() > 1e-6
    if uneven.any():
        m, c = uneven.nonzero()[0].tolist()
        raise ValueError(
            f"`seniors` must have rows that sum to 1, got {sums[m, c].item():.6g} "
            f"at senior {m}, true class {c}: rows are true classes, columns are reported classes."
        )


def uniform_mistakes(*right: float) -> Tensor:
    """Confusion of an annotator whose mistakes are spread evenly over the wrong classes.

    Args:
        right: C probabilities, `right[c]` = P(says c given true class c). With two classes this is
            the paper's "expertise" of LUNA16, such as 0.6/0.9 for benign/malignant.

    Returns:
        (C, C), float64, truth in rows.

    Raises:
        ValueError: if there are fewer than two classes, or a probability is outside 0..1.

    Example:
        >>> uniform_mistakes(0.6, 0.9)
        tensor([[0.6000, 0.4000],
                [0.1000, 0.9000]], dtype=torch.float64)
    """
    num_classes = len(right)
    if num_classes < 2:
        raise ValueError(
            f"`right` must be at least 2 probabilities, one per class, got {num_classes}."
        )
    for c, probability in enumerate(right):
        if not 0 <= probability <= 1:
            raise ValueError(f"`right` must lie in 0..1, got {probability} at class {c}.")
    on_diagonal = torch.tensor(right, dtype=torch.float64).unsqueeze(1)
    elsewhere = (1 - on_diagonal) / (num_classes - 1)
    return torch.where(torch.eye(num_classes, dtype=torch.bool), on_diagonal, elsewhere)


# In CIFAR-10 (H) all mistakes stay within these pairs, named in the paper's order.
HARD_PAIRS = (
    ("cat", "dog"),
    ("deer", "horse"),
    ("airplane", "bird"),
    ("automobile", "truck"),
    ("frog", "ship"),
)
# P(right) on the first and on the second class of each pair.
_KNOWS, _GUESSES, _ALWAYS_SAYS_FIRST = (1.0, 1.0), (0.5, 0.5), (1.0, 0.0)


def _pair_mistakes(*right: tuple[float, float]) -> Tensor:
    """Confusion (10, 10) of an expert of CIFAR-10 (H): two values of P(right) per hard pair."""
    confusion = torch.zeros(len(CIFAR10), len(CIFAR10), dtype=torch.float64)
    for names, both_right in zip(HARD_PAIRS, right, strict=True):
        pair = torch.tensor([CIFAR10.index(name) for name in names])
        confusion[pair.unsqueeze(1), pair] = uniform_mistakes(*both_right)
    return confusion


# Appendix B; "high" and "low" are its (H) and (L). `copied`: 0 is senior A, 2 is senior C. The
# paper writes Dogs vs. Cats expertise as dogs/cats; here it stands in class order, cats first.
# Where the authors' published code differs we follow the paper: it lists the experts of Dogs vs.
# Cats and LUNA16 in another order, gives CIFAR-10 (L) 5 naive juniors in place of 15, and in LUNA16
# (H) three juniors copy A and two copy C.
EXPERTS = {
    ("dogs_vs_cats", "high"): Experts(
        name="Dogs vs. Cats (H)",
        classes=DOGS_VS_CATS,
        seniors=torch.stack(
            [
                uniform_mistakes(0.8, 0.6),  # A: 0.6/0.8 in the paper, knows cats
                uniform_mistakes(0.6, 0.6),  # B
                uniform_mistakes(0.6, 0.9),  # C: knows dogs
                uniform_mistakes(0.7, 0.7),  # D
                uniform_mistakes(0.7, 0.6),  # E
            ]
        ),
        num_naive=5,
        naive_class=DOGS_VS_CATS.index("cat"),
        copied=(0, 0, 2, 2, 2),
    ),
    ("dogs_vs_cats", "low"): Experts(
        name="Dogs vs. Cats (L)",
        classes=DOGS_VS_CATS,
        seniors=torch.stack([uniform_mistakes(0.55, 0.55)] * 10),
        num_naive=15,
        naive_class=DOGS_VS_CATS.index("cat"),
        copied=(0, 2),
    ),
    ("cifar10", "high"): Experts(
        name="CIFAR-10 (H)",
        classes=CIFAR10,
        seniors=torch.stack(
            [
                _pair_mistakes(*[_ALWAYS_SAYS_FIRST] * 5),  # A
                _pair_mistakes(*[_GUESSES] * 5),  # B
                _pair_mistakes(*[_KNOWS] * 2, *[_GUESSES] * 3),  # C: knows mammals
                _pair_mistakes(*[_ALWAYS_SAYS_FIRST] * 2, *[_KNOWS] * 3),  # D: knows vehicles
                _pair_mistakes(*[(0.6, 0.6)] * 5),  # E
            ]
        ),
        num_naive=5,
        naive_class=CIFAR10.index("airplane"),
        copied=(0, 0, 2, 2, 2),
    ),
    ("cifar10", "low"): Experts(
        name="CIFAR-10 (L)",
        classes=CIFAR10,
        seniors=torch.stack([uniform_mistakes(*[0.2] * 10)] * 10),
        num_naive=15,
        naive_class=CIFAR10.index("airplane"),
        copied=(0, 2),
    ),
    ("luna16", "high"): Experts(
        name="LUNA16 (H)",
        classes=LUNA16,
        seniors=torch.stack(
            [
                uniform_mistakes(0.6, 0.9),  # A: tends to say malignant
                uniform_mistakes(0.7, 0.7),  # B
                uniform_mistakes(0.9, 0.6),  # C: tends to say benign
                uniform_mistakes(0.6, 0.7),  # D
                uniform_mistakes(0.7, 0.6),  # E
            ]
        ),
        num_naive=5,
        naive_class=LUNA16.index("benign"),
        copied=(0, 0, 2, 2, 2),
    ),
    ("luna16", "low"): Experts(
        name="LUNA16 (L)",
        classes=LUNA16,
        seniors=torch.stack([uniform_mistakes(0.6, 0.6)] * 10),
        num_naive=15,
        naive_class=LUNA16.index("benign"),
        copied=(0, 2),
    ),
}


def experts(dataset: str, expertise: str) -> Experts:
    """Look up one of the paper's six crowds (Appendix B).

    Args:
        dataset: `dogs_vs_cats`, `cifar10` or `luna16`.
        expertise: `high` for the paper's (H), `low` for its (L).

    Returns:
        The row of `EXPERTS`.

    Raises:
        ValueError: if the paper has no such data set or expertise.

    Example:
        >>> experts("luna16", "high").seniors[0]
        tensor([[0.6000, 0.4000],
                [0.1000, 0.9000]], dtype=torch.float64)
    """
    datasets = list(dict.fromkeys(dataset for dataset, _ in EXPERTS))
    expertises = list(dict.fromkeys(expertise for _, expertise in EXPERTS))
    if dataset not in datasets:
        raise ValueError(f"`dataset` must be one of {', '.join(datasets)}, got {dataset!r}.")
    if expertise not in expertises:
        raise ValueError(f"`expertise` must be one of {', '.join(expertises)}, got {expertise!r}.")
    return EXPERTS[dataset, expertise]
