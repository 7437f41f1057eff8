"""The model card of a trained pair. Uploading is `push_to_hub` of trainer and model."""

from importlib.resources import files
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from .modeling_maxmig import MaxMIGModel
from .version import __version__

_MEASURES = (
    # key of the results, what it is of, on which items
    ("eval_accuracy", "classifier h", "accuracy"),
    ("eval_aggregator_accuracy", "aggregator g", "accuracy"),
    ("eval_forecast_accuracy", "forecaster zeta", "accuracy"),
    ("eval_gain", "h and g, on the crowd's labels alone", "gain"),
)


def model_card(
    model: MaxMIGModel,
    metrics: dict[str, float],
    arguments: dict[str, Any],
    model_name: str,
    **metadata: Any,
) -> ModelCard:
    """Write the card of a trained pair.

    Args:
        model: the pair.
        metrics: results by their names in `all_results.json`.
        arguments: training arguments to list.
        model_name: how the pair is called.
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
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag=task,
        tags=["max-mig", "crowdsourcing", "noisy-labels"],
        model_name=model_name,
        eval_results=results or None,
        **metadata,
    )
    return ModelCard.from_template(
        data,
        template_str=(files("hf_maxmig") / "model_card.md").read_text(encoding="utf-8"),
        model_name=model_name,
        classes=config.class_names,
        classifier=type(model.classifier).__name__,
        num_annotators=config.num_annotators,
        names_inside=config.annotators is not None,
        divergence=config.divergence,
        prior=config.prior if isinstance(config.prior, str) else "given",
        log_p=[round(float(p), 4) for p in model.prior().exp()],
        rows=[(what, kind, metrics[key]) for key, what, kind in _MEASURES if key in metrics],
        arguments=arguments,
        version=__version__,
    )
