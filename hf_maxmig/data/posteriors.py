"""Posteriors of the items, computed before a training, as a column of its data set.

The collator passes the column on (`collator.py`); each method computes the posteriors itself.
"""

from typing import Any

import numpy as np

from .collator import POSTERIOR_COLUMN


class WithPosterior:
    """A data set whose examples also have `crowd_posterior`, whatever its format or transform.

    Args:
        dataset: any data set with a length.
        posterior: (N, C), of its items in their order.

    Raises:
        ValueError: if their numbers differ.

    Example:
        >>> WithPosterior([{"x": 0.5}], np.array([[0.2, 0.8]]))[0]["crowd_posterior"]
        array([0.2, 0.8])
    """

    def __init__(self, dataset: Any, posterior: np.ndarray) -> None:
        if len(dataset) != len(posterior):
            raise ValueError(
                f"`posterior` must have one row per item = {len(dataset)}, got {len(posterior)}."
            )
        self.dataset = dataset
        self.posterior = posterior

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {**self.dataset[i], POSTERIOR_COLUMN: self.posterior[i]}

    def __getitems__(self, rows: list[int]) -> list[dict[str, Any]]:
        if hasattr(self.dataset, "__getitems__"):
            examples = self.dataset.__getitems__(rows)
        else:
            examples = [self.dataset[i] for i in rows]
        return [
            {**example, POSTERIOR_COLUMN: self.posterior[i]}
            for example, i in zip(examples, rows, strict=True)
        ]
