"""One item that somebody shows to the model, and votes on it, one after the other: what follows from each."""

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..model.items import ItemReader, reads_rows
from ..model.modeling_maxmig import CrowdModel
from ..model.opening import short

Vote = tuple[int, int]  # number of the annotator, number of the class


@dataclass(frozen=True)
class Step:
    """What is believed after a vote.

    Args:
        vote: the vote; None before the first.
        aggregator: (C,) probabilities of g; None if the method has none.
        forecast: (C,) probabilities of zeta, likewise.
    """

    vote: Vote | None
    aggregator: Tensor | None
    forecast: Tensor | None


@dataclass(frozen=True)
class Answer:
    """What the model says of an item.

    Args:
        classifier: (C,) probabilities of h.
        steps: before the votes, and after each of them.
    """

    classifier: Tensor
    steps: list[Step]


class Trying:
    """A model that answers about items, one at a time.

    Args:
        model: a crowd model.
        processor: what was saved beside it: image processor, tokenizer, feature extractor, table processor; or None.

    Raises:
        ValueError: if the model reads texts or sounds, and there is no processor of them.

    Example:
        >>> from hf_maxmig import HeadClassifier, HeadConfig, MaxMIGModel
        >>> head = HeadClassifier(HeadConfig(input_size=2, id2label={0: "cat", 1: "dog"}))
        >>> model = MaxMIGModel.from_classifier(head, annotators=["ann", "bob"])
        >>> model.initialize_crowd([(torch.tensor([[0, 1]] * 9), torch.tensor([[0, 0]] * 9))])
        >>> trying = Trying(model)
        >>> answer = trying.answer({"features": [0.0, 0.0]}, [(0, 0), (1, 0)])
        >>> [step.vote for step in answer.steps]
        [None, (0, 0), (1, 0)]
        >>> trying.takes
        'numbers'
    """

    def __init__(self, model: CrowdModel, processor: Any = None) -> None:
        self.model, config = model.eval(), model.config
        self.reader = ItemReader(model.classifier, config.classifier_task, processor)
        self.annotators = config.annotators or [str(m) for m in range(config.num_annotators)]
        self.classes = config.class_names
        self._one_at_a_time = threading.Lock()  # tokenizers cannot be used by two threads

    @property
    def takes(self) -> str:
        """What somebody shows: `image`, `text`, `audio`, `columns` of a row, or `numbers`."""
        if not self.reader.makes:
            return "numbers"
        return "columns" if reads_rows(self.reader.processor) else self.reader.content

    @property
    def columns(self) -> list[dict[str, Any]]:
        """The columns of a row, as `TableProcessor` describes them."""
        return self.reader.processor.columns if self.takes == "columns" else []

    @property
    def size(self) -> int | None:
        """How many numbers an item has, where it is `numbers`."""
        return getattr(self.model.classifier.config, "input_size", None)

    @torch.no_grad()
    def answer(self, item: Any, votes: Sequence[Vote] = ()) -> Answer:
        """Classify an item, and follow the votes on it.

        Args:
            item: as `ItemReader` takes it.
            votes: in their order; an annotator may vote more than once.

        Returns:
            The probabilities.

        Raises:
            TypeError, ValueError, OSError: if the item cannot be read.
            IndexError: if a vote is of nobody, or for no class.
        """
        for m, c in votes:
            if not (0 <= m < len(self.annotators) and 0 <= c < len(self.classes)):
                raise IndexError(f"a vote must be of an annotator for a class, got ({m}, {c}).")
        with self._one_at_a_time:
            inputs = self.reader.batch([self.reader(item, 0)], 0)
            rows, width = len(votes) + 1, max(1, len(votes))
            who, said = torch.full((2, rows, width), -1)
            for row in range(1, rows):  # the votes up to this one
                who[row, :row], said[row, :row] = torch.tensor(votes[:row]).T
            device = self.model.device
            batch = {n: t.expand(rows, *t.shape[1:]).to(device) for n, t in inputs.items()}
            outputs = self.model(**batch, annotators=who.to(device), annotations=said.to(device))
        tables = (outputs.aggregator_logits, outputs.forecast_logits)
        g, zeta = (None if t is None else t.float().softmax(dim=-1).cpu() for t in tables)
        steps = [
            Step(vote, None if g is None else g[i], None if zeta is None else zeta[i])
            for i, vote in enumerate([None, *votes])
        ]
        return Answer(outputs.log_h[0].float().exp().cpu(), steps)

    def row(self, cells: Sequence[Any]) -> dict[str, Any]:
        """Put the cells of a form into a row.

        Args:
            cells: one a column; None where a value is not known. A truth value is 0 or 1, a category its place
                among the column's categories.

        Returns:
            The row, as the table processor takes it.
        """
        return {
            column["name"]: column["categories"][cell]
            if column["kind"] == "category" and cell is not None
            else cell
            for column, cell in zip(self.columns, cells, strict=True)
        }

    def features(self, text: str) -> dict[str, Any]:
        """Read the numbers of an item.

        Args:
            text: numbers between which there is white space, a comma or a semicolon.

        Returns:
            The item, as the classifier takes it.

        Raises:
            ValueError: if something is no number.

        Example:
            >>> Trying.features(None, "1, 2.5")
            {'features': [1.0, 2.5]}
        """
        words = text.replace(",", " ").replace(";", " ").split()
        try:
            return {"features": [float(word) for word in words]}
        except ValueError as error:
            raise ValueError(f"an item must be numbers, got {short(text)}.") from error


def meaning_of(error: Exception) -> str:
    """Say in a sentence for a page why an item could not be read.

    Args:
        error: from `Trying.answer`.

    Returns:
        The error's message, without the path of the file, which only the server knows.

    Example:
        >>> meaning_of(ValueError("item 0 must be a picture that can be read, got '/tmp/x/a.png': cannot identify it."))
        'This must be a picture that can be read, got a file that is not: cannot identify it.'
    """
    text = str(error).replace("item 0 must", "This must").replace(" at item 0", "")
    before, got, after = text.partition("that can be read, got ")
    if got:
        reason = re.split("""['"]/""", after.partition(": ")[2])[0].rstrip(" .")
        text = f"{before}{got}a file that is not: {reason}."
    return text[:1].upper() + text[1:]


def leading(probabilities: Tensor, most: int) -> list[int]:
    """Choose the classes that a page shows.

    Args:
        probabilities: (C,).
        most: how many.

    Returns:
        Their numbers, the likeliest first.

    Example:
        >>> leading(torch.tensor([0.2, 0.5, 0.3]), 2)
        [1, 2]
    """
    return probabilities.sort(descending=True, stable=True).indices[:most].tolist()
