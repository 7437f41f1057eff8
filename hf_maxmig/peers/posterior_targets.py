"""Methods that estimate the class of every training item before the training, and what they share.

`prepare` adds the posterior of each item to the training set; the classifier then learns it.
"""

from collections.abc import Iterable, Mapping

from torch import Tensor

from ..data.collator import POSTERIOR_COLUMN
from ..data.flat_votes import FlatVotes
from ..model.cross_entropy import TargetModel
from ..model.votes import Votes


class PosteriorTargetModel(TargetModel):
    """Train on a posterior that `prepare` has added to the training set as `crowd_posterior`.

    Args:
        config: the model's configuration.
        classifier: h, if already built; see `from_classifier`.
    """

    def targets(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the (B, C) posterior that `prepare` has added.

        Raises:
            ValueError: if the batch has none.
        """
        if POSTERIOR_COLUMN not in batch:
            raise ValueError(
                f"a training batch must have `{POSTERIOR_COLUMN}`, got "
                f"{', '.join(batch) or 'nothing'}: see `prepare`."
            )
        return batch[POSTERIOR_COLUMN]


def votes_in_full(crowd: Iterable[Votes], method: str, why: str) -> FlatVotes:
    """Read the votes of a crowd for a method that counts each of them in full.

    Args:
        crowd: the crowd, part by part, in the order of the items.
        method: its name, for errors.
        why: it cannot weigh votes, for errors.

    Raises:
        ValueError: if there are no votes, or they have weights.
    """
    flat = FlatVotes.read(crowd)
    if flat.weight is not None and not bool((flat.weight == 1).all()):
        raise ValueError(
            f"`annotation_weights` must be left out for {method}, or all be 1, got {int((flat.weight != 1).sum())} "
            f"votes of another weight: {why}. Remove the column "
            "(`dataset.remove_columns('annotation_weights')`), or use a method that weighs votes, such as "
            "`majority_vote`, `aggnet` or Max-MIG."
        )
    if not len(flat):
        raise ValueError(
            "the training set must have at least one label by a known annotator, got none: check "
            "the columns `annotators` and `annotations`."
        )
    return flat
