"""The Space's page: posteriors and gold labels go in as JSON, the measures come out."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
EXAMPLE = {
    "predictions": [[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]],
    "references": [0, 1, 1],
    "forecast": [[0.99, 0.01], [0.3, 0.7], [0.1, 0.9]],
}


def measure(text: str) -> dict[str, float]:
    """Compute the metric of the arguments in a JSON object."""
    import evaluate

    return evaluate.load(str(FOLDER / "crowd_metrics.py")).compute(**json.loads(text))


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
