"""`pipeline("crowd-forecast", model=...)`: forecasts from items and votes, as users have them.

Votes name annotators and classes; pictures and sounds are files or already opened; texts are strings; the row of a
table is a dict.
This module turns them into numbers and tensors. Whole data sets with crowd columns go through
`trainer.predict` and `trainer.relabel`. The Hub carries this with the model: without the package,
`trust_remote_code=True` finds it.
"""

import os
import types
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset
from transformers import Pipeline
from transformers.utils import logging

from .annotator_names import hashed_names
from .items import ALL_CROWD_COLUMNS, ItemReader
from .named_votes import Vote, numbers_of, some_of, votes_in_numbers, votes_in_pairs
from .opening import short

logger = logging.get_logger(__name__)

TASK = "crowd-forecast"


class ForecastPipeline(Pipeline):
    """Forecast the classes of items from the items themselves and the crowd's votes on them.

    Importing the package registers it: `pipeline("crowd-forecast", model=folder_or_name)`. It loads
    the model and the image processor (or tokenizer, feature extractor, table processor) saved beside it,
    and takes the same items as the classifier: pictures, texts, sounds, rows, or dicts of features. Options, which
    each call may override:

    - `batch_size`: items that go through the model together, 1 by default.
    - `num_workers`: processes that open and process items; none by default.
    - `top_k`: the largest number of classes in an answer, 5 by default.
    - `salt`: the secret with which the model's annotators were hashed before it was shared; votes then
      use the plain names.

    Raises:
        TypeError: if the model has no aggregator.
        ValueError: if it classifies texts without a tokenizer, or sounds without a feature extractor.

    Example:
        >>> from transformers import pipeline
        >>> from hf_maxmig import HeadClassifier, HeadConfig, MaxMIGModel
        >>> head = HeadClassifier(HeadConfig(input_size=2, id2label={0: "cat", 1: "dog"}))
        >>> model = MaxMIGModel.from_classifier(head, annotators=["ann", "bob"])
        >>> model.initialize_crowd([(torch.tensor([[0, 1]] * 9), torch.tensor([[0, 0]] * 9))])
        >>> forecast = pipeline("crowd-forecast", model=model)
        >>> answer = forecast({"features": [0.0, 0.0], "votes": {"ann": "cat"}})
        >>> answer["forecast"][0]["label"], answer["heard"]
        ('cat', [('ann', 'cat')])
    """

    _load_processor = _load_video_processor = False
    _load_image_processor = None  # None: each of the three is loaded if the model has one
    _load_tokenizer = None
    _load_feature_extractor = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Not checked by class: without the package, remote code may define the class a second time.
        if not hasattr(self.model, "initialize_crowd"):
            raise TypeError(
                f"`model` must be a classifier with an aggregator, such as MaxMIGModel, got "
                f"{type(self.model).__name__}: for a classifier alone use its own pipeline."
            )
        config = self.model.config
        annotators = config.annotators or [str(m) for m in range(config.num_annotators)]
        self.annotators, self.classes = numbers_of(annotators), numbers_of(config.class_names)
        processors = self.image_processor, self.tokenizer, self.feature_extractor
        self.reader = ItemReader(
            self.model.classifier,
            config.classifier_task,
            next((p for p in processors if p is not None), None),
        )

    def __call__(self, inputs: Any, **options: Any) -> Any:
        """Forecast one item, or many.

        Args:
            inputs: an item, or a list or a generator of items. An item is a picture, a text or a
                sound, opened or as the path or address of its file; or a dict. The dict holds it as
                `image`, `text` or `audio`, holds the columns of a table's row, or the classifier's own inputs (`features`,
                `pixel_values`, `input_ids`). It may also hold `votes`: a mapping from annotator to
                class, or a list of such pairs. In place of a class there may be `(class, weight)`, how
                sure the annotator is, or a mapping from classes to probabilities. If the model has no names for its annotators, they
                are named by their numbers, from 0. Gold labels are ignored.
            **options: `top_k`, `salt`, `batch_size` and `num_workers` of this call.

        Returns:
            A dict for an item, a list of dicts for a list, an iterator for a generator.
            `forecast` is a list of `{"label": class, "score": probability}`, the likeliest first;
            `heard` are the pairs (annotator, class) that were used, with the weight as a third if one
            was given; `unheard` are those of annotators
            unknown to the model, listed in one warning per call. Without votes the forecast is the
            classifier's.

        Raises:
            TypeError: if an item, or its votes, is none of these.
            ValueError: if a vote names a class that the model does not have; or if an item lacks the
                classifier's input, cannot be read, or has numbers that are not finite. The error
                names the item.
            OSError: if there is no file of that name.
        """
        sizes = {
            name: _at_least(name, options.pop(name, own), least)
            for name, own, least in (
                ("num_workers", self._num_workers, 0),
                ("batch_size", self._batch_size, 1),
            )
        }
        given = zip(
            (self._preprocess_params, self._forward_params, self._postprocess_params),
            self._sanitize_parameters(**options),
            strict=True,
        )
        parameters = [{**before, **now} for before, now in given]
        many = isinstance(inputs, list)
        if many or isinstance(inputs, Dataset | types.GeneratorType):
            answers = self.get_iterator(
                inputs, sizes["num_workers"] or 0, sizes["batch_size"] or 1, *parameters
            )
            return list(answers) if many else answers
        return self.run_single(inputs, *parameters)

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs: Any) -> None:
        """Save the model and its processors; the model itself saves the code of this pipeline."""
        for part in (self.model, self.image_processor, self.tokenizer, self.feature_extractor):
            if part is not None:
                part.save_pretrained(save_directory, **kwargs)

    def _sanitize_parameters(
        self, top_k: int | None = None, salt: str | None = None, **unknown: Any
    ) -> tuple[dict, dict, dict]:
        if unknown:
            raise TypeError(
                "options must be `top_k`, `salt`, `batch_size` or `num_workers`, got "
                f"{', '.join(unknown)}."
            )
        if salt is not None:
            if not isinstance(salt, str) or not _is_unicode(salt):
                raise TypeError(f"`salt` must be text, got {type(salt).__name__}.")
            hashed_names([], salt)  # whether it is long enough
        _at_least("top_k", top_k, 1)
        return (
            {},
            {} if salt is None else {"salt": salt},
            {} if top_k is None else {"top_k": top_k},
        )

    def preprocess(self, item: Any, number: int = 0) -> dict[str, Any]:
        """Open and process one item; its votes are left as they are."""
        fields: Mapping[Any, Any] = item if isinstance(item, Mapping) else {}
        if numbered := [name for name in ALL_CROWD_COLUMNS if name in fields]:
            raise ValueError(
                f"an item's votes must come by name, as `votes`, got {numbered[0]!r} at item {number}: "
                "crowd columns go through `trainer.predict`."
            )
        return {"inputs": self.reader(item, number), "votes": fields.get("votes")}

    def get_iterator(
        self,
        inputs: Any,
        num_workers: int,
        batch_size: int,
        preprocess_params: dict[str, Any],
        forward_params: dict[str, Any],
        postprocess_params: dict[str, Any],
    ) -> Iterator[dict[str, Any]]:
        """Yield the answers in the order of the items; the warning follows the last one."""
        # Transformers' own iterator would pad votes with 0, which is a vote by the first annotator
        # for the first class, and it does not batch features.
        items: Any
        if hasattr(inputs, "__len__"):
            items = _Listed(inputs, self.preprocess)
        else:
            items = _Streamed(inputs, self.preprocess)
            num_workers = min(num_workers, 1)  # each of several would read the whole stream
        loader = DataLoader(items, batch_size, num_workers=num_workers, collate_fn=list)
        start, heard, unheard = 0, 0, Counter[str]()
        for rows in loader:
            votes = [votes_in_pairs(row["votes"], item) for item, row in enumerate(rows, start)]
            numbered = votes_in_numbers(
                _hashed(votes, **forward_params), self.annotators, self.classes, start
            )
            batch = self.reader.batch([row["inputs"] for row in rows], start)
            log_forecast, used = self.forward({**batch, **numbered.as_batch()}, start=start)
            who = numbered.annotators.tolist()
            for row, of_item, numbers in zip(log_forecast, votes, who, strict=True):
                sorted_out: dict[bool, list[Vote]] = {True: [], False: []}
                for pair, m in zip(of_item, numbers, strict=False):  # numbers are padded
                    sorted_out[used and m >= 0].append(pair)
                heard += len(sorted_out[True])
                unheard.update(vote[0] for vote in sorted_out[False])
                forecast = self.postprocess(row, **postprocess_params)
                yield {
                    "forecast": forecast,
                    "heard": sorted_out[True],
                    "unheard": sorted_out[False],
                }
            start += len(rows)
        if unheard:
            why = "unknown to the model" if used else f"not used by {self.model.method}"
            logger.warning(
                "%d of %d votes are %s and add nothing: by %s.",
                unheard.total(), heard + unheard.total(), why, some_of(list(unheard)),
            )  # fmt: skip

    def run_single(self, inputs: Any, *parameters: dict[str, Any]) -> dict[str, Any]:
        """Answer one item."""
        (answer,) = self.get_iterator([inputs], 0, 1, *parameters)
        return answer

    def _forward(self, batch: dict[str, Tensor], start: int = 0) -> tuple[Tensor, bool]:
        """Return (B, C) log-probabilities, and whether the votes went into them."""
        self.model.eval()
        inputs = {
            name: tensor.to(self.dtype) if tensor.is_floating_point() else tensor
            for name, tensor in batch.items()
        }
        try:
            outputs = self.model(**inputs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            shapes = ", ".join(
                f"`{name}` of the shape {tuple(tensor.shape)}"
                for name, tensor in batch.items()
                if name not in ALL_CROWD_COLUMNS
            )
            raise ValueError(
                f"{type(self.model.classifier).__name__} cannot take the items from {start} on, {shapes}: "
                f"{short(error)}."
            ) from error
        zeta = outputs.forecast_logits
        return (outputs.log_h, False) if zeta is None else (zeta, True)

    def postprocess(self, log_forecast: Tensor, top_k: int = 5) -> list[dict[str, Any]]:
        """Name and sort the (C,) log-probabilities of an item."""
        scores, classes = log_forecast.exp().sort(descending=True, stable=True)
        names = list(self.classes)
        return [
            {"label": names[c], "score": score}
            for c, score in zip(classes[:top_k].tolist(), scores[:top_k].tolist(), strict=True)
        ]


class _Listed(Dataset):
    """Items with a length, each with its number."""

    def __init__(self, items: Any, prepare: Any) -> None:
        self.items, self.prepare = items, prepare

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.prepare(self.items[number], number)


class _Streamed(IterableDataset):
    """Items in sequence, each with its number."""

    def __init__(self, items: Any, prepare: Any) -> None:
        self.items, self.prepare = items, prepare

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self.prepare(item, number) for number, item in enumerate(self.items))


def _at_least(name: str, value: Any, least: int) -> int | None:
    """Check an option that may be left out."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise TypeError(f"`{name}` must be a whole number, got {short(value)}.")
    if value is not None and value < least:
        raise ValueError(f"`{name}` must be at least {least}, got {value}.")
    return value


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _hashed(votes: list[list[Vote]], salt: str | None = None) -> list[list[Vote]]:
    """Hash the annotators' names if the model's are hashed; a name that is not Unicode stays."""
    if salt is None:
        return votes
    return [
        [(hashed_names([who], salt)[0] if _is_unicode(who) else who, *rest) for who, *rest in pairs]
        for pairs in votes
    ]


__all__ = ["ForecastPipeline"]
