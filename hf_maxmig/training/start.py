"""The start of a training, as a value: found before the first step, and kept whole in each checkpoint."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from ..model.modeling_maxmig import CrowdModel
from ..model.whole_files import staged
from .cross_fit import CrossFitted, check_found_for
from .gold import number_of

FILE, ITEMS = "start.json", "start.safetensors"  # in a checkpoint
UNSEEN = "unseen.safetensors"


@dataclass(frozen=True)
class Start:
    """What was found before a training.

    Args:
        init: the way: `cross_fit`, `information`, `vote_share` or `keep`.
        rate: of W; None if none was searched for.
        prior: the kind of prior, as in the model's config; None if it stays as it was.
        aggregator: the kind of aggregator, as in the model's config; None if it stays as it was.
        tried: the gain, or the likelihood of a left-out vote, of each setting that was tried.
        gold_labels: how many gold labels of the training items were used.
        items: the result of cross-fitting, if the training starts so.
        unseen: (N, C), the result of `cross_validation.unseen_posteriors`, if the method asks for it.
        state: the first parameters of the model by name, without those that stay. A checkpoint does not
            hold them, for it has the model's own.

    Example:
        >>> import tempfile
        >>> found = Start("information", rate=0.1, prior="learned", tried={"gain_0.1": 0.7})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     found.save(Path(folder))
        ...     Start.load(Path(folder)) == found
        True
    """

    init: str
    rate: float | None = None
    prior: str | list[float] | None = None
    aggregator: str | None = None
    tried: dict[str, float] = field(default_factory=dict)
    gold_labels: int = 0
    items: CrossFitted | None = None
    unseen: Tensor | None = None
    state: dict[str, Tensor] = field(default_factory=dict)

    def of(self, model: CrowdModel) -> "Start":
        """Take the kinds of prior and aggregator from a model, which may be older than this training."""
        prior, aggregator = (getattr(model.config, name, None) for name in ("prior", "aggregator"))
        return dataclasses.replace(self, prior=prior, aggregator=aggregator)

    def save(self, folder: Path) -> None:
        """Write it into a checkpoint, without the parameters."""
        values: dict[str, Any] = {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if f.name not in ("items", "unseen", "state")
        }
        with staged(folder / FILE) as place:
            place.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        if self.items is not None:
            self.items.save(folder / ITEMS)
        if self.unseen is not None:
            save_file({"unseen": self.unseen.contiguous()}, folder / UNSEEN)

    @classmethod
    def load(cls, folder: Path) -> "Start":
        """Read what `save` wrote; without a file, return the start `keep`."""
        if not (folder / FILE).is_file():
            return cls("keep")
        values = json.loads((folder / FILE).read_text(encoding="utf-8"))
        items = CrossFitted.load(folder / ITEMS) if (folder / ITEMS).is_file() else None
        unseen = load_file(folder / UNSEEN)["unseen"] if (folder / UNSEEN).is_file() else None
        return cls(**values, items=items, unseen=unseen)

    def logs(self) -> dict[str, float]:
        """Return the entries of the log: the settings that were tried, and the rate that was chosen."""
        if self.rate is None:
            return dict(self.tried)
        return {f"search_{n}": gain for n, gain in self.tried.items()} | {
            "aggregator_learning_rate": self.rate
        }


def check_start(start: Start, dataset: Any, gold: Tensor | None) -> None:
    """Raise if a start was found for another training set, or by other gold labels.

    Args:
        start: of a checkpoint.
        dataset: the training set.
        gold: (N,) int64, its gold labels that the user hands over, -1 for none; None if none are used.

    Raises:
        ValueError: as `check_found_for`; if more or fewer gold labels were used; or if posteriors are of
            another number of items.
    """
    if start.items is not None:
        check_found_for(start.items, dataset, gold)
    if start.unseen is not None and len(start.unseen) != len(dataset):
        raise ValueError(
            f"the training set must be that of the checkpoint, N = {len(start.unseen)} items, got {len(dataset)}: the "
            "checkpoint holds what classifiers that have not seen an item say of it."
        )
    used = number_of(gold)
    if start.gold_labels != used:
        raise ValueError(
            f"the gold labels in use must be those of the checkpoint, {start.gold_labels} of them, got {used}: "
            "set `use_gold_labels` as it was, or train anew."
        )
