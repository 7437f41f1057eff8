"""The Gradio app: its components, and what happens when somebody uses them.

It asks for nothing from outside: no telemetry, no fonts, no scripts. What it knows comes from `trying.py` and
`reviewing.py`, what it writes goes through `corrections.py`, and `drawing.py` makes the HTML.
"""

import importlib.util
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..judging.annotators import AnnotatorReport
from ..judging.plots import short
from .corrections import Corrections
from .drawing import answer_of, drawn, item_of, person_of, shown_item, styles
from .reviewing import Reviewing
from .trying import Trying, Vote, meaning_of

if TYPE_CHECKING:
    import gradio

ADDRESS = "127.0.0.1"  # of this machine alone
MOST_BYTES = 50_000_000  # of a file that somebody drops
_MOST_BUTTONS = 12  # classes that are shown as buttons; more are a list
_LETTERS = 60  # of a name in a list
_POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'self' https://huggingface.co "
    "https://*.hf.space; base-uri 'self'; form-action 'self'"
)
_VOTE, _GOLD = "vote", "gold"


@dataclass(frozen=True)
class Page:
    """What the page shows.

    Args:
        title: of the page.
        trying: the model.
        reviewing: the items to look through, if there are any.
        corrections: where corrections go; needed with `reviewing`.
        judged: the annotators, if they were judged.
    """

    title: str
    trying: Trying
    reviewing: Reviewing | None = None
    corrections: Corrections | None = None
    judged: AnnotatorReport | None = None


def need_gradio() -> None:
    """Raise unless Gradio is installed.

    Raises:
        ImportError: if it is not.
    """
    if importlib.util.find_spec("gradio") is None:
        raise ImportError("the page needs Gradio, got none: pip install 'hf_maxmig[demo]'.")


def app(page: Page) -> "gradio.Blocks":
    """Build the app.

    Args:
        page: what it shows.

    Returns:
        The app; `launched` starts it.

    Raises:
        ImportError: if Gradio is not installed.
    """
    need_gradio()
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    import gradio

    title = short(page.title, _LETTERS)
    # What was dropped is deleted after a day.
    with gradio.Blocks(title=title, analytics_enabled=False, delete_cache=(3600, 86400)) as blocks:
        gradio.HTML(drawn("heading", title=page.title), js_on_load=None)
        with gradio.Tabs(overflow_behavior="wrap"):
            with gradio.Tab("Try the model"):
                _try(page.trying)
            if page.reviewing is not None and page.corrections is not None:
                with gradio.Tab("Check labels"):
                    _review(page.reviewing, page.corrections)
                if page.judged is not None:
                    with gradio.Tab("Annotators"):
                        _people(page.judged, page.reviewing)
    return blocks


def launched(blocks: "gradio.Blocks", **options: Any) -> str:
    """Start the app.

    Args:
        blocks: from `app`.
        **options: as `gradio.Blocks.launch` takes them, in place of those here.

    Returns:
        Its address.
    """
    import gradio
    from starlette.middleware import Middleware

    theme = gradio.themes.Default(
        primary_hue="blue",
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    ).set(  # white on it must be legible
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_hover="*primary_700",
        button_primary_background_fill_dark="*primary_600",
        button_primary_background_fill_hover_dark="*primary_700",
    )
    usual = {
        "quiet": True,
        "share": False,
        "ssr_mode": False,
        "run_history": False,
        "enable_monitoring": False,
        "footer_links": [],
        "max_file_size": MOST_BYTES,
        "theme": theme,
        "css": styles(),
        "app_kwargs": {"middleware": [Middleware(_NothingFromOutside)]},
    }
    return blocks.launch(**(usual | options))[1]


def launched_here(blocks: "gradio.Blocks", port: int | None = None, **options: Any) -> str:
    """Start the app for this machine alone.

    Args:
        blocks: from `app`.
        port: where; by default the first free one from 7860.
        **options: as `gradio.Blocks.launch` takes them.

    Returns:
        Its address.

    Raises:
        OSError: if the port is taken.
    """
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    # A page elsewhere could lead its own name to this address, and read what is here.
    known = Middleware(TrustedHostMiddleware, allowed_hosts=[ADDRESS, "localhost"])
    guards = {"middleware": [known, Middleware(_NothingFromOutside)]}
    try:
        return launched(blocks, server_name=ADDRESS, server_port=port, app_kwargs=guards, **options)
    except OSError as error:
        raise OSError(
            f"`--port` must be free, got {port or 'none free from 7860 on'}: name another."
        ) from error


class _NothingFromOutside:
    """Tells browsers to load nothing from other places, whatever a version of Gradio asks for."""

    def __init__(self, inner: Callable[..., Awaitable[None]]) -> None:
        self.inner = inner

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                policy = (b"content-security-policy", _POLICY.encode())
                message["headers"] = [*message["headers"], policy]
            await send(message)

        await self.inner(scope, receive, sent)


# Try the model


def _try(trying: Trying) -> None:
    import gradio

    with gradio.Row():
        with gradio.Column(scale=1):
            given, read, ready = _entry(trying)
            looks = gradio.HTML(js_on_load=None)
            gradio.HTML(drawn("heading_of_votes"), js_on_load=None)
            who = gradio.Dropdown(
                _choices(trying.annotators), value=None, label="Annotator", interactive=True
            )
            said = gradio.Dropdown(
                _choices(trying.classes), value=None, label="Says", interactive=True
            )
            with gradio.Row():
                add = gradio.Button("Add the vote", variant="primary")
                clear = gradio.Button("Take all votes back")
        with gradio.Column(scale=2):
            result = gradio.HTML(
                drawn("note", text="Give an item to see what the model says."), js_on_load=None
            )
    votes = gradio.State([])

    def answered(votes: list[Vote], *cells: Any) -> str:
        try:
            item = read(*cells)
            if item is None:
                return drawn("note", text="Give an item to see what the model says.")
            return answer_of(trying, trying.answer(item, votes))
        except (TypeError, ValueError, OSError, IndexError, ImportError) as error:
            return drawn("said", text=meaning_of(error))

    def shown(votes: list[Vote], *cells: Any) -> tuple[str, str]:
        kind = trying.takes
        seen = (
            shown_item(cells[0], kind)
            if kind in ("image", "audio") and cells[0] is not None
            else ""
        )
        return seen, answered(votes, *cells)

    def added(
        votes: list[Vote], who: int | None, said: int | None, *cells: Any
    ) -> tuple[list[Vote], str]:
        if who is None or said is None:
            return votes, drawn("said", text="A vote must have an annotator and a class: choose both.")  # fmt: skip
        votes = [*votes, (int(who), int(said))]
        return votes, answered(votes, *cells)

    def cleared(*cells: Any) -> tuple[list[Vote], str]:
        return [], answered([], *cells)

    for event in ready:
        _on(event, shown, [votes, *given], [looks, result])
    _on(add.click, added, [votes, who, said, *given], [votes, result])
    _on(clear.click, cleared, given, [votes, result])


def _entry(trying: Trying) -> tuple[list[Any], Callable[..., Any], list[Any]]:
    """Make the form for an item: its components, what turns them into an item, and what sends it off."""
    import gradio

    kind = trying.takes
    if kind in ("image", "audio"):
        what = {"image": "a picture", "audio": "a sound"}[kind]
        file = gradio.File(label=f"Drop {what}, or click to choose one", height=150)
        return [file], lambda path: None if path is None else {kind: path}, [file.change]
    if kind == "columns":
        cells = [_cell(column) for column in trying.columns]
        send = gradio.Button("Classify")
        return cells, lambda *given: trying.row(given), [send.click]
    if kind == "numbers":
        size = f"{trying.size} numbers" if trying.size else "numbers"
        text = gradio.Textbox(label=f"Type or paste {size}", lines=3)
        send = gradio.Button("Classify")
        return (
            [text],
            lambda given: trying.features(given) if given and given.strip() else None,
            [send.click, text.submit],
        )
    text = gradio.Textbox(label="Type or paste a text", lines=5)
    with gradio.Accordion("A second text, where an item is a pair", open=False):
        pair = gradio.Textbox(label="Second text", lines=3)
    send = gradio.Button("Classify")

    def read(given: str | None, second: str | None) -> dict[str, str] | None:
        parts = {"text": given or "", "text_pair": second or ""}  # None if never touched
        parts = {name: part for name, part in parts.items() if part.strip()}
        return parts if "text" in parts else None

    return [text, pair], read, [send.click, text.submit, pair.submit]


def _cell(column: dict[str, Any]) -> Any:
    """Make the component of a column; nothing chosen stands for a value that is not known."""
    import gradio

    label = short(column["name"], _LETTERS)
    if column["kind"] == "number":
        return gradio.Number(value=float(f"{column['mean']:.4g}"), label=label)
    names = column["categories"] if column["kind"] == "category" else ["no", "yes"]
    return gradio.Dropdown(_choices(names), value=None, label=label, interactive=True)


# Check labels


def _review(reviewing: Reviewing, corrections: Corrections) -> None:
    import gradio

    classes = reviewing.classes
    with gradio.Row():
        with gradio.Column(scale=2):
            view = gradio.HTML(js_on_load=None)
            with gradio.Row():
                back = gradio.Button("Previous", min_width=100)
                on = gradio.Button("Next", min_width=100)
        with gradio.Column(scale=1):
            reviewer = gradio.Textbox(label="Your name", max_length=200)
            agree = gradio.Button("Agree with the model", variant="primary")
            if len(classes) <= _MOST_BUTTONS:
                chosen: Any = gradio.Radio(_choices(classes), value=None, label="Or choose a class")
            else:
                chosen = gradio.Dropdown(
                    _choices(classes), value=None, label="Or choose a class", interactive=True
                )
            save = gradio.Button("Save this class")
            kind = gradio.Radio(
                [("my vote", _VOTE), ("the gold label", _GOLD)], value=_VOTE, label="Save it as"
            )
            told = gradio.HTML(js_on_load=None)
    place = gradio.State(0)

    def moved(step: int) -> Callable[[int], tuple[int, str, None, str]]:
        def to(place: int) -> tuple[int, str, None, str]:
            place = min(max(place + step, 0), reviewing.number - 1)
            return place, item_of(reviewing, corrections, place), None, ""

        return to

    def saved(place: int, reviewer: str | None, kind: str, said: int) -> tuple[int, str, None, str]:
        try:
            name = reviewing.name(place)
            if kind == _GOLD:
                number = corrections.gold(name, classes[said])
            else:
                number = corrections.vote(name, reviewer or "", classes[said])
        except (ValueError, OSError, IndexError) as error:
            return place, item_of(reviewing, corrections, place), None, drawn("said", text=meaning_of(error))  # fmt: skip
        text = drawn(
            "saved", item=name, said=classes[said], number=number, file=corrections.path.name
        )
        following = min(place + 1, reviewing.number - 1)
        return following, item_of(reviewing, corrections, following), None, text

    def agreed(place: int, reviewer: str, kind: str) -> tuple[int, str, None, str]:
        return saved(place, reviewer, kind, reviewing.card(place).forecast)

    def chose(place: int, reviewer: str, kind: str, said: int | None) -> tuple[int, str, None, str]:
        if said is None:
            text = "A correction must have a class: choose one."
            return place, item_of(reviewing, corrections, place), None, drawn("said", text=text)
        return saved(place, reviewer, kind, int(said))

    out = [place, view, chosen, told]
    _on(back.click, moved(-1), [place], out)
    _on(on.click, moved(1), [place], out)
    _on(agree.click, agreed, [place, reviewer, kind], out)
    _on(save.click, chose, [place, reviewer, kind, chosen], out)
    _loaded(moved(0), [place], out)


# Annotators


def _people(judged: AnnotatorReport, reviewing: Reviewing) -> None:
    import gradio

    order = judged.to_act_on_first()
    names = [
        (f"{short(judged.annotators[m], _LETTERS)} \u2013 {judged.verdict[m]}", m) for m in order
    ]
    who = gradio.Dropdown(names, value=order[0], label="Annotator", interactive=True)
    view = gradio.HTML(js_on_load=None)

    def looked(who: int | None) -> str:
        if who is None:
            return drawn("note", text="Choose an annotator.")
        return person_of(judged, reviewing, int(who))

    _on(who.change, looked, [who], [view])
    _loaded(looked, [who], [view])


def _choices(names: Any) -> list[tuple[str, int]]:
    """Show names in a list; their places go to and fro, so that no name has to survive the way."""
    return [(short(str(name), _LETTERS) or "(no name)", place) for place, name in enumerate(names)]


def _on(event: Any, function: Callable[..., Any], inputs: list[Any], outputs: list[Any]) -> None:
    event(
        function, inputs, outputs, show_progress="minimal", api_visibility="private",
        concurrency_limit=None,
    )  # fmt: skip


def _loaded(function: Callable[..., Any], inputs: list[Any], outputs: list[Any]) -> None:
    """Fill a part of the page when it opens."""
    import gradio

    _on(gradio.context.Context.root_block.load, function, inputs, outputs)
