"""The page of the Space: it takes posteriors and gold labels as JSON and returns the measures."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
ARGUMENTS = (
    "predictions", "references", "aggregator", "forecast", "annotated", "bins", "confusion",
    "true_confusion", "annotators", "annotations",
)  # fmt: skip
EXAMPLE = {
    "predictions": [[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]],
    "references": [0, 1, 1],
    "forecast": [[0.99, 0.01], [0.3, 0.7], [0.1, 0.9]],
}


def measure(text: str) -> dict[str, float]:
    """Compute the metric from arguments in a JSON object.

    Raises:
        ValueError: if the text is not a JSON object, or has an argument that the metric does not know.
    """
    import evaluate

    try:
        arguments = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"the arguments must be a JSON object, got: {error}.") from error
    if not isinstance(arguments, dict):
        raise ValueError(
            f"the arguments must be a JSON object, got {type(arguments).__name__}: see the example."
        )
    if unknown := sorted({*arguments} - {*ARGUMENTS}):
        raise ValueError(f"the arguments must be of {', '.join(ARGUMENTS)}, got {unknown[0]!r}.")
    if missing := [name for name in ARGUMENTS[:2] if name not in arguments]:
        raise ValueError(f"the arguments must have {missing[0]!r}: see the example.")
    return evaluate.load(str(FOLDER / "crowd_metrics.py")).compute(**arguments)


def page() -> Any:
    """Build the page."""
    import gradio

    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    return gradio.Interface(
        fn=measure,
        inputs=gradio.Code(json.dumps(EXAMPLE, indent=1), language="json", label="Arguments"),
        outputs=gradio.JSON(label="Measures"),
        title="Crowd metrics",
        article=readme.split("---\n", 2)[2],
    )


if __name__ == "__main__":
    page().launch()
