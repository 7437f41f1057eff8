"""The parts of the page in HTML, drawn by the macros of `page.html`: whatever a name says, it stays text."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from .. import judging
from ..judging.annotators import AnnotatorReport
from ..judging.embedding import THUMBNAIL, player, thumbnail
from ..judging.showing import Part
from ..judging.templates import templates
from ..judging.verdicts import Verdict
from .corrections import Corrections
from .reviewing import Reviewing, person
from .trying import Answer, Trying, leading

MOST_CLASSES = 8  # that a table of answers shows
_PIXELS = 480


def styles() -> str:
    """Read the style sheet."""
    return (files(__package__) / "page.css").read_text(encoding="utf-8")


def drawn(macro: str, **values: Any) -> str:
    """Draw a macro of `page.html`.

    Args:
        macro: its name.
        **values: its arguments.

    Returns:
        HTML, in which all values are text.

    Example:
        >>> drawn("note", text="<b>")
        '<div class="mm"><p class="mm-note" role="status">&lt;b&gt;</p></div>'
    """
    page: Any = templates(__package__, judging.__name__).get_template("page.html").module
    html = getattr(page, macro)(**values)
    return f'<div class="mm">{html}</div>'


def shown_item(content: str, kind: str) -> str:
    """Draw a picture or a sound that somebody gave; nothing if it cannot be read.

    Args:
        content: the path of its file.
        kind: `image` or `audio`.
    """
    loaded = thumbnail(content, _PIXELS) if kind == "image" else player(content)
    if loaded is None:
        return ""
    kinds = {"image": "picture", "audio": "sound"}
    uri, remark = loaded
    part = Part(kinds[kind], "your item", "", state="whole", rest=uri, remark=remark)
    return drawn("looks", part=part)


def answer_of(trying: Trying, answer: Answer) -> str:
    """Draw what the model says of an item, and how votes move it."""
    last = answer.steps[-1]
    columns = [("The classifier", answer.classifier)]
    if last.vote is not None and last.aggregator is not None and last.forecast is not None:
        columns += [("The votes", last.aggregator), ("Both", last.forecast)]
    steps = None
    if last.aggregator is not None:
        steps = [
            {
                "who": None if step.vote is None else trying.annotators[step.vote[0]],
                "said": None if step.vote is None else trying.classes[step.vote[1]],
                "aggregator": _first(step.aggregator),
                "forecast": _first(step.forecast),
            }
            for step in answer.steps
        ]
    return drawn(
        "answer",
        first=leading(answer.classifier, 1)[0],
        answers=_answers(columns),
        classes=trying.classes,
        shown=leading(columns[-1][1], MOST_CLASSES),
        steps=steps,
        method=trying.model.method,
    )


def item_of(reviewing: Reviewing, corrections: Corrections, place: int) -> str:
    """Draw an item to review."""
    card = reviewing.card(place, _PIXELS)
    posteriors = {name: torch.tensor(values) for name, values in card.posteriors.items()}
    columns = [("The classifier", posteriors["classifier"])]
    if card.votes:
        columns += [("The votes", posteriors["aggregator"]), ("Both", posteriors["forecast"])]
    return drawn(
        "item",
        card=card,
        answers=_answers(columns),
        classes=reviewing.classes,
        shown=leading(posteriors["forecast"], MOST_CLASSES),
        corrections=corrections.of(card.name),
        place=place,
        number=reviewing.number,
        suspects=reviewing.suspects,
    )


def person_of(judged: AnnotatorReport, reviewing: Reviewing, annotator: int) -> str:
    """Draw what is known of an annotator."""
    one = person(judged, annotator)
    errors = [
        {"card": reviewing.card(place, THUMBNAIL), "said": reviewing.said(annotator, place)}
        for place in reviewing.errors(annotator)
    ]
    verdict = Verdict.called(one.verdict)
    return drawn("person", one=one, verdict=verdict, classes=judged.classes, errors=errors)


def _answers(columns: Sequence[tuple[str, Tensor]]) -> list[Mapping[str, Any]]:
    return [{"what": what, "of": values.tolist()} for what, values in columns]


def _first(probabilities: Tensor | None) -> tuple[int, float]:
    """Return the likeliest class and its probability."""
    if probabilities is None:
        return 0, 0.0
    place = leading(probabilities, 1)[0]
    return place, float(probabilities[place])
