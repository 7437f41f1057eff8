"""The page says what was found, and nothing in the data can inject anything into it."""

import dataclasses
import os
import re

import numpy as np
import pytest
from datasets import ClassLabel

from hf_maxmig.judging.copies import Copy
from hf_maxmig.judging.report import write_report
from hf_maxmig.judging.verdicts import LEAVE_OUT, LOOK_AT, TRUST, Verdict
from tests.judging.pages import (
    CLASSES,
    HOSTILE,
    LOG,
    METRICS,
    NAMES,
    make_items,
    make_report,
    picture,
    without_pictures,
    write,
)

pytest.importorskip("matplotlib")

_DRAWN = {"path", "use", "text", "g", "defs", "clippath", "rect"}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of everything, with items without pictures."""
    own = {"file_name": [f"{i}.jpg" for i in range(12)], "text": ["t"] * 12}
    return write(
        tmp_path_factory.mktemp("page"),
        relabelled=make_items(own=own),
        log_history=LOG,
        metrics=METRICS,
    )


@pytest.fixture(scope="module")
def images_page(tmp_path_factory):
    """The page of everything, with pictures."""
    return write(
        tmp_path_factory.mktemp("images_page"),
        relabelled=make_items(own={"image": [picture()] * 12}),
        log_history=LOG,
    )


def test_page_says_what_was_found(page):
    """A wrong figure would make the owner act on the wrong people."""
    items = make_items()
    expected = f"{100 * np.mean(items['confidence'][:]):.1f} %"
    quality = f"{100 * np.mean(items['label_quality'][:11]):.1f} %"
    forecast = f"{100 * np.mean(items['confidence'][:4]):.1f}"
    crowd = f"{100 - 100 * np.mean(items['suspicion'][:4]):.1f}"
    for words in (
        "5 annotators cast 455 votes: 1 expert, 1 ordinary, 1 random, 1 copied or copying, 1 too few votes. "
        "2 can be trusted, 2 should be looked at, 1 should be left out. With each group of copies counted "
        "once, 4 voices remain. Best: ann, bob.",
        "On 4 items the crowd's label looks wrong, because the forecast is another class. By the model's own "
        f"probabilities the forecast is right on {forecast} % of them, the crowd's label on {crowd} %. Gold "
        "labels show that 2 of the 2 suspect labels they can check are wrong.",
        f"4 of 12 items; mean label quality {quality}",
        f"by the model's own probabilities {expected} by gold labels 100.0 %",
        "Ask again about these 4 items, or take the forecasts: 2.jpg",
        f"the forecast is right on {forecast} % of them, the crowd's label on {crowd} %. Gold labels find the "
        "forecast right on 100.0 % of the 2 they can check.",
        "votes are too seldom right to be useful (1 annotator): eve.",
        "Count as one voice (2 annotators): bob, cyd.",
        "the votes cannot tell who was first",
        "Mind 1 item without votes",
        "classifier 100.0 % 6 87.6 %",
        "12 items 5 annotators",
    ):
        assert words in page.words, words
    row = page.words[page.words.index("eve random") :]
    worst = make_report().confusion[4].diagonal()
    share = f"{CLASSES[worst.argmin()]} ({100 * worst.min():.0f} % right)"
    assert row.startswith(f"eve random 35 % 30\u201340 % {share} 0.010 171 because of eve")


def test_gold_labels_are_measured_against_on_the_items_that_allow_it(page):
    """Leaving suspects out of the accuracy, or counting a missing label as class 0, would flatter the crowd."""
    # Gold labels on items 1, 3, 5, 7, 9 and 11 equal the forecast; 1 and 3 are suspect, 11 has no
    # votes.
    assert "plurality of the votes 60.0 % 5" in page.words
    assert "aggregator 100.0 % 5" in page.words
    assert "forecast 100.0 % 6" in page.words
    assert "by gold labels 100.0 %" in page.words


@pytest.mark.parametrize(
    ("confidence", "gold", "take"),
    [(0.51, None, True), (0.5, None, False), (0.4, None, False), (0.9, 1, True), (0.9, 0, False)],
)
def test_forecasts_are_advised_only_where_they_are_right_more_often_than_not(
    tmp_path, confidence, gold, take
):
    """The page once advised taking the forecasts on 329 items where they were right on only 48 %."""
    items = make_items(
        gold=False,
        confidence=[confidence] * 4 + [0.99] * 8,
        suspicion=[0.7] * 4 + [0.0] * 7 + [None],
    )
    if gold is not None:  # a measured value takes precedence over an expected one
        best = np.argmax(items["forecast_posterior"][:], axis=1)
        label = [int(c) if gold else int(c + 1) % len(CLASSES) for c in best[:4]] + [None] * 8
        items = items.add_column("label", label).cast_column(
            "label", ClassLabel(names=list(CLASSES))
        )
    words = write(tmp_path, without_pictures(), relabelled=items).words
    assert f"the forecast is right on {100 * confidence:.1f} % of them" in words
    assert "crowd's label on 30.0 %" in words
    assert ("or take the forecasts" in words) == take
    assert ("would break as many labels as it mends" in words) != take
    assert ("the crowd's label looks wrong" in words) == take
    assert ("the crowd's label is in doubt" in words) != take
    if gold is not None:
        assert f"Gold labels find the forecast right on {100 * gold:.1f} % of the 4" in words


@pytest.mark.slow
def test_sections_appear_only_with_content(tmp_path):
    """An empty plot, or a heading above nothing, looks like an error."""
    full = write(tmp_path, relabelled=make_items(), log_history=LOG)
    optional = {
        "information",
        "agreement",
        "gain",
        "reliability",
        "quality",
        "suspects",
        "hardest",
        "copies",
        "accuracies",
    }
    assert optional <= full.ids
    bare = write(tmp_path, make_report(NAMES[:1], votes=np.array([0])), summary="")
    assert not (optional | {"maps", "crowd", "plots"}) & bare.ids
    assert {"annotators", "reading", "do"} <= bare.ids
    assert "1 annotator cast 0 votes: 1 expert. 1 can be trusted" in bare.words
    assert "Nothing stands out" in bare.words
    for section, settings in {
        "agreement": {"report": make_report(copies=[])},
        "gain": {"log_history": []},
        "reliability": {"relabelled": make_items(gold=False)},
        "suspects": {"relabelled": make_items(suspect=[False] * 12)},
        "hardest": {"relabelled": make_items(difficulty=[0.0] * 12)},
    }.items():
        page = write(tmp_path, **{"relabelled": make_items(), "log_history": LOG, **settings})
        assert section not in page.ids
        assert f'href="#{section}"' not in page.raw
        assert optional - {section, "copies", "accuracies"} <= page.ids
    nobody = dict.fromkeys(("label_quality", "suspicion", "difficulty"), [None] * 12)
    unvoted = write(tmp_path, relabelled=make_items(suspect=[False] * 12, **nobody))
    assert not {"quality", "hardest", "suspects"} & unvoted.ids


def test_links_lead_somewhere_on_the_page_and_nowhere_else(images_page):
    """A page that loads anything from a server reveals who reads about whom."""
    assert len(images_page.sources) > 10
    for source in images_page.sources:
        files = ("data:image/jpeg;base64,", "data:text/csv;charset=utf-8,")
        assert source.startswith(files) or source[1:] in images_page.ids
        assert source[0] in "#d"
    assert "default-src 'none'" in images_page.raw
    assert not {tag for tag, _ in images_page.tags} & {"script", "link", "iframe", "object", "base"}
    assert not re.search(r"@import|https?://|url\((?!#)", images_page.raw)


def test_every_picture_has_words_and_every_table_headers(images_page):
    """Without them, a screen reader has nothing to read."""
    tags = [tag for tag, _ in images_page.tags]
    assert (tags.count("img"), tags.count("table")) == (4, 5)
    assert tags.count("svg") >= 5 + 5
    assert images_page.all_images_have_text
    assert all("scope" in attributes for tag, attributes in images_page.tags if tag == "th")


def test_names_from_the_data_add_no_tag_and_no_attribute(page, tmp_path):
    """Annotators choose their own names, and the page is opened by someone with access rights."""
    classes = ["<b>cat</b>", '" onload="x', "{{ 1 }}"]
    own = [f"{HOSTILE[i % 5]} {i}".encode("utf-8", "replace").decode() for i in range(12)]
    hostile = write(
        tmp_path,
        make_report(HOSTILE, classes),
        relabelled=make_items(HOSTILE, classes, own={"file_name": own, "text": own}),
        log_history=LOG,
        metrics=METRICS,
        title=HOSTILE[0],
        summary="\n".join(HOSTILE),
    )
    assert [t for t in hostile.tags if t[0] not in _DRAWN] == [
        t for t in page.tags if t[0] not in _DRAWN
    ]
    for tag in _DRAWN:
        assert _attributes(hostile, tag) <= _attributes(page, tag) | {"x", "y"}, tag
    assert HOSTILE[0] in hostile.text
    assert "{{ 7*7 }}" in hostile.text
    assert not re.search("[\u202e\x00]", hostile.raw)


def _attributes(page, tag):
    return {name for found, names in page.tags if found == tag for name in names}


def test_long_names_break_wherever_they_stand(tmp_path):
    """A name without spaces used to widen the page beyond the window; in tables only `anywhere` helps."""
    names = [f"worker{'x' * 90}{m}" for m in range(5)]
    classes = [f"class{'y' * 90}{c}" for c in range(3)]
    own = {"file_name": [f"folder{'z' * 90}{i}" for i in range(12)]}
    items = make_items(names, classes, own=own)
    page = write(tmp_path, make_report(names, classes), relabelled=items, summary=names[0])
    rule = re.search(r"([^{}]*){ overflow-wrap: anywhere; }", page.raw)
    breakable = [tag.strip() for tag in rule[1].split(",")]
    body = re.sub(r"<svg.*?</svg>", "", page.raw.partition("<body>")[2], flags=re.S)
    assert all(len(re.findall(f">[^<]*{c * 60}", body)) >= 5 for c in "xyz")
    for tag in breakable:
        body = re.sub(f"<{tag}\\b.*?</{tag}>", "", body, flags=re.S)
    text = re.sub(r"<[^>]*>", " ", body)
    assert [word for word in text.split() if len(word) > 40] == []


def test_max_annotators_shows_those_to_act_on_and_says_where_the_rest_is(tmp_path):
    """Nobody reads five thousand rows, or finds the random annotator in row 4,000."""
    items, report = make_items(), without_pictures()
    page = write(tmp_path, report, max_annotators=2, max_suspects=1, relabelled=items)
    table = page.words[page.words.index("Those to act on first") :]
    assert "2 of 5 are shown, all are in annotators.csv" in table
    assert table.index("because of eve") < table.index("because of cyd")
    assert "because of ann" not in table
    assert "1 of 4 are shown" in page.words
    none = write(tmp_path, report, max_annotators=0, max_suspects=0, relabelled=items)
    assert "All 5 annotators are in annotators.csv" in none.words
    assert "Ask again about these 4 items, or take the forecasts. By the model" in none.words


@pytest.mark.parametrize(
    ("most", "words"),
    [
        (60, "shown below"), (4, "shown below"), (3, "the 3 most suspect are shown below"),
        (1, "the most suspect one is shown below"),
    ],
)  # fmt: skip
def test_numbers_in_the_text_are_those_of_what_is_shown(tmp_path, most, words):
    """The page once said "245 more, shown below" above 60 items."""
    page = write(tmp_path, without_pictures(), relabelled=make_items(), max_suspects=most)
    asked = page.words[page.words.index("Ask again") :].partition("By the model")[0]
    named, in_brackets = re.fullmatch(r".*take the forecasts: (.*) \((.*)\)\. ", asked).groups()
    assert in_brackets == words
    names, _, more = named.partition(" and ")
    cards = page.raw.count('<li class="card item')
    assert len(names.split(", ")) == cards == min(most, 4)
    assert more == (f"{4 - cards} more" if cards < 4 else "")
    assert (f"{cards} of 4 are shown" in page.words) == (cards < 4)


def test_numbers_of_pairs_are_those_of_what_is_shown(tmp_path):
    """If only 12 pairs are listed and 20 drawn, the text must not promise all 40."""
    names = [f"w{m}" for m in range(80)]
    copies = [Copy(m, m + 1, 30, 29, 9.0, 1e-5) for m in range(0, 80, 2)]
    report = make_report(
        names, verdict=["copied or copying"] * 80, reason=["r"] * 80, copies=copies
    )
    page = write(tmp_path, report)
    assert "The clearest 12 of 40 pairs." in page.words
    assert len(re.findall(r'data-label="Other"', page.raw)) == 12
    assert "the clearest 20 of 40 pairs" in page.words
    assert page.raw.count("29 of 30 as w") == 20
    actions = page.words[page.words.index("What to do", 100) : page.words.index("Those to act")]
    assert actions.count("Count as one voice (2 annotators)") == 5
    assert "Count as one voice each of 35 more groups" in actions


def test_one_plot_alone_keeps_its_size(page):
    """Stretched over the page, a single plot had letters as large as the title."""
    style = page.raw[: page.raw.index("</style>")]
    assert "auto-fill" in re.search(r"\.plots \{[^}]*\}", style)[0]
    assert re.search(r"\.plots \.plot \{ max-width: \d+rem; \}", style)


def _maps_of(page):
    """Return the names of the annotators whose confusion is shown, in order."""
    maps = page.raw[page.raw.index('<div class="maps">') :]
    return re.findall(r'<figure class="plot"><h3><bdi>(.*?)</bdi>', maps)


def test_confusions_of_the_best_come_first(tmp_path):
    """Doubtful or merely busy annotators used to take all eight places, leaving none for the experts."""
    names = [f"w{m}" for m in range(30)]
    verdicts = ["random"] * 12 + ["ordinary"] * 8 + ["too few votes"] * 4 + ["expert"] * 6
    report = make_report(
        names, verdict=verdicts, reason=["r"] * 30, copies=[],
        accuracy_low=np.linspace(0.3, 0.9, 30), votes=np.arange(30, 0, -1) * 40,
    )  # fmt: skip
    assert _maps_of(write(tmp_path, report))[:4] == ["w29", "w28", "w27", "w26"]
    assert len(_maps_of(write(tmp_path, report))) == 8
    few = make_report(
        names, verdict=["expert"] * 6 + ["too few votes"] * 24, reason=["r"] * 30, copies=[]
    )
    assert set(_maps_of(write(tmp_path, few))) == {*names[:6], *_maps_of(write(tmp_path, few))[6:]}


def test_copies_stand_beside_their_original(tmp_path):
    """An original with few votes used to be listed far below its copies."""
    names = [f"w{m}" for m in range(9)]
    verdicts = ["random"] + ["copied or copying"] * 5 + ["too few votes", "ordinary", "expert"]
    votes = np.array([90, 800, 700, 600, 40, 50, 70, 900, 30])
    copies = [Copy(1, 4, 40, 40, 20.0, 1e-9), Copy(3, 4, 40, 40, 20.0, 1e-9), Copy(2, 5, 40, 40, 20.0, 1e-9)]  # fmt: skip
    report = make_report(
        names,
        verdict=verdicts,
        reason=[f"because of {n}" for n in names],
        votes=votes,
        copies=copies,
    )
    page = write(tmp_path, dataclasses.replace(without_pictures(report), copies=copies))
    rows = re.findall(r"because of (w\d)", page.raw)
    assert rows == ["w0", "w4", "w1", "w3", "w5", "w2", "w6", "w7", "w8"]
    assert "(3 annotators): w4, w1, w3." in page.words
    assert "(2 annotators): w5, w2." in page.words


def test_console_says_what_the_page_says(page):
    """With separate texts for page and console, the first edit of one would make them differ."""
    report = make_report()
    lines = str(report).split("\n")
    assert lines[0] == report.overview()
    assert report.overview() in page.words
    actions = report.actions()
    assert len(actions) == 3
    assert lines[1:4] == [f"{i}. {action}" for i, action in enumerate(actions, 1)]
    for action in actions:
        assert str(action) in page.words
    assert [line.partition(" - ")[0] for line in lines[4:]] == [
        "Best: ann", "Best: bob", "Most doubtful: eve",
    ]  # fmt: skip
    assert "Best: ann, bob." in page.words
    table = page.words[page.words.index("Those to act on first") :]
    assert table.index("because of eve") < table.index("because of ann")
    fine = make_report(NAMES[:2])
    assert "Nothing stands out: the annotators can be trusted" in str(fine)


def test_hardest_items_are_listed_with_their_votes(tmp_path):
    """They show where the guidelines are incomplete. The easiest items on top would hide them."""
    items = make_items(difficulty=[0.1, 0.9, 0.3, *[0.0] * 8, None])
    page = write(tmp_path, without_pictures(), relabelled=items)
    table = page.words[
        page.words.index("Hardest items The") : page.words.index("The crowd in figures")
    ]
    assert "The 3 items on which" in table
    assert re.findall(r"(\d+\.jpg) (\d+ %)", table) == [
        ("1.jpg", "90 %"), ("2.jpg", "30 %"), ("0.jpg", "10 %"),
    ]  # fmt: skip
    row = items[1]
    assert (
        f"2 \u00d7 {row['plurality']} (ann, bob), 1 \u00d7 {row['forecast']} (cyd) {row['forecast']}, "
        in table
    )


def test_no_probability_claims_to_be_certain(tmp_path):
    """A label quality of 0.0 % reads like proof."""
    items = make_items(label_quality=[0.0002, 0.9999, *[0.5] * 9, None])
    words = write(tmp_path, without_pictures(), relabelled=items).words
    assert "Label quality: under 0.1 %" in words
    assert "Label quality: over 99.9 %" in words


def test_gallery_shows_the_most_suspect_first_with_votes(tmp_path):
    """People look at the top of the list, and a vote under a wrong name accuses someone."""
    items = make_items(suspicion=[0.6, 0.9, 0.7, 1.0, *[0.1] * 7, None])
    page = write(tmp_path, without_pictures(), relabelled=items)
    gallery = page.words[page.words.index("The most suspect first") :]
    places = [gallery.index(f" {i}.jpg") for i in (3, 1, 2, 0)]
    assert places == sorted(places)
    row = items[3]
    assert (
        f"3.jpg Crowd: 2 \u00d7 {row['plurality']} (ann, bob), 1 \u00d7 {row['forecast']} (cyd) "
        f"Forecast: {row['forecast']}, {100 * row['confidence']:.1f} % Gold label: {row['forecast']} "
        f"Label quality: {100 * row['label_quality']:.1f} % Difficulty: {100 * row['difficulty']:.0f} %"
    ) in gallery


def test_items_without_pictures_show_their_text_or_their_row(tmp_path):
    """Text data has suspects too. Without an id, only the row number leads back to the item."""
    report = without_pictures()
    reviews = make_items(own={"review": ["so & so " * 99] * 12})
    words = write(tmp_path, report, relabelled=reviews).words
    assert "row 0 so & so" in words
    assert "…" in words
    assert "row 2 Crowd" in write(tmp_path, report, relabelled=make_items(own={})).words


def test_unreadable_image_is_said_and_does_not_stop_the_page(tmp_path):
    """One broken file among a hundred thousand must not cost the whole report."""
    own = {"image": [{"bytes": b"no image", "path": "broken.jpg"}, None, *[picture()] * 10]}
    page = write(tmp_path, without_pictures(), relabelled=make_items(own=own))
    assert page.words.count("The image cannot be read.") == 2
    assert [tag for tag, _ in page.tags].count("img") == 2
    assert "broken.jpg" in page.words


def test_unmeasured_figures_are_dashes(tmp_path):
    """In a table about people, the word nan reads like a grade."""
    nothing = np.full(5, np.nan)
    page = write(
        tmp_path,
        make_report(
            votes=np.array([0, 1, 0, 2, 3]), accuracy=nothing, accuracy_low=nothing,
            accuracy_high=nothing, information=nothing, confusion=np.full((5, 3, 3), np.nan),
        ),
    )  # fmt: skip
    assert "nan" not in page.words.lower()
    assert "dee too few votes \u2013 \u2013 \u2013 2" in page.words
    assert "information" not in page.ids


@pytest.mark.parametrize("size", [2, 100])
def test_page_is_written_for_few_and_for_many_classes(size, tmp_path):
    """A hundred classes in every confusion plot would be megabytes of unreadable grey."""
    classes = [f"class {c}" for c in range(size)]
    page = write(tmp_path, make_report(classes=classes), relabelled=make_items(classes=classes))
    assert ("the 12 of 100 classes they used most" in page.words) == (size == 100)
    assert f"{size} classes" in page.words
    assert len(page.raw) < 1e6


def test_dense_and_absent_crowd_columns_are_read(tmp_path):
    """The other shapes that the trainer accepts must not fail at the very end."""
    items, report = make_items(own={}), without_pictures()
    names = ["annotators", "annotations"]
    bare = write(tmp_path, report, relabelled=items.remove_columns(names))
    assert "row 0 Crowd: Forecast" in bare.words
    dense = items.remove_columns(names).add_column("annotations", [[1, -1, 1, 0, -1]] * 12)
    assert (
        "Crowd: 2 \u00d7 dog (ann, cyd), 1 \u00d7 cat (dee)"
        in write(tmp_path, report, relabelled=dense).words
    )


def test_tie_of_votes_counts_on_the_page_as_on_the_console(tmp_path):
    """When only one of the two counted ties, the same crowd was right on 76.9 % and on 72.7 %."""
    votes = {"annotators": [[0, 1]] * 12, "annotations": [[i % 3, 2] for i in range(12)]}
    tied = make_items(own={}, plurality=[None] * 12, **votes)
    page = write(tmp_path, without_pictures(), relabelled=tied)
    found = re.search(r"plurality of the votes (\d+.\d) % (\d+)", page.words)
    known = [row for row in tied if row["label"] is not None and row["label"] >= 0]
    shares = [row["annotations"].count(row["label"]) / 2 for row in known]
    assert found is not None
    assert (float(found[1]), int(found[2])) == (
        pytest.approx(100 * sum(shares) / len(known), abs=0.05),
        len(known),
    )


def test_set_format_and_chosen_rows_change_nothing(tmp_path):
    """A format that hides columns, or reordered rows, would pair votes with the wrong item."""
    items, report = make_items(), without_pictures()
    plain = write(tmp_path, report, relabelled=items).raw
    shuffled = items.select(range(11, -1, -1)).select(range(11, -1, -1))
    shuffled.set_format("torch", columns=["label"])
    assert write(tmp_path, report, relabelled=shuffled).raw == plain


def test_page_is_whole_or_not_there(tmp_path, monkeypatch):
    """Half a page after a crash looks like a report, and an earlier page must survive."""
    path = tmp_path / "new" / "report.html"
    report, settings = without_pictures(), {"title": "t", "summary": "s"}
    assert write_report(path, report, **settings) == path
    before = path.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_report(path, report, **{**settings, "title": "other"})
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["report.html"]


def test_without_matplotlib_nothing_is_written(tmp_path, monkeypatch):
    """Matplotlib is optional: the error must name it, not a module three levels down."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'hf_maxmig\[plots\]'"):
        write_report(tmp_path / "report.html", make_report(), title="t", summary="s")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_shown_is_refused(tmp_path):
    """A data set that `relabel` has not seen has no forecasts.

    An empty gallery would suggest that all is well.
    """
    with pytest.raises(ValueError, match="none called 'suspect'"):
        write(tmp_path, relabelled=make_items().remove_columns(["suspect"]))
    with pytest.raises(ValueError, match="`max_suspects` must be at least 0, got -1"):
        write(tmp_path, max_suspects=-1)
    assert not list(tmp_path.iterdir())


def test_every_verdict_is_acted_on_and_explained(page, tmp_path):
    """A new verdict would stop the page, or appear without an explanation."""
    reading = page.words[page.words.index("How to read this page", 200) :]
    for verdict in Verdict:
        assert verdict.value in reading
        assert verdict.meaning in reading
    every = [verdict.value for verdict in Verdict]
    number = len(every)
    report = make_report(
        [f"a{i}" for i in range(number)], verdict=every, copies=[], reason=["r"] * number
    )
    page = write(tmp_path, without_pictures(report))
    assert "2 can be trusted, 2 should be looked at, 3 should be left out." in page.words
    actions = page.words[page.words.index("What to do", 100) : page.words.index("Those to act")]
    assert actions.count("(1 annotator)") == 5
    for verdict in Verdict:
        assert bool(verdict.advice) == (verdict.group != TRUST)
        assert verdict.advice in actions
        assert verdict.remark in actions


def test_verdict_is_one_row(root):
    """A verdict spelt out in a second place could differ there and drop off the page."""
    every = list(Verdict)
    assert len({verdict.turn for verdict in every}) == len(every)
    assert [v.group for v in sorted(every, key=lambda v: v.turn)] == sorted(
        (v.group for v in every), reverse=True
    )
    assert {v.group for v in every} == {TRUST, LOOK_AT, LEAVE_OUT}
    for name in ("annotators.py", "report.py", "report.html"):
        text = (root / "hf_maxmig" / "judging" / name).read_text(encoding="utf-8")
        for verdict in every:
            assert f'"{verdict.value}"' not in text, (name, verdict)
    text = (root / "hf_maxmig" / "judging" / "verdicts.py").read_text(encoding="utf-8")
    for verdict in every:
        assert text.replace(f'called("{verdict.value}")', "").count(f'"{verdict.value}"') == 1


@pytest.mark.slow
@pytest.mark.full
def test_page_of_a_large_crowd_is_small(tmp_path):
    """No browser opens a page of a hundred megabytes."""
    number, many = 5000, 100_000
    names = [f"worker {m}" for m in range(number)]
    rng = np.random.default_rng(0)
    report = make_report(
        names,
        verdict=[list(Verdict)[m % len(Verdict)].value for m in range(number)],
        votes=rng.integers(0, 3000, number),
        copies=[Copy(m, m + 1, 30, 29, 9.0, 1e-5) for m in range(0, 4000, 2)],
    )
    page = write(
        tmp_path, report, relabelled=make_items(names, number=many), log_history=LOG * 9000
    )
    assert "100,000 items" in page.words
    assert len(page.raw) < 3e6


def test_curve_ends_with_the_last_epoch(monkeypatch, tmp_path):
    """A later evaluation, of an earlier epoch or with another strength, would make the curve jump at its end."""
    drawn = []
    monkeypatch.setattr(
        "hf_maxmig.judging.report.gain_plot", lambda *given: drawn.append(given) or "<svg/>"
    )
    log = [
        {"gain": 0.1, "epoch": 1.0, "step": 5},
        {"eval_gain": 0.4, "epoch": 1.0, "step": 5},
        {"eval_gain": 0.2, "epoch": 2.0, "step": 10},
        {"gain": 0.3, "epoch": 2.0, "step": 10},
        {"eval_gain": 0.5, "epoch": 2.0, "step": 10},
    ]
    write(tmp_path, log_history=log)
    curves = {"training": ([1.0, 2.0], [0.1, 0.3]), "evaluation": ([1.0, 2.0], [0.4, 0.2])}
    assert drawn == [(curves, "epoch")]
