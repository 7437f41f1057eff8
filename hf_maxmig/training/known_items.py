"""What is known about training items besides the model's answer: from cross-fitting and gold labels."""

from typing import Any

from torch import Tensor
from transformers.trainer_utils import has_length

from ..data.columns import has_crowd_columns
from ..metrics import NO_LABEL
from ..model.functional import Posteriors, forecast
from ..model.modeling_maxmig import CrowdModel
from .cross_fit import CrossFitted, has_votes_of
from .gold import trusted_columns, with_trusted
from .item_features import MOST_NUMBERS


class KnownItems:
    """What is known about the items of a training set.

    Args:
        dataset: the training set.
        found: the result of cross-fitting, if there was one.
        gold: (N,) int64, the gold labels that the user hands over, -1 for none; None if none are used.
    """

    def __init__(
        self, dataset: Any, found: CrossFitted | None = None, gold: Tensor | None = None
    ) -> None:
        self.dataset, self.found, self.gold = dataset, found, gold
        self._has_votes: bool | None = None  # whether the items have the votes of `found`
        # Tables of the items, and their copies on the device of the batches.
        self._moved: dict[int, tuple[Tensor, Tensor]] = {}

    def are(self, dataset: Any) -> bool:
        """Tell whether a data set holds these items in the same order."""
        own = self.dataset
        if not has_length(dataset) or not has_length(own) or len(dataset) != len(own):
            return False
        if self.found is not None and len(dataset) != len(self.found.log_h):
            return False
        mark = getattr(dataset, "_fingerprint", None)
        if dataset is not own and (mark is None or mark != getattr(own, "_fingerprint", None)):
            return False
        if self.found is None:
            return True
        if self._has_votes is None:  # the data set may not be the one that was trained on
            self._has_votes = has_crowd_columns(own) and has_votes_of(self.found, own)
        return self._has_votes

    def rows_of(self, table: Tensor, rows: Tensor) -> Tensor:
        """Look up the rows of a batch in a table, on the batch's device, so that the host does not wait.

        Args:
            table: (N, ...), one row per item.
            rows: (B,) int64, the numbers of the batch's items.
        """
        kept, moved = self._moved.get(id(table), (None, table))
        if kept is not table:
            moved = table.to(rows.device if table.numel() <= MOST_NUMBERS else "cpu")
            self._moved[id(table)] = table, moved
        return moved[rows.to(moved.device)]

    def correct(self, posteriors: Posteriors, rows: Tensor, model: CrowdModel) -> Posteriors:
        """Replace the answers of a model about items that it was trained on by what is known about them.

        Args:
            posteriors: the model's posteriors of a batch.
            rows: (B,) int64, the numbers of the batch's items.
            model: the model.
        """
        log_h, log_g, log_forecast = posteriors
        if self.found is not None:
            # On an item that it was trained on, the classifier repeats the votes.
            log_h = self.found.log_h[rows.cpu()].to(log_h)
            log_forecast = forecast(log_h, log_g, model.log_prior())
        if self.gold is not None and model.loss_is_minus_gain:
            columns = trusted_columns(self.gold[rows.cpu()], log_h.shape[1]).to(log_forecast)
            log_forecast = with_trusted(log_forecast, columns)
        return Posteriors(log_h, log_g, log_forecast)

    def unlearned(self, labels: Tensor, rows: Tensor) -> Tensor:
        """Hide the gold labels that were trained on, so that nothing is measured on them.

        Args:
            labels: (B,) int64, the gold labels of a batch.
            rows: (B,) int64, the numbers of the batch's items.
        """
        if self.gold is None:
            return labels
        learned = (self.gold[rows.cpu()] >= 0).to(labels.device)
        return labels.masked_fill(learned, NO_LABEL)
