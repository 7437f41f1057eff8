"""WAUM: find the items that are too ambiguous to learn from, and leave them out before any method.

T. Lefort, B. Charlier, A. Joly, J. Salmon. Identify Ambiguous Tasks Combining Crowdsourced Labels by
Weighting Areas Under the Margin. Transactions on Machine Learning Research, 2024. It is no crowd model: a
user calls `waum_filter` on a data set, and trains any method on what is left.
"""

import copy
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import one_hot

from ..data.collator import padded
from ..data.columns import crowd_names, named_annotators
from ..data.numbered import part_of
from ..data.posteriors import WithPosterior
from ..metrics import chance_of_right
from ..model.functional import Posteriors, confusion
from ..model.outputs import PosteriorParts
from ..model.votes import Votes
from ..training.trainer import CrowdTrainer
from ..training.training import votes_of
from ..training.training_args import MaxMIGTrainingArguments
from .aggregated import aggregate_labels
from .posterior_targets import PosteriorTargetModel, votes_in_full

EPOCHS = 50  # the authors' on most of their data


class MarginsModel(PosteriorTargetModel):
    """A classifier that learns each vote as an item, and notes the margin of each vote after each epoch.

    Its training set has an item once for each vote on it. `said` is set before it is trained.

    Args:
        config: the model's configuration.
        classifier: h, if already built; see `from_classifier`.
    """

    method = "WAUM"  # its name in errors and logs
    reference = "Lefort et al. Identify Ambiguous Tasks Combining Crowdsourced Labels by Weighting Areas Under the Margin. TMLR 2024."
    said: Tensor  # (V,) int64, the class that each vote names
    margins: list[Tensor]  # of each epoch, (V,)
    log_h: Tensor  # (V, C), after the last epoch

    def prepare(self, dataset: Any, crowd: Iterable[Votes], unseen: Tensor | None = None) -> Any:
        """Add the one vote that counts to each of its V rows."""
        return WithPosterior(dataset, one_hot(self.said, self.config.num_labels).float().numpy())

    def end_epoch(self, parts: PosteriorParts, progress: float) -> None:
        """Note margins and posteriors of all votes."""
        self.log_h = torch.cat([Posteriors(*posteriors).log_h for posteriors, *_ in parts])
        self.margins.append(margins(self.log_h.exp(), self.said))


def margins(p: Tensor, said: Tensor) -> Tensor:
    """Compute how far the probability of a class is above the second largest one.

    Args:
        p: (V, C), probabilities.
        said: (V,) int64, the class of each row.

    Returns:
        (V,), negative where the class is not among the two largest.

    Example:
        >>> margins(torch.tensor([[0.75, 0.25, 0.0], [0.75, 0.25, 0.0]]), torch.tensor([0, 2]))
        tensor([ 0.5000, -0.2500])
    """
    return p.gather(1, said[:, None])[:, 0] - p.topk(2, dim=1).values[:, 1]


def weighted_means(
    values: NDArray[np.floating],
    weights: NDArray[np.floating],
    item: NDArray[np.integer],
    number: int,
) -> NDArray[np.floating]:
    """Average values of votes over the votes on each item, by their weights: the formula of WAUM.

    Args:
        values: (V,), the margin of each vote, averaged over epochs.
        weights: (V,), how far its annotator is trusted.
        item: (V,), the item of each vote.
        number: N.

    Returns:
        (N,), sum_m s_im AUM_im / sum_m s_im; NaN for an item without votes.

    Example:
        >>> weighted_means(np.array([1.0, 0.0, 0.5]), np.array([0.75, 0.25, 1.0]), np.array([0, 0, 2]), 3)
        array([0.75,  nan, 0.5 ])
    """
    total = np.bincount(item, weights, number)
    summed = np.bincount(item, weights * values, number)
    return np.divide(summed, total, out=np.full(number, np.nan), where=total > 0)


def waum_scores(
    dataset: Dataset,
    classifier: nn.Module,
    args: MaxMIGTrainingArguments | None = None,
    epochs: float = EPOCHS,
    *,
    processing_class: Any = None,
    data_collator: Callable[[list[dict[str, Any]]], dict[str, Tensor]] | None = None,
) -> NDArray[np.floating]:
    """Score each item by how clearly a classifier learns the votes on it, trusted annotators first.

    A copy of the classifier learns every vote as an item of its own. AUM_im is the mean over epochs of the
    margin of m's vote: its probability minus the second largest one. An annotator is trusted on an item
    by s_im = sum_c p_ic A^m_cc: p of the classifier after the last epoch, and A of Dawid and Skene. The score is
    sum_m s_im AUM_im / sum_m s_im, in -1..1: low where votes contradict each other, or the image shows something
    else than they say.

    The margins are those after each epoch, without dropout; the authors take them while they train.

    Args:
        dataset: with crowd columns; gold labels are not looked at.
        classifier: as for `CrowdTrainer`; it is not changed.
        args: of the training; by default those of `MaxMIGTrainingArguments`.
        epochs: how many.
        processing_class: as in `CrowdTrainer`.
        data_collator: as in `CrowdTrainer`.

    Returns:
        (N,), the scores; NaN for an item without votes.

    Raises:
        ImportError: if crowd-kit is not installed.
        TypeError: if `dataset` is not a `datasets.Dataset`.
        ValueError: if its features do not name the annotators, there are no votes, or votes have weights.
    """
    names = named_annotators(dataset)
    classes = crowd_names(dataset)[1]
    with tempfile.TemporaryDirectory() as folder:
        if args is None:
            args = MaxMIGTrainingArguments(folder, report_to="none")
        args = copy.copy(args)
        args.output_dir, args.num_train_epochs, args.max_steps = folder, epochs, -1
        model = MarginsModel.from_classifier(
            copy.deepcopy(classifier), annotators=names,
            id2label=None if classes is None else dict(enumerate(classes)),
        )  # fmt: skip
        crowd = padded(votes_of(dataset, model))
        votes = votes_in_full([crowd], model.method, "it learns each vote as an item of its own")
        model.said, model.margins = votes.annotation, []
        num_classes = model.config.num_labels
        said = aggregate_labels([crowd], "DawidSkene", num_classes)  # raises before the training
        trainer = CrowdTrainer(
            model=model, args=args, train_dataset=part_of(dataset, votes.item.tolist()),
            processing_class=processing_class, data_collator=data_collator,
        )  # fmt: skip
        trainer.short_trainer(model, list(range(len(votes))), share=1.0).train()
    matrices = confusion(torch.from_numpy(said), crowd.annotators, crowd.annotations, len(names))
    item, who = votes.item.numpy(), votes.annotator.numpy()
    trust = chance_of_right(model.log_h.exp().numpy(), matrices.numpy(), who[:, None])[:, 0]
    return weighted_means(torch.stack(model.margins).mean(dim=0).numpy(), trust, item, len(dataset))


def waum_filter(
    dataset: Dataset,
    classifier: nn.Module,
    alpha: float = 0.01,
    args: MaxMIGTrainingArguments | None = None,
    epochs: float = EPOCHS,
    **options: Any,
) -> Dataset:
    """Leave out the items whose score by `waum_scores` is below a quantile, before a training by any method.

    Args:
        dataset: as in `waum_scores`.
        classifier: as in `waum_scores`.
        alpha: the share of items to leave out. The authors take 0.01 on LabelMe, 0.05 on Music and 0.1 on
            simulated crowds; no default is right for all.
        args: as in `waum_scores`.
        epochs: as in `waum_scores`.
        **options: as in `waum_scores`.

    Returns:
        The other items, in their order; those without votes, and those tied at the quantile, stay.

    Raises:
        ValueError: if `alpha` is not in 0..1; otherwise as `waum_scores`.
    """
    if not 0 <= alpha < 1:
        raise ValueError(
            f"`alpha` must be a share of the items, 0 or more and below 1, got {alpha}."
        )
    scores = waum_scores(dataset, classifier, args, epochs, **options)
    return part_of(dataset, np.flatnonzero(~(scores < np.nanquantile(scores, alpha))).tolist())
