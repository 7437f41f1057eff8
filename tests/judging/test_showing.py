"""How the page shows items of every modality, in one file that is not too large."""

import re

import numpy as np
import pytest
from datasets import Audio, ClassLabel, Image, List, Value
from PIL import Image as Picture

from hf_maxmig.judging.showing import Showing
from tests.judging.pages import HOSTILE, make_items, picture, tone, without_pictures, write

pytest.importorskip("matplotlib")

LONG = "so & so, <b>so</b> " * 30
NUMBERS = {"height": Value("float32"), "age": Value("int16"), "colour": ClassLabel(names=["red", "blue"])}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch):
    """Leave out the plots: they take most of the time and show no item."""
    monkeypatch.setattr("hf_maxmig.judging.report._plots", lambda *_: {})


def noise():
    return Picture.fromarray(np.random.default_rng(0).integers(0, 255, (160, 160, 3), "uint8"))


def rows(**changes):
    own = {"height": [1.5] * 12, "age": [30] * 12, "colour": [1] * 12, **changes}
    return make_items(own=own, kinds={**NUMBERS, **dict.fromkeys(changes, Value("string"))})


def sounds(content, feature):
    """Return items with a column of sounds, built without writing any sound."""
    kind = {"bytes": Value("binary"), "path": Value("string")}
    items = make_items(own={"audio": content}, kinds={"audio": kind})
    return items.cast_column("audio", feature)


def gallery(page):
    return page.words[page.words.index("The most suspect first") : page.words.index("Hardest items The")]  # fmt: skip


def cards(page):
    return page.raw.split('<li class="card item')[1:]


def everything(kind):
    """Return items of one modality, each with something that the page can leave out."""
    return {
        "picture": lambda: make_items(own={"image": [noise()] * 12}),
        "sound": lambda: sounds([{"bytes": tone(), "path": f"{i}.wav"} for i in range(12)], Audio()),
        "text": lambda: make_items(own={"review": [LONG] * 12}),
        "row": lambda: make_items(
            own={f"number {i}": [i] * 12 for i in range(40)},
            kinds={f"number {i}": Value("int32") for i in range(40)},
        ),
    }[kind]()  # fmt: skip


@pytest.mark.parametrize("kind", ["picture", "sound", "text", "row"])
def test_page_stays_within_its_size_and_says_what_it_leaves_out(kind, tmp_path, monkeypatch):
    """No browser opens a page of a hundred megabytes.

    An item that is silently missing would not be looked at.
    """
    report, items = without_pictures(), everything(kind)
    embedded = {
        "picture": "<img ", "sound": "<audio ", "text": "</details></blockquote>", "row": "<details>",
    }[kind]  # fmt: skip
    named = {
        "picture": "1 picture.", "sound": "1 sound.", "text": "the rest of 1 text.", "row": "the rest of 1 row.",
    }[kind]  # fmt: skip
    whole = write(tmp_path, report, relabelled=items)
    size = len(whole.raw.encode())
    assert whole.raw.count(embedded) == 4
    assert "leaves out" not in whole.words
    note = 400  # bytes of the sentence that would say what is left out
    monkeypatch.setattr("hf_maxmig.judging.report.MOST_BYTES", size + note)
    assert write(tmp_path, report, relabelled=items).raw == whole.raw
    monkeypatch.setattr("hf_maxmig.judging.report.MOST_BYTES", size - 1)
    cut = write(tmp_path, report, relabelled=items)
    assert size - 1 >= len(cut.raw.encode()) > size - size // 3
    assert cut.raw.count(embedded) == 3
    assert f"it leaves out {named}" in cut.words
    assert embedded not in cards(cut)[-1]  # the least suspect
    monkeypatch.setattr("hf_maxmig.judging.report.MOST_BYTES", 0)
    bare = write(tmp_path, report, relabelled=items)
    assert embedded not in bare.raw
    assert len(cards(bare)) == 4


def test_long_text_is_one_click_away(tmp_path):
    """A whole book in every card hides the other suspects, but a text cut short cannot be judged."""
    text = "word " * 2000 + "<b>end</b>" + "x" * 15_000
    page = write(tmp_path, without_pictures(), relabelled=make_items(own={"review": [text] * 12}))
    begins, rest = re.search(
        r'<blockquote dir="auto"><span class="said">(.*?)</span><details><summary>(?:.*?)</summary>'
        r'<span class="said">(.*?)</span></details>', page.raw,
    ).groups()  # fmt: skip
    assert len(begins) <= 240
    assert (begins + rest).replace("&lt;", "<").replace("&gt;", ">") == text[:20_000]
    assert "5,010 further characters are in the relabelled data set." in page.words
    assert f"{20_000 - len(begins):,} more characters" in page.words
    assert "<b>" not in page.raw


def test_texts_that_are_little_too_long_are_whole(tmp_path):
    """Nobody wants to click for three more words."""
    page = write(tmp_path, without_pictures(), relabelled=make_items(own={"review": ["ab " * 90] * 12}))  # fmt: skip
    assert "<details>" not in page.raw
    assert "ab " * 90 in page.raw


def test_pairs_of_texts_are_told_apart(tmp_path):
    """The answer depends on which text is the premise and which the hypothesis."""
    own = {"id": list("abcdefghijkl"), "premise": [LONG] * 12, "hypothesis": ["It " * 20] * 12}
    page = write(tmp_path, without_pictures(), relabelled=make_items(own=own))
    assert re.search(r"[abcd] premise so & so.*hypothesis It It", gallery(page))
    assert cards(page)[0].count("<blockquote") == 2
    other = write(
        tmp_path, without_pictures(), relabelled=make_items(own=own), show=["hypothesis", "premise"]
    )
    assert re.search(r"[abcd] hypothesis It It.*premise so & so", gallery(other))


def test_missing_and_empty_texts_are_said(tmp_path):
    """An empty card looks like an error of the page."""
    items = make_items(own={"text": ["", None] * 6})
    words = gallery(write(tmp_path, without_pictures(), relabelled=items))
    assert words.count("(empty text)") == words.count("(no text)") == 2


def test_rows_are_shown_by_column(tmp_path):
    """Class 1 must be shown as its colour, and NaN is not a height."""
    items = rows(kind=["oak"] * 12)
    page = write(tmp_path, without_pictures(), relabelled=items)
    assert re.search(r"row \d\s*height 1.5 age 30 colour blue kind oak", _spaced(page))
    chosen = write(tmp_path, without_pictures(), relabelled=items, show=["kind", "height"])
    assert re.search(r"row \d\s*kind oak height 1.5 Crowd", _spaced(chosen))
    assert "age" not in gallery(chosen)


def _spaced(page):
    """The gallery's words, with a space between the two columns of a row."""
    return " ".join(re.sub("<[^>]*>", " ", " ".join(cards(page))).split())


def test_missing_values_of_a_row_are_dashes(tmp_path):
    """In a column of heights, the word nan reads like a height."""
    items = make_items(
        own={"height": [float("nan")] * 12, "age": [None] * 12, "colour": [None] * 12}, kinds=NUMBERS
    )  # fmt: skip
    page = write(tmp_path, without_pictures(), relabelled=items)
    assert "height \u2013 age \u2013 colour \u2013 Crowd" in _spaced(page)


def test_columns_beside_a_text_or_a_picture_are_folded(tmp_path):
    """The text is what to judge; everything else about the item is one click away."""
    few, many = rows(text=[LONG] * 12), rows(text=[LONG] * 12, kind=["oak"] * 12)
    page = write(tmp_path, without_pictures(), relabelled=many)
    assert re.search(r"<blockquote.*<details><summary>4 columns</summary><dl", page.raw, re.S)
    page = write(tmp_path, without_pictures(), relabelled=few)
    assert "columns</summary>" not in page.raw
    assert "age 30" in _spaced(page)
    asked = write(tmp_path, without_pictures(), relabelled=many, show=["text", "kind", "age"])
    assert "columns</summary>" not in asked.raw
    assert "kind oak age 30" in _spaced(asked)


def test_vectors_votes_and_results_are_no_row(tmp_path):
    """A thousand features would hide the three columns that matter."""
    items = rows().add_column("features", [[0.5] * 50] * 12)
    items = items.add_column("tags", [["wild", "old"]] * 12)
    found = Showing.of(items, np.arange(4), None)
    assert found.fields == ["height", "age", "colour", "tags"]
    assert "tags wild, old" in _spaced(write(tmp_path, without_pictures(), relabelled=items))


@pytest.mark.parametrize("feature", [Audio(), Audio(decode=False), Audio(sampling_rate=16000)])
def test_sounds_have_a_player_without_a_decoder(feature, tmp_path):
    """`datasets` decodes sounds only with torchcodec and FFmpeg installed, which a WAV does not need."""
    (tmp_path / "b.wav").write_bytes(tone(pitch=300))
    content = [
        {"bytes": tone(), "path": "a.wav"}, {"bytes": None, "path": str(tmp_path / "b.wav")},
        None, {"bytes": b"no sound", "path": "d.wav"}, *[{"bytes": tone(), "path": None}] * 8,
    ]  # fmt: skip
    page = write(tmp_path, without_pictures(), relabelled=sounds(content, feature))
    assert [t for t in page.tags if t[0] == "audio"] == [
        ("audio", ("aria-label", "controls", "preload", "src"))
    ] * 2
    assert 'aria-label="Sound of a.wav"' in page.raw
    assert 'aria-label="Sound of b.wav"' in page.raw
    assert gallery(page).count("The sound cannot be read.") == 2
    assert "row 2 The sound cannot be read." in gallery(page)
    assert "media-src data:" in page.raw
    assert all(s.startswith(("data:audio/wav;base64,", "#")) for s in page.sources)


@pytest.mark.parametrize("kind", ["sound", "picture"])
def test_columns_of_paths_are_opened(kind, tmp_path):
    """Users who keep paths in a table also want to hear and see the items."""
    path = tmp_path / ("a.wav" if kind == "sound" else "a.png")
    if kind == "sound":
        path.write_bytes(tone())
    else:
        picture().save(path)
    items = make_items(own={"path": [str(path)] * 11 + [None]})
    page = write(tmp_path, without_pictures(), relabelled=items)
    assert page.raw.count("<audio " if kind == "sound" else "<img ") == 4
    assert gallery(page).count(path.name) == 4
    assert str(tmp_path) not in page.raw
    path.unlink()
    gone = write(tmp_path, without_pictures(), relabelled=items)
    assert f"{path} Crowd" in gallery(gone)


def test_decoded_sounds_have_a_player(tmp_path):
    """Some data sets hold arrays."""
    kind = {"array": List(Value("float32")), "sampling_rate": Value("int64")}
    content = [{"array": [0.0, 0.5, -0.5] * 99, "sampling_rate": 8000}] * 12
    items = make_items(own={"audio": content}, kinds={"audio": kind})
    assert write(tmp_path, without_pictures(), relabelled=items).raw.count("<audio ") == 4


def test_what_a_format_hides_is_shown(tmp_path):
    """Frozen features hide the pictures, texts and sounds that they were computed from."""
    for items in (everything("sound"), make_items(own={"text": [LONG] * 12}), rows()):
        shown = [name for name in items.column_names if name not in ("audio", "text", "age")]
        hidden = items.with_format("torch", columns=shown)
        assert (
            write(tmp_path, without_pictures(), relabelled=hidden).raw
            == write(tmp_path, without_pictures(), relabelled=items).raw
        )


def test_content_adds_no_tag_and_no_attribute(tmp_path):
    """Texts come from the internet, and the page is opened by someone with access rights."""
    hostile = [f"{HOSTILE[i % 5]} {i}".encode("utf-8", "replace").decode() * 5 for i in range(12)]
    plain = [" ".join(["word"] * (len(text) // 5)) + "." for text in hostile]
    pages = [
        write(
            tmp_path, without_pictures(),
            relabelled=make_items(
                own={"id": list("abcdefghijkl"), "one": texts, name: texts, "n": [1] * 12},
                kinds={"n": Value("int8")},
            ),
            show=["one", name, "n"],
        )
        for texts, name in ((hostile, '"><script>{{ 1 }}'), (plain, "two"))
    ]  # fmt: skip
    assert {tag for tag, _ in pages[0].tags} == {tag for tag, _ in pages[1].tags}
    for tag in ("blockquote", "span", "details", "dl", "div", "p", "bdi"):
        attributes = [{n for t, n in page.tags if t == tag} for page in pages]
        assert attributes[0] == attributes[1], tag
    assert "<script>{{ 1 }}" in pages[0].text


def test_show_names_columns_that_can_be_shown(tmp_path):
    """A misspelt column would silently leave the cards empty."""
    items = rows().add_column("features", [[0.5]] * 12)
    with pytest.raises(TypeError, match="`show` must be a list of column names, got 'age'"):
        write(tmp_path, relabelled=items, show="age")
    with pytest.raises(ValueError, match=r"`show` must name columns of the data set, .*got 'aeg'"):
        write(tmp_path, relabelled=items, show=["aeg"])
    with pytest.raises(ValueError, match="that a page can show, got 'features'"):
        write(tmp_path, relabelled=items, show=["features"])


def test_hardest_items_are_described(tmp_path):
    """A row number does not tell which question was hard."""
    hard = {"difficulty": [0.9] * 11 + [None]}
    for items, words in (
        (make_items(own={"text": ["What is it? " * 30] * 12}, **hard), "What is it? What is it?"),
        (rows(), "height: 1.5, age: 30, colour: blue"),
    ):
        page = write(tmp_path, without_pictures(), relabelled=items)
        table = page.words[page.words.index("Hardest items The") :]
        assert words in table
    assert "…" in table or len(words) < 120


def test_items_are_called_as_the_data_calls_them(tmp_path):
    """Row numbers change with every sorting. Owners search for the item's own id."""
    items = make_items(own={"song_id": [*range(70, 82)]}, kinds={"song_id": Value("int16")})
    page = write(tmp_path, without_pictures(), relabelled=items)
    assert "song_id 70 Crowd" in gallery(page)
    asked = page.words[page.words.index("Ask again") :].partition("(shown")[0]
    assert all(f"song_id {i}" in asked for i in range(70, 74))


def test_name_beside_a_picture_is_named(tmp_path):
    """Without a caption, `b` beside a digit would be read as its class, not as its scanner."""
    items = make_items(own={"image": [picture()] * 12, "scanner": ["b"] * 12})
    page = write(tmp_path, without_pictures(), relabelled=items)
    assert "scanner b Crowd" in _spaced(page)
    assert "<blockquote" not in page.raw


def test_pictures_of_several_columns_are_all_shown(tmp_path):
    """Of a before-and-after pair, one picture alone does not help."""
    items = make_items(
        own={"before": [picture()] * 12, "after": [picture()] * 12},
        kinds={"before": Image(), "after": Image()},
    )
    page = write(tmp_path, without_pictures(), relabelled=items)
    assert page.raw.count("<img ") == 8
    assert gallery(page).count("before") == gallery(page).count("after") == 4
