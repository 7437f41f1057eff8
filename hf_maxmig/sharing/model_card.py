"""The card of a trained model for the Hub.

The trainer's and the model's `push_to_hub` upload it.
"""

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import numpy as np
import transformers.modeling_utils
import transformers.utils.hub
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.errors import EntryNotFoundError

from ..data.describe import Description
from ..judging.annotators import AnnotatorReport
from ..model.items import reads_rows
from ..model.modeling_maxmig import CrowdModel
from ..model.version import __version__
from ..model.wrapping import AUTO_CLASSES

_MEASURES = (
    # key of the results, what it is of, on which items
    ("eval_accuracy", "classifier h", "accuracy"),
    ("eval_aggregator_accuracy", "aggregator g", "accuracy"),
    ("eval_forecast_accuracy", "forecaster zeta", "accuracy"),
    ("eval_gain", "h and g, on the crowd's votes alone", "gain"),
)

_EXAMPLES = {
    "image-classification": "picture.jpg",
    "text-classification": "A text.",
    "audio-classification": "sound.wav",
}
_CONTENT = {"text-classification": "text", "audio-classification": "audio"}  # else `image`
_LONGEST = 80  # letters of a row that is shown in a line
_EMPTY = "This model card has been automatically generated"  # what transformers writes


def model_card(
    model: CrowdModel,
    metrics: dict[str, float],
    arguments: dict[str, Any],
    model_name: str,
    *,
    repo_id: str | None = None,
    shared_as: str = "names",
    processor: Any = None,
    counted: dict[str, int] | None = None,
    data: Description | None = None,
    judged: AnnotatorReport | None = None,
    **metadata: Any,
) -> ModelCard:
    """Write the card of a trained model, by Max-MIG or another method.

    It names no annotator.

    Args:
        model: a crowd model.
        metrics: results by their names in `all_results.json`.
        arguments: training arguments to list.
        model_name: the name of the model.
        repo_id: where it is, for who copies the examples; by default its name.
        shared_as: what of the annotators goes up, see `CrowdModel.shared_as`.
        processor: the image processor, tokenizer, feature extractor or table processor saved with the model.
        counted: how many items each of the results was measured on, by the same names.
        data: the result of `describe` for the training set.
        judged: the result of the trainer's `report`.
        **metadata: further fields of the card's header, such as `license` or `datasets`.

    Returns:
        The card; its `save` writes it.
    """
    config = model.config
    task = config.classifier_task
    results = [
        EvalResult(
            task_type=task,
            dataset_type="crowd",
            dataset_name="the evaluation set",
            metric_type=kind,
            metric_name=f"{kind} of {what}",
            metric_value=round(float(metrics[key]), 4),
        )
        for key, what, kind in _MEASURES
        if key in metrics
    ]
    header = ModelCardData(
        library_name="transformers",
        pipeline_tag=task,
        tags=[model.method.lower().replace(" ", "-"), "crowdsourcing", "noisy-labels"],
        model_name=model_name,
        eval_results=results or None,
        **metadata,
    )
    card = ModelCard.from_template(
        header,
        template_str=(files(__package__) / "model_card.md").read_text(encoding="utf-8"),
        model_name=model_name,
        repo_id=repo_id or model_name,
        task=task,
        call=_call(model, processor),
        item=_item(model, processor),
        has_processor=processor is not None,
        sampling_rate=getattr(processor, "sampling_rate", None),
        columns=processor.column_names if reads_rows(processor) else None,
        auto_class=AUTO_CLASSES[task].__name__,
        alone=shared_as == "dropped",
        hashed=shared_as == "hashed",
        own_code=type(model.classifier).__module__.startswith("hf_maxmig"),
        license=header.license,
        is_maxmig=model.loss_is_minus_gain,
        method=model.method,
        reference=model.reference,
        learns_from_gold=model.learns_from_gold_labels,
        gold_labels_used=config.gold_labels_used,
        classes=config.class_names,
        classifier=type(model.classifier).__name__,
        num_annotators=config.num_annotators,
        names_inside=config.annotators is not None,
        divergence=config.divergence,
        prior=config.prior if isinstance(config.prior, str) else "given",
        log_p=[round(float(p), 4) for p in model.log_prior().detach().exp()],
        rows=[
            (what, _measured(key, kind, metrics, counted or {}), metrics[key])
            for key, what, kind in _MEASURES
            if key in metrics
        ],
        data=data and data.summary,
        annotators=judged and _summary(judged),
        arguments=arguments,
        version=__version__,
    )
    card.text = re.sub(
        r"\n(\s*\n){2,}", "\n\n", card.text
    )  # what the template leaves out was a paragraph
    return card


@contextlib.contextmanager
def pushed_with_card(model: CrowdModel, annotators: str = "names") -> Iterator[None]:
    """Let a model's own push write the package's card in place of the empty one of transformers.

    A card that a person has written stays as it is.

    Args:
        model: the model that is pushed, or whose classifier is.
        annotators: what is shared of the crowd, as in `CrowdModel.shared_as`.
    """
    usual = transformers.utils.hub.create_and_tag_model_card

    def card(repo_id: str, tags: list[str] | None = None, token: str | None = None) -> ModelCard:
        try:
            written = ModelCard.load(repo_id, token=token).text
        except EntryNotFoundError:
            written = _EMPTY
        if _EMPTY not in written:
            return usual(repo_id, tags, token)
        name = repo_id.split("/")[-1]
        ours = model_card(model, {}, {}, name, repo_id=repo_id, shared_as=annotators)
        header: Any = ours.data
        header.tags = list(dict.fromkeys([*header.tags, *(tags or ())]))
        return ours

    places = (transformers.utils.hub, transformers.modeling_utils)
    for place in places:
        place.create_and_tag_model_card = card
    try:
        yield
    finally:
        for place in places:
            place.create_and_tag_model_card = usual


def _call(model: CrowdModel, processor: Any) -> str:
    """Write the input of a pipeline as Python, or that of the classifier if there is no processor."""
    if reads_rows(processor):
        short = len(repr(processor.example)) <= _LONGEST
        return f"{{{_row(processor)}}}" if short else "processor.example"
    if processor is not None:
        return f'"{_EXAMPLES[model.config.classifier_task]}"'
    config = model.classifier.config
    if getattr(config, "input_size", None):
        return f"features=torch.zeros(1, {config.input_size})"
    size, channels = getattr(config, "image_size", None), getattr(config, "num_channels", None)
    if isinstance(size, int) and isinstance(channels, int):
        return f"pixel_values=torch.zeros(1, {channels}, {size}, {size})"
    task = model.config.classifier_task
    if task == "text-classification":
        return "input_ids=torch.tensor([[1, 2, 3]])"
    if task == "audio-classification":
        return "input_values=torch.zeros(1, 16_000)"
    return "pixel_values=pixel_values"


def _item(model: CrowdModel, processor: Any) -> str | None:
    """Write the input of the forecast beside the votes as Python; None if it does not fit in a line."""
    call = _call(model, processor)
    if reads_rows(processor):
        return call[1:-1] if call[0] == "{" else "**forecast.feature_extractor.example"
    if processor is not None:
        return f'"{_CONTENT.get(model.config.classifier_task, "image")}": {call}'
    if model.config.classifier_task in _CONTENT:  # nothing pads its input
        return None
    name, value = call.split("=", 1)
    return f'"{name}": {value.replace("(1, ", "(")}'


def _row(processor: Any) -> str:
    """Write the example of a table processor as Python, without its braces."""
    return ", ".join(f"{_text(name)}: {_text(v)}" for name, v in processor.example.items())


def _text(value: Any) -> str:
    """Write a value as Python, a text in double quotes."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _measured(key: str, kind: str, metrics: dict[str, float], counted: dict[str, int]) -> str:
    """Name the measure and how many items it was computed on."""
    items = f", {counted[key]:,} items" if key in counted else ""
    return (kind + _bounds(metrics) if kind == "gain" else kind) + items


def _bounds(metrics: dict[str, float]) -> str:
    """Write the largest possible gain, and the interval of the measured one."""
    text = " (nats)"
    if "eval_gain_ceiling" in metrics:
        text += f", of at most {metrics['eval_gain_ceiling']:.4f}"
    if "eval_gain_low" in metrics:
        text += f"; 95 %: {metrics['eval_gain_low']:.4f} to {metrics['eval_gain_high']:.4f}"
    return text


def _summary(judged: AnnotatorReport) -> list[tuple[str, str]]:
    """Summarise what is known of the annotators, without names."""
    verdicts = Counter(judged.verdict).most_common()
    rows = [("verdicts", ", ".join(f"{number} {verdict}" for verdict, number in verdicts))]
    known = np.isfinite(judged.accuracy)
    for name, values, form in (
        ("accuracy, as far as the model can tell", 100 * judged.accuracy[known], "{:.0f} %"),
        ("information of a vote", judged.information[known], "{:.2f} nats"),
    ):
        if len(values):
            low, middle, high = (form.format(v) for v in np.quantile(values, [0.1, 0.5, 0.9]))
            rows.append(
                (name, f"{middle} at the median; a tenth below {low}, a tenth above {high}")
            )
    return rows
