"""Plain versions written from the paper, with which the library is compared, and their inputs.

Not a recipe itself, see `benchmark_speed.py`.
"""

import math
from collections.abc import Sequence

import torch
from datasets import Array3D, ClassLabel, Dataset, Features, List, Value
from torch import Tensor, nn
from torch.nn.functional import linear, one_hot

from hf_maxmig import crowd_features

SMOOTHING = 0.01  # of the start

# The plain versions


def plain_gain(log_h: Tensor, log_g: Tensor, log_p: Tensor, divergence: str = "kl") -> Tensor:
    """Equation 1 as it is printed: df of all N x N ratios, f* of that, and a mask for each mean."""
    N = len(log_h)
    K = torch.einsum("ic,jc->ij", log_h.exp() / log_p.exp(), log_g.exp())
    same = torch.eye(N, dtype=K.dtype)
    if divergence == "kl":
        reward = 1 + K.log()
        penalty = (reward - 1).exp()
    elif divergence == "pearson":
        reward = 2 * (K - 1)
        penalty = reward + reward**2 / 4
    else:
        reward = (2 * K / (1 + K)).log()
        penalty = -(2 - reward.exp()).log()
    return (reward * same).sum() / N - (penalty * (1 - same)).sum() / (N * (N - 1))


def lean_pairwise_gain(log_h: Tensor, log_g: Tensor, log_p: Tensor) -> Tensor:
    """KL with Table 1's last column and logs on the diagonal only: as lean as N x N ratios get."""
    N = len(log_h)
    K = torch.einsum("ic,jc->ij", log_h.exp() / log_p.exp(), log_g.exp())
    agree = K.diagonal()
    return (1 + agree.log()).mean() - (K.sum() - agree.sum()) / (N * (N - 1))


class PlainAggregator(nn.Module):
    """The aggregator as M linear layers, each on its annotator's one-hot row."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weights = nn.ParameterList(matrix.clone() for matrix in weight)

    def forward(self, log_p: Tensor, one_hots: Tensor) -> Tensor:
        """Aggregate (B, M, C) rows, zero for missing labels, into (B, C) log g."""
        score = log_p
        for m, weight in enumerate(self.weights):
            score = score + linear(one_hots[:, m], weight)
        return score.log_softmax(dim=-1)


def plain_initial_weight(dense: Tensor, num_classes: int, smoothing: float) -> Tensor:
    """Equation 2, annotator by annotator, from (M, N) labels with -1 for none; all items at once."""
    classes = torch.arange(num_classes, dtype=dense.dtype)
    votes = torch.stack([(dense == c).sum(dim=0) for c in classes], dim=1).float()
    share = votes / votes.sum(dim=1, keepdim=True).clamp(min=1)
    weight = torch.zeros(len(dense), num_classes, num_classes)
    for m, said in enumerate(dense):
        counts = share.T @ (said[:, None] == classes).float() + smoothing
        if (said >= 0).any():
            weight[m] = (counts / counts.sum(dim=1, keepdim=True)).log()
    return weight


def triple_loop_initial_weight(
    dense: list[list[int]], num_classes: int, smoothing: float
) -> list[list[list[float]]]:
    """Equation 2 by a loop over annotators, items and classes, from M lists of N labels."""
    num_items = len(dense[0])
    share = []
    for i in range(num_items):
        said = [labels[i] for labels in dense if labels[i] >= 0]
        share.append([said.count(c) / max(1, len(said)) for c in range(num_classes)])
    weight = []
    for labels in dense:
        counts = [[smoothing] * num_classes for _ in range(num_classes)]
        seen = False
        for i in range(num_items):
            if labels[i] >= 0:
                seen = True
                for c in range(num_classes):
                    counts[c][labels[i]] += share[i][c]
        weight.append([[math.log(n / sum(row)) if seen else 0.0 for n in row] for row in counts])
    return weight


# Inputs


def gain_inputs(
    N: int, C: int, generator: torch.Generator, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Draw log h, log g and log p, as leaves that require a gradient."""
    return [
        torch.randn(shape, generator=generator, dtype=dtype).log_softmax(-1).requires_grad_()
        for shape in ((N, C), (N, C), (C,))
    ]


def draw_crowd(
    N: int,
    M: int,
    C: int,
    counts: Sequence[int],
    generator: torch.Generator,
    right: float = 0.0,
) -> tuple[list[list[int]], list[list[int]]]:
    """Draw ragged labels.

    Args:
        N: items.
        M: annotators.
        C: classes.
        counts: an item has one of these numbers of different annotators, all equally likely.
        generator: of the draw.
        right: share of the labels that say the item's class; the others say any.

    Returns:
        Who labelled each item, and what each of them said.
    """
    which = torch.randint(len(counts), (N,), generator=generator).tolist()
    most = min(M, max(counts))
    # Steps of one length around the circle of annotators: different ones, without a permutation an
    # item.
    first = torch.randint(M, (N, 1), generator=generator)
    who = ((first + (M // most) * torch.arange(most)) % M).tolist()
    said = torch.randint(C, (N, most), generator=generator)
    if right:
        truth = torch.randint(C, (N, 1), generator=generator)
        said = torch.where(torch.rand(said.shape, generator=generator) < right, truth, said)
    what = said.tolist()
    return (
        [row[: counts[n]] for row, n in zip(who, which, strict=True)],
        [row[: counts[n]] for row, n in zip(what, which, strict=True)],
    )


def crowd_dataset(
    N: int, M: int, C: int, generator: torch.Generator, right: float = 0.0
) -> Dataset:
    """Make a data set of the two crowd columns, three labels per item."""
    annotators, annotations = draw_crowd(N, M, C, [min(M, 3)], generator, right)
    return Dataset.from_dict(
        {"annotators": annotators, "annotations": annotations},
        features=crowd_features([f"annotator {m}" for m in range(M)], [str(c) for c in range(C)]),
    )


def dense_labels(annotators: Tensor, annotations: Tensor, num_annotators: int) -> Tensor:
    """Spread (N, K) pairs, padded with -1, over an (M, N) int8 matrix with -1 for none."""
    dense = torch.full((num_annotators, len(annotators)), -1, dtype=torch.int8)
    item, slot = (annotators >= 0).nonzero(as_tuple=True)
    dense[annotators[item, slot], item] = annotations[item, slot].to(torch.int8)
    return dense


def one_hot_rows(
    annotators: Tensor, annotations: Tensor, num_annotators: int, num_classes: int
) -> Tensor:
    """Make (B, M, C) rows of padded (B, K) pairs: zero where an annotator gave no label."""
    labels = dense_labels(annotators, annotations, num_annotators).T.long()
    return one_hot(labels + 1, num_classes + 1)[..., 1:].float()


def noise_dataset(
    column: str, N: int, C: int, shape: tuple[int, ...], generator: torch.Generator
) -> Dataset:
    """Make noise for items, with gold labels: a step costs the same whatever they show."""
    kind = Array3D(shape, "float32") if len(shape) == 3 else List(Value("float32"), length=shape[0])
    features = Features({column: kind, "labels": ClassLabel(names=[str(c) for c in range(C)])})
    noise = torch.randn((N, *shape), generator=generator).numpy()
    labels = torch.randint(C, (N,), generator=generator).tolist()
    return Dataset.from_dict({column: noise, "labels": labels}, features=features)
