"""Single items as users have them - a picture, a text, a sound, a row, numbers - turned into the classifier's inputs.

The Hub carries this with the model. It needs only torch and transformers, and Pillow for pictures. Whole
data sets go through `data/collator.py`.
"""

import inspect
import os
from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DataCollatorWithPadding

from .class_lists import meant
from .opening import is_picture, listed, opened_picture, opened_sound, short

CROWD_COLUMNS = ("annotators", "annotations")
WEIGHTS_COLUMN = "annotation_weights"  # a third, of numbers in 0..1, where votes have weights
ALL_CROWD_COLUMNS = (*CROWD_COLUMNS, WEIGHTS_COLUMN)
GOLD_COLUMNS = ("labels", "label")

# The content of an item besides numbers, by the classifier's task.
_CONTENT = {
    "image-classification": "image",
    "text-classification": "text",
    "audio-classification": "audio",
    "tabular-classification": "row",
}
_MADE_OF = {
    "image": ("pixel_values", "a picture", "an image processor", "image_processor"),
    "text": ("input_ids", "a text", "a tokenizer", "tokenizer"),
    "audio": ("input_values", "a sound", "a feature extractor", "feature_extractor"),
    "row": ("features", "a row", "a table processor", "feature_extractor"),
}
_SINGLE = ("image", "text", "audio")  # a row is a dict of several parts
_MEASURED = ("features", "pixel_values", "input_values", "input_features")  # integers become floats
_UNLIMITED = 10**6  # a tokenizer without a limit reports a very large number


def input_names(classifier: nn.Module) -> list[str]:
    """List the columns that the classifier's forward names.

    A catch-all argument is not listed: it would accept a row number as an input.
    """
    parameters = inspect.signature(classifier.forward).parameters.values()
    return [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]


def check_ids(ids: Tensor, vocabulary: int | None, items: Sequence[int]) -> None:
    """Refuse tokens that the classifier does not know: an accelerator would fail without a clear error.

    Args:
        ids: (B, ...), token ids.
        vocabulary: the number of tokens; None sets no limit.
        items: the items' numbers in the data set, for errors.

    Raises:
        ValueError: naming the item.

    Example:
        >>> check_ids(torch.tensor([[5, 7], [2, 0]]), vocabulary=8, items=range(2))
    """
    last = "" if vocabulary is None else f" to {vocabulary - 1}"
    if ids.is_floating_point():
        raise ValueError(
            f"`input_ids` must be whole numbers from 0{last}, got numbers with a point."
        )
    wrong = ids < 0
    if vocabulary is not None:
        wrong |= ids >= vocabulary
    if wrong.any():
        row = int(wrong.reshape(len(ids), -1).any(dim=1).int().argmax())
        raise ValueError(
            f"`input_ids` must be whole numbers from 0{last}, got {int(ids[row][wrong[row]][0])} at item {items[row]}: "
            "is the tokenizer the classifier's?"
        )


def most_tokens(classifier: nn.Module, tokenizer: Any) -> int | None:
    """Return the largest number of tokens that an encoder or a classifier of texts reads.

    Args:
        classifier: any, also one with an encoder inside.
        tokenizer: its tokenizer.

    Returns:
        The number, special tokens included; None if there is no limit.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> tiny = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        ...                   vocab_size=9, max_position_embeddings=12)
        >>> most_tokens(BertModel(tiny), tokenizer=None)
        12
    """
    config: Any = getattr(classifier.config, "encoder_config", None) or classifier.config
    limits = [
        getattr(tokenizer, "model_max_length", None),
        getattr(config, "max_position_embeddings", None),
    ]
    for name, module in classifier.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            # RoBERTa and its relatives begin to count after the place of the padding.
            before = 0 if module.padding_idx is None else module.padding_idx + 1
            limits.append(module.num_embeddings - before)
    return min((n for n in limits if n and 0 < n < _UNLIMITED), default=None)


def bare_numbers(fields: Mapping[str, Any]) -> list[str]:
    """List the fields that hold a single number: a user may have meant them as one list, `features`.

    Args:
        fields: of one item, by name.

    Example:
        >>> bare_numbers({"age": 41, "name": "ann", "height": 1.7, "features": [1.0, 2.0]})
        ['age', 'height']
    """
    return [
        name
        for name, value in fields.items()
        if isinstance(value, Number) or (isinstance(value, Tensor) and not value.ndim)
    ]


def reads_rows(processor: Any) -> bool:
    """Whether a processor turns the rows of a table into features.

    Args:
        processor: of any kind, or None. Without the package, remote code defines the class a second time.

    Example:
        >>> reads_rows(None)
        False
    """
    known = getattr(processor, "model_input_names", None) or ()
    return list(known) == ["features"] and hasattr(processor, "column_names")


def sound_size(processor: Any) -> int | None:
    """Return the number of samples to which sounds are cut or filled up; None if they stay as they are.

    It is set by `max_seconds` of the feature extractor, which is saved with it. Extractors of spectrograms fill
    up to a length of their own.

    Example:
        >>> from transformers import Wav2Vec2FeatureExtractor
        >>> sound_size(Wav2Vec2FeatureExtractor(sampling_rate=8000, max_seconds=1.5))
        12000
    """
    seconds = getattr(processor, "max_seconds", None)
    return None if seconds is None else max(1, round(seconds * processor.sampling_rate))


class ItemReader:
    """Turn items, one by one and in batches, into the inputs of a classifier.

    Args:
        classifier: h.
        task: its pipeline task, which says whether items are pictures, texts or sounds.
        processor: the image processor, tokenizer, feature extractor or table processor, if there is one.
        cuts: whether a text that is too long is cut, as it is when features are computed. By default it is for
            a head on an encoder. Another classifier refuses it, because how its training cut is not known.

    Raises:
        ValueError: if a classifier of texts or sounds has no processor for them, and takes no features.

    Example:
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> reader = ItemReader(HeadClassifier(HeadConfig(input_size=2)), "image-classification")
        >>> reader.batch([reader({"features": [0, 1]}, 0), reader({"features": [2, 3]}, 1)], 0)
        {'features': tensor([[0., 1.],
                [2., 3.]])}
    """

    def __init__(
        self, classifier: nn.Module, task: str, processor: Any = None, cuts: bool | None = None
    ) -> None:
        self.config, self.processor = classifier.config, processor
        self.content = "row" if reads_rows(processor) else _CONTENT[task]
        self.names = [n for n in input_names(classifier) if n not in GOLD_COLUMNS]
        # Names under which the user may give numbers, the usual one first.
        main = getattr(classifier, "main_input_name", None)
        self.numbers = [n for n in dict.fromkeys(("features", main)) if n in self.names]
        tensor, what, maker, argument = _MADE_OF[self.content]
        self.makes = processor is not None and (self.content != "image" or tensor in self.names)
        self.most = most_tokens(classifier, processor) if self.content == "text" else None
        has_encoder = getattr(classifier.config, "encoder_config", None) is not None
        self.cuts = has_encoder if cuts is None else cuts
        alone = "features" in self.names and not has_encoder
        if self.content in ("text", "audio") and not self.makes and not alone:
            raise ValueError(
                f"`{argument}` must be given for a classifier of {what[2:]}s, got none: save {maker} "
                f"beside the model, or pass `{argument}`."
            )

    @property
    def expected(self) -> str:
        """What an item may be, in words."""
        size = getattr(self.config, "input_size", None)
        numbers = [
            f"`{name}`, {size} numbers" if name == "features" and size else f"`{name}`"
            for name in self.numbers
        ]
        if not self.makes:
            return f"a dict with {' or '.join(numbers)}, and `votes`"
        if self.content == "row":
            columns = self.processor.column_names
            more = f" and {len(columns) - 5} more" if columns[5:] else ""
            also = f" (or {' or '.join(numbers)})" if numbers else ""
            return f"a dict with the columns {', '.join(map(repr, columns[:5]))}{more}{also}, and `votes`"
        what = _MADE_OF[self.content][1]
        path = "" if self.content == "text" else ", a path"
        also = f" (or {' or '.join(numbers)})" if numbers else ""
        return f"{what}{path}, or a dict with `{self.content}`{also} and `votes`"

    def __call__(self, item: Any, number: int) -> dict[str, Tensor]:
        """Build the inputs of one item.

        Args:
            item: a picture, a text or a sound, or the path of its file; or a dict with it as
                `image`, `text` or `audio`, with the columns of a table's row, or with the classifier's
                own inputs by name.
            number: of the item, for errors.

        Returns:
            Tensors without a batch dimension, by the names of the classifier's inputs.

        Raises:
            TypeError, ValueError, OSError: if the item is none of these, cannot be read, or holds
                numbers that are not finite. The error names the item.
        """
        fields = self.fields(item, number)
        inputs = {
            name: self._numbers(name, value, number)
            for name, value in fields.items()
            if name in self.names and not isinstance(value, str)
        }
        if self.content == "row" and self.makes and not inputs:
            return {"features": self.processor([fields], items=[number])["features"][0]}
        content = self._content(fields)
        if content is not None and not inputs.keys() & {_MADE_OF[self.content][0], *self.numbers}:
            inputs |= self._made(content, fields, number)
        if not inputs:
            raise ValueError(self._lacks(fields, number))
        return inputs

    def fields(self, item: Any, number: int) -> dict[str, Any]:
        """Return the parts of an item by name: the columns of a dict, or the item as its only part."""
        if isinstance(item, Mapping):
            names = {str(name): value for name, value in item.items()}
            return {n: v for n, v in names.items() if n not in ("votes", *GOLD_COLUMNS)}
        whole = self.makes and self.content in _SINGLE
        if (isinstance(item, str | os.PathLike) or is_picture(item)) and whole:
            return {self.content: item}
        if is_picture(item) and self.content == "image":
            raise ValueError(
                "a picture must go through an image processor, got none: save it beside the model, or "
                f"pass `image_processor`. This model takes {self.expected}."
            )
        if isinstance(item, Tensor) or hasattr(item, "__array__"):
            return {self.content if self.content == "audio" else self.numbers[0]: item}
        raise TypeError(
            f"an item must be {self.expected}, got {type(item).__name__} {short(item)} as item {number}: "
            "pass several items as a list."
        )

    def batch(self, rows: list[dict[str, Tensor]], start: int) -> dict[str, Tensor]:
        """Put the inputs of several items together; texts and sounds are padded.

        Args:
            rows: the result of each call.
            start: number of the first item, for errors.

        Raises:
            ValueError: if an item has other inputs than the first, or inputs of another shape that
                nothing pads.
        """
        for i, row in enumerate(rows):
            if row.keys() != rows[0].keys():
                raise ValueError(
                    f"the items of a batch must have the same inputs, got {', '.join(row)} at item "
                    f"{start + i} after {', '.join(rows[0])}."
                )
        known: Any = getattr(self.processor, "model_input_names", ())
        pads = hasattr(self.processor, "pad") and "pixel_values" not in known
        padded: dict[str, Tensor] = {}
        if (
            self.content == "audio"
            and len({str({n: v.shape for n, v in r.items()}) for r in rows}) == 1
        ):
            pads = False  # long lists of samples would be taken apart for nothing
        if pads and known and known[0] in rows[0] and (len(rows) > 1 or _can_pad(self.processor)):
            names = [name for name in known if name in rows[0]]
            try:
                made = DataCollatorWithPadding(self.processor)(
                    [{name: row[name].tolist() for name in names} for row in rows]
                )
            except ValueError as error:
                raise ValueError(
                    f"items {start} to {start + len(rows) - 1} must be padded to one length, got: {error} "
                    "Take `batch_size=1`."
                ) from error
            padded = {name: value for name, value in made.items() if name in self.names}
        for name, first in rows[0].items():
            if name in padded:
                continue
            for i, row in enumerate(rows):
                if row[name].shape != first.shape:
                    raise ValueError(
                        f"`{name}` must have one shape in a batch, got {tuple(row[name].shape)} at item "
                        f"{start + i} after {tuple(first.shape)}: take `batch_size=1`."
                    )
            padded[name] = torch.stack([row[name] for row in rows])
        return {name: v.float() if v.is_floating_point() else v for name, v in padded.items()}

    # What an item holds

    def _content(self, fields: Mapping[str, Any]) -> Any:
        """Find the picture, text or sound; a picture may have any name."""
        if self.content in fields or self.content != "image":
            return fields.get(self.content)
        return next((value for value in fields.values() if is_picture(value)), None)

    def _lacks(self, fields: Mapping[str, Any], number: int) -> str:
        names = list(fields)
        shown = ", ".join(map(short, names[:5])) + (
            f" and {len(names) - 5} more" if names[5:] else ""
        )
        wanted = [*([self.content] if self.makes else []), *self.numbers]
        hint = next(filter(None, (meant(name, wanted) for name in names[:5])), "")
        scalars = bare_numbers(fields)
        if len(scalars) > 1 and "features" in self.numbers:
            hint = (
                f": put the {len(scalars)} numbers into one list, `features`, in the same order as in "
                "training; or save the training's table processor beside the model"
            )
        return (
            f"an item must have an input of the classifier, got {shown or 'nothing'} at item {number}"
            f"{hint}. This model takes {self.expected}."
        )

    def _numbers(self, name: str, value: Any, number: int) -> Tensor:
        try:
            tensor = torch.as_tensor(value if hasattr(value, "__array__") else listed(value))
        except (ValueError, TypeError, RuntimeError, OverflowError, RecursionError) as error:
            raise ValueError(
                f"`{name}` must hold numbers, got {short(value)} at item {number}: {short(error)}."
            ) from error
        if tensor.is_complex():
            raise ValueError(f"`{name}` must hold real numbers, got complex ones at item {number}.")
        tensor = tensor.detach().cpu()
        if tensor.is_floating_point():
            tensor = tensor.float() if tensor.dtype == torch.float64 else tensor
            if not tensor.isfinite().all():
                raise ValueError(f"`{name}` must hold finite numbers, got others at item {number}.")
        size = getattr(self.config, "input_size", None)
        if name in _MEASURED and not tensor.is_floating_point():
            tensor = tensor.float()
        if name == "features" and size and tuple(tensor.shape) != (size,):
            raise ValueError(
                f"`features` must be {size} numbers, got the shape {tuple(tensor.shape)} at item "
                f"{number}."
            )
        if name == "input_ids":
            self._check_tokens(tensor, number)
        return tensor

    def _check_tokens(self, ids: Tensor, number: int) -> None:
        if ids.is_floating_point() or ids.ndim != 1 or not len(ids):
            raise ValueError(
                f"`input_ids` must be a flat list of whole numbers, got the shape {tuple(ids.shape)} of "
                f"{str(ids.dtype)[6:]} at item {number}."
            )
        check_ids(ids[None], getattr(self.config, "vocab_size", None), [number])

    # How it is read

    def _made(self, content: Any, fields: Mapping[str, Any], number: int) -> dict[str, Tensor]:
        """Put a picture, a text or a sound through the processor."""
        if not self.makes:
            if self.content == "image" and self.processor is None:
                raise ValueError(
                    f"a picture must go through an image processor, got none for item {number}: save it "
                    f"beside the model, or pass `image_processor`. This model takes {self.expected}."
                )
            raise ValueError(self._lacks(fields, number))
        if self.content == "image":
            given: tuple[Any, ...] = ([opened_picture(content, number)],)
            options: dict[str, Any] = {"return_tensors": "pt"}
        elif self.content == "text":
            given = _texts(content, fields.get("text_pair"), number)
            options = (
                {"truncation": True, "max_length": self.most} if self.cuts and self.most else {}
            )
        else:
            rate, size = self.processor.sampling_rate, sound_size(self.processor)
            given = (opened_sound(content, rate, number)[:size],)
            options = {"return_tensors": "pt", "sampling_rate": rate}
            if size is not None and self.processor.model_input_names[0] == "input_values":
                options |= {"padding": "max_length", "max_length": size, "truncation": True}
        try:
            made = self.processor(*given, **options)
        except Exception as error:
            raise ValueError(
                f"{type(self.processor).__name__} cannot take item {number}: {short(error)}."
            ) from error
        rows = {
            n: v[0] if "return_tensors" in options else torch.as_tensor(v) for n, v in made.items()
        }
        rows = {name: row for name, row in rows.items() if name in self.names}
        if "input_ids" in rows:
            self._check_length(rows["input_ids"], number)
            self._check_tokens(rows["input_ids"], number)
        return rows

    def _check_length(self, ids: Tensor, number: int) -> None:
        if self.most is not None and len(ids) > self.most:
            raise ValueError(
                f"`text` must have at most {self.most} tokens, got {len(ids)} at item {number}: "
                "cut it as the training did."
            )


def _texts(text: Any, pair: Any, number: int) -> tuple[str, ...]:
    """Check a text, and its second text if there is one."""
    given = (text,) if pair is None else (text, pair)
    for text in given:
        if not isinstance(text, str):
            raise TypeError(
                f"`text` must be text, got {type(text).__name__} {short(text)} at item {number}."
            )
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise ValueError(f"`text` must be Unicode, got half a surrogate pair at item {number}.")
        if not text.strip():
            raise ValueError(
                f"`text` must have at least one word, got {text!r} at item {number}: leave it out."
            )
    return given


def _can_pad(processor: Any) -> bool:
    return getattr(processor, "pad_token", "none needed") is not None


__all__ = [
    "ItemReader",
    "bare_numbers",
    "check_ids",
    "input_names",
    "most_tokens",
    "reads_rows",
    "sound_size",
]
