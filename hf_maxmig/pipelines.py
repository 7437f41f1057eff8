"""`pipeline("crowd-forecast", model=...)`: forecasts from pictures and votes, both as people have them.

Votes come by the names of annotators and classes, pictures as files or opened; numbers and tensors
are made here. Whole data sets with crowd columns go through `trainer.predict` and
`trainer.relabel`.
"""

import difflib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

import torch
from datasets import Image
from PIL.Image import Image as Picture
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import Pipeline
from transformers.pipelines.pt_utils import PipelineDataset, PipelineIterator
from transformers.utils import logging

from .configuration_maxmig import hashed_names
from .data.collator import CrowdCollator, input_names
from .data.columns import CROWD_COLUMNS, GOLD_COLUMNS
from .modeling_maxmig import CrowdModel

logger = logging.get_logger(__name__)

TASK = "crowd-forecast"
Votes = Mapping[Any, Any] | Iterable[tuple[Any, Any]]  # annotator: class, or pairs of both

_SHOWN = 5  # how many names an error or a warning lists


def number_votes(
    votes: Sequence[Votes | None],
    annotators: Sequence[str],
    classes: Sequence[str],
    start: int = 0,
) -> tuple[Tensor, Tensor]:
    """Turn votes by name into what a model takes.

    Args:
        votes: of B items, each a mapping from annotator to class, a list of such pairs (an annotator
            may vote twice), or None. Names may be text or numbers.
        annotators: M names, `model.config.annotators`.
        classes: C names, `model.config.class_names`.
        start: number of the first item, for errors.

    Returns:
        Annotators and annotations, each (B, K) int64 padded with -1, K at least 1. An annotator who
        is none of the M is -1, and so adds nothing.

    Raises:
        TypeError: if an item's votes are neither a mapping nor pairs.
        ValueError: if a class is none of the C.

    Example:
        >>> votes = [{"ann": "cat", "eve": "dog"}, [("bob", "dog"), ("bob", "cat"), ("ann", "cat")]]
        >>> who, said = number_votes(votes, annotators=["ann", "bob"], classes=["cat", "dog"])
        >>> who.tolist(), said.tolist()
        ([[0, -1, -1], [1, 1, 0]], [[0, 1, -1], [1, 0, 0]])
    """
    pairs = [_pairs(of_item, item) for item, of_item in enumerate(votes, start)]
    return _numbered(pairs, _numbers(annotators), _numbers(classes), start)


class ForecastPipeline(Pipeline):
    """Forecast the classes of items from what they are and what the crowd says of them.

    Importing the package registers it: `pipeline("crowd-forecast", model=folder_or_name)`. It loads
    the pair and the image processor (or tokenizer, or feature extractor) saved beside it, and takes
    what the classifier takes: pictures, or dicts of features. Options, also of each call:

    - `batch_size`: items that go through the model together, 1 by default.
    - `num_workers`: processes that open and process pictures; none by default.
    - `top_k`: the most classes in an answer, 5 by default.
    - `salt`: of a pair whose annotators' names were hashed before it was shared; votes then come by
      the plain names.

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
    _load_image_processor = None  # each of the three, if there is one beside the pair
    _load_tokenizer = None
    _load_feature_extractor = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(self.model, CrowdModel):
            raise TypeError(
                f"`model` must be a classifier with an aggregator, such as MaxMIGModel, got "
                f"{type(self.model).__name__}: for a classifier alone take its own pipeline."
            )
        config = self.model.config
        annotators = config.annotators or [str(m) for m in range(config.num_annotators)]
        self.annotators, self.classes = _numbers(annotators), _numbers(config.class_names)
        processors = self.image_processor, self.tokenizer, self.feature_extractor
        self.collator = CrowdCollator(
            config.num_annotators,
            config.num_labels,
            processor=next((p for p in processors if p is not None), None),
            input_names=input_names(self.model.classifier),
        )

    def __call__(self, inputs: Any, **options: Any) -> Any:
        """Forecast one item, or many.

        Args:
            inputs: an item, or a list or a generator of them. An item is a picture, opened or the
                path or address of its file; or a dict with the picture as `image`, or else with
                what the classifier takes (`features`, `pixel_values`, `input_ids`), and with
                `votes`: a mapping from annotator to class, or a list of such pairs, by name.
                Annotators whose names the model was not given are named by their numbers, from 0.
                Gold labels are not looked at.
            **options: `top_k`, `salt`, `batch_size` and `num_workers` of this call.

        Returns:
            A dict for an item, a list of them for a list, an iterator for a generator:
            `forecast`, a list of `{"label": class, "score": probability}`, the likeliest first;
            `heard`, the pairs (annotator, class) that went into it; `unheard`, those by annotators
            whom the model does not know, told by one warning a call. Without votes the forecast is
            the classifier's.

        Raises:
            TypeError: if an item, or its votes, is none of these.
            ValueError: if a vote names a class that is none of the model's, naming the item; if an
                item lacks what the classifier takes, or there is no image processor for a picture.
        """
        if isinstance(inputs, list) and not inputs:
            return []
        return super().__call__(inputs, **options)

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs: Any) -> None:
        """Save the pair and what processes its inputs; the pipeline itself is in the package."""
        # That of transformers would write a copy of this file beside the pair, without what it
        # imports, and ask all who load the pair to trust it.
        for part in (self.model, self.image_processor, self.tokenizer, self.feature_extractor):
            if part is not None:
                part.save_pretrained(save_directory, **kwargs)

    def _sanitize_parameters(
        self, top_k: int | None = None, salt: str | None = None
    ) -> tuple[dict, dict, dict]:
        if top_k is not None and top_k < 1:
            raise ValueError(f"`top_k` must be at least 1, got {top_k}.")
        return (
            {},
            {} if salt is None else {"salt": salt},
            {} if top_k is None else {"top_k": top_k},
        )

    def preprocess(self, item: Any) -> dict[str, Any]:
        """Open and process one item, without looking at its votes."""
        if isinstance(item, str | os.PathLike | Picture):
            item = {"image": item}
        if not isinstance(item, Mapping):
            raise TypeError(
                "an item must be a picture, a path, or a dict with the classifier's input and "
                f"`votes`, got {type(item).__name__}: pass several items as a list."
            )
        if numbered := [name for name in CROWD_COLUMNS if name in item]:
            raise ValueError(
                f"an item's votes must come by name, as `votes`, got {numbered[0]!r}: crowd columns "
                "go through `trainer.predict`."
            )
        left_out = ("votes", *GOLD_COLUMNS)
        example = {name: value for name, value in item.items() if name not in left_out}
        if isinstance(example.get("image"), str | os.PathLike):
            # As a data set opens it: what the model was trained on.
            file = {"path": os.fspath(example["image"]), "bytes": None}
            example["image"] = Image().decode_example(file)
        if isinstance(example.get("image"), Picture) and self.collator.processor is None:
            raise ValueError(
                "a picture must go through an image processor, got none: save it beside the pair, "
                "or pass `image_processor`."
            )
        inputs = {name: values[0] for name, values in self.collator([example]).items()}
        return {"inputs": inputs, "votes": item.get("votes")}

    def get_iterator(
        self,
        inputs: Any,
        num_workers: int,
        batch_size: int,
        preprocess_params: dict[str, Any],
        forward_params: dict[str, Any],
        postprocess_params: dict[str, Any],
    ) -> Iterator[dict[str, Any]]:
        """Yield the answers in the order of the items; the last one is followed by the warning."""
        # Transformers' own would pad votes with 0, a vote by the first annotator for the first
        # class, and does not batch features.
        if isinstance(inputs, Sized):
            items = PipelineDataset(inputs, self.preprocess, preprocess_params)
        else:
            items = PipelineIterator(inputs, self.preprocess, preprocess_params)
            num_workers = min(num_workers, 1)  # each of several would read the whole stream
        loader = DataLoader(items, batch_size, num_workers=num_workers, collate_fn=list)
        start, heard, unheard = 0, 0, Counter[str]()
        for rows in loader:
            batch = self.collator([row["inputs"] for row in rows])
            votes = [_pairs(row["votes"], item) for item, row in enumerate(rows, start)]
            who, said = _numbered(
                _hashed(votes, **forward_params), self.annotators, self.classes, start
            )
            log_forecast, used = self.forward({**batch, "annotators": who, "annotations": said})
            for row, of_item, numbers in zip(log_forecast, votes, who.tolist(), strict=True):
                told: dict[bool, list[tuple[str, str]]] = {True: [], False: []}
                for pair, m in zip(of_item, numbers, strict=False):  # numbers are padded
                    told[used and m >= 0].append(pair)
                heard += len(told[True])
                unheard.update(name for name, _ in told[False])
                forecast = self.postprocess(row, **postprocess_params)
                yield {"forecast": forecast, "heard": told[True], "unheard": told[False]}
            start += len(rows)
        if unheard:
            why = "unknown to the model" if used else f"of no use to {self.model.method}"
            logger.warning(
                "%d of %d votes are %s and add nothing: by %s.",
                unheard.total(), heard + unheard.total(), why, _some(list(unheard)),
            )  # fmt: skip

    def run_single(self, inputs: Any, *parameters: dict[str, Any]) -> dict[str, Any]:
        """Answer one item."""
        (answer,) = self.get_iterator([inputs], 0, 1, *parameters)
        return answer

    def _forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, bool]:
        """Return (B, C) log-probabilities, and whether the votes went into them."""
        self.model.eval()
        outputs = self.model(
            **{
                name: tensor.to(self.dtype) if tensor.is_floating_point() else tensor
                for name, tensor in batch.items()
            }
        )
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


def _pairs(votes: Votes | None, item: int) -> list[tuple[str, str]]:
    """Bring an item's votes to pairs of names."""
    given = list(votes.items() if isinstance(votes, Mapping) else votes or ())
    if isinstance(votes, str) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in given
    ):
        raise TypeError(
            "`votes` must be a mapping from annotator to class, or a list of such pairs, got "
            f"{votes!r} at item {item}."
        )
    return [(str(who), str(said)) for who, said in given]


def _hashed(
    votes: list[list[tuple[str, str]]], salt: str | None = None
) -> list[list[tuple[str, str]]]:
    """Replace the annotators' names as the pair's were, if they were."""
    if salt is None:
        return votes
    return [[(hashed_names([who], salt)[0], said) for who, said in pairs] for pairs in votes]


def _numbers(names: Sequence[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}


def _numbered(
    votes: list[list[tuple[str, str]]],
    annotators: dict[str, int],
    classes: dict[str, int],
    start: int,
) -> tuple[Tensor, Tensor]:
    """Look the names up, see `number_votes`."""
    width = max([1, *map(len, votes)])
    numbers = torch.full((2, len(votes), width), -1, dtype=torch.int64)
    for row, of_item in enumerate(votes):
        for place, (who, said) in enumerate(of_item):
            if said not in classes:
                near = difflib.get_close_matches(said, classes, n=1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                raise ValueError(
                    f"`votes` must name one of the {len(classes)} classes, got {said!r} by {who!r} "
                    f"at item {start + row}{hint}: the model knows {_some(list(classes))}."
                )
            numbers[0, row, place] = annotators.get(who, -1)
            numbers[1, row, place] = classes[said]
    return numbers[0], numbers[1]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown


__all__ = ["ForecastPipeline", "number_votes"]
