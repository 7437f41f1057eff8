"""What the page knows of items and annotators, counted by hand."""

import dataclasses
import re

import numpy as np
import pytest
from datasets import Dataset

from hf_maxmig.data.collator import CrowdCollator
from hf_maxmig.demo.corrections import Corrections
from hf_maxmig.demo.drawing import MOST_CLASSES, drawn, item_of, person_of
from hf_maxmig.demo.reviewing import Reviewing, person
from hf_maxmig.judging.relabel import most_suspect_first, relabelled
from tests.judging.pages import CLASSES, HOSTILE, NAMES, make_report

SAID = [  # of five items by five annotators, -1 for no vote
    [0, 0, 0, 1, -1],
    [1, 1, -1, -1, 0],
    [2, -1, 2, 0, 0],
    [-1, -1, -1, -1, -1],
    [0, 1, -1, 2, 2],
]
ZETA = np.array([[0.9, 0.05, 0.05], [0.3, 0.6, 0.1], [0.15, 0.75, 0.1], [0.2, 0.2, 0.6], [0.12, 0.08, 0.8]])  # fmt: skip


def make_items(names=("a", "b", "c", "d", "e"), classes=CLASSES):
    votes = [[(m, c) for m, c in enumerate(row) if c >= 0] for row in SAID]
    items = Dataset.from_dict(
        {
            "file": [*names],
            "text": [f"What item {name} is about, in a sentence of some length." for name in names],
            "annotators": [[m for m, _ in row] for row in votes],
            "annotations": [[c for _, c in row] for row in votes],
        }
    )
    items = items.add_column("row", [*range(5)])
    log_h, log_zeta = np.log(np.full((5, 3), 1 / 3)), np.log(ZETA)
    found = relabelled(items, log_h, log_zeta, log_zeta, CrowdCollator(5, 3), classes)
    return most_suspect_first(found)


@pytest.fixture
def reviewing():
    items = make_items()
    return Reviewing(items.remove_columns("row"), CLASSES, NAMES, "file", np.array(items["row"]))


@pytest.fixture
def corrections(tmp_path):
    return Corrections(tmp_path / "corrections.csv", CLASSES)


def test_suspects_come_first_under_the_names_of_the_votes(reviewing):
    """A correction under another name would be a vote on another item."""
    places = {reviewing.name(place): place for place in range(reviewing.number)}
    assert next(iter(places)) == "c"  # two votes for emu and two for cat, and it is a dog
    assert reviewing.suspects == 1
    unnamed = dataclasses.replace(reviewing, item_column=None)
    assert [unnamed.name(place) for place in range(5)] == [str("abcde".index(n)) for n in places]


def test_card_is_the_item_its_votes_and_its_posteriors(reviewing):
    """A card that mixes two items misleads every reviewer."""
    cards = {reviewing.name(place): reviewing.card(place) for place in range(5)}
    for number, (name, card) in enumerate(sorted(cards.items())):
        assert card.name == name
        assert card.forecast == ZETA[number].argmax()
        assert card.posteriors["forecast"] == pytest.approx(ZETA[number])
        said = {(vote["label"], who) for vote in card.votes for who in vote["names"]}
        assert said == {(CLASSES[c], NAMES[m]) for m, c in enumerate(SAID[number]) if c >= 0}
        assert any(f"item {name} is" in part.begins for part in card.parts if part.kind == "text")
    assert cards["a"].voted == [0]
    assert sorted(cards["c"].voted) == [0, 2]
    assert cards["d"].voted == []
    for place in (-1, 5):
        with pytest.raises(IndexError, match=r"must lie in 0\.\.4, got"):
            reviewing.card(place)


def test_errors_are_votes_against_the_forecast_the_surest_first(reviewing):
    """Sorted the other way, the page would show where the annotator may well be right."""
    names = [[reviewing.name(place) for place in reviewing.errors(m)] for m in range(5)]
    by_hand = []
    for m in range(5):
        wrong = [(ZETA[i, row[m]], "abcde"[i]) for i, row in enumerate(SAID) if row[m] >= 0 and row[m] != ZETA[i].argmax()]  # fmt: skip
        by_hand.append([name for _, name in sorted(wrong)])
    assert names == by_hand
    assert max(map(len, names)) > 1
    assert reviewing.errors(0, most=1) == reviewing.errors(0)[:1]
    place = reviewing.errors(3)[0]
    assert reviewing.said(3, place) == ["dog"]


def test_item_says_what_was_corrected(reviewing, corrections):
    """Without it, two reviewers correct the same item twice."""
    assert "Corrected" not in item_of(reviewing, corrections, 0)
    corrections.vote(reviewing.name(0), "zoe", "dog")
    corrections.gold(reviewing.name(0), "emu")
    html = re.sub(r"<[^>]+>", "", item_of(reviewing, corrections, 0))
    assert "Corrected by zoe: dog" in html
    assert "Corrected as gold label: emu" in html
    assert "Item 1 of 5; the first 1 is suspect." in html


def test_person_is_their_row_of_the_report():
    """The verdict of one annotator beside the matrix of another would condemn the wrong one."""
    judged = make_report()
    for m, name in enumerate(NAMES):
        one = person(judged, m)
        assert (one.name, one.verdict, one.reason) == (name, judged.verdict[m], judged.reason[m])
        assert np.array_equal(one.confusion, judged.confusion[m])
    with pytest.raises(IndexError, match=r"must lie in 0\.\.4, got 5"):
        person(judged, 5)


def test_large_matrix_keeps_the_classes_with_votes_in_their_order():
    """A hundred classes fill ten screens, and the few that somebody confuses are lost among them."""
    names = [f"class {c}" for c in range(20)]
    judged = make_report(classes=names)
    counts = np.zeros_like(judged.counts)
    counts[:, 3, 17] = counts[:, 9, 9] = 5
    one = person(dataclasses.replace(judged, counts=counts), 1, most_classes=3)
    assert one.classes == [3, 9, 17]
    assert one.confusion[0, 2] == judged.confusion[1, 3, 17]
    assert one.left_out == 17


def test_person_is_drawn_with_matrix_and_errors(reviewing):
    """Each number of the matrix belongs under the class that was said."""
    judged = make_report()
    html = person_of(judged, reviewing, 3)
    shares = re.findall(r'<td style="--share: ([\d.]+)%">', html)
    assert [float(share) for share in shares] == pytest.approx(100 * judged.confusion[3].ravel(), abs=0.06)  # fmt: skip
    assert "too few votes" in html
    assert len(re.findall("<li>", html)) == len(reviewing.errors(3))


def test_hostile_names_stay_text_on_cards(corrections):
    """Names of items, annotators, classes and reviewers come from files that strangers may have written."""
    hostile = [name.encode("utf-8", "replace").decode().replace("\0", "") for name in HOSTILE]
    classes = hostile[:3]
    items = make_items(hostile, classes).remove_columns("row")
    reviewing = Reviewing(items, classes, hostile, "file")
    judged = dataclasses.replace(make_report(names=hostile, classes=classes), reason=hostile)
    for place in range(5):
        Corrections(corrections.path, classes).vote(reviewing.name(place), hostile[0], classes[1])
    pages = [item_of(reviewing, corrections, place) for place in range(5)]
    pages += [person_of(judged, reviewing, m) for m in range(5)]
    pages += [drawn("saved", item=name, said=name, number=1, file=name) for name in hostile]
    for html in pages:
        for part in ("<script", "<img", "</title", "\u202e", "onclick='alert"):
            assert part not in html
    assert any("&lt;script&gt;alert(1)" in html for html in pages)


def test_table_of_answers_is_cut_at_the_likeliest():
    """A thousand bars would hide the few that matter."""
    values = np.linspace(0, 1, 30).tolist()
    shown = [*range(30)][: -MOST_CLASSES - 1 : -1]
    html = drawn("bars", answers=[{"what": "Both", "of": values}], classes=[f"c{i}" for i in range(30)], shown=shown)  # fmt: skip
    assert html.count("<tr>") == MOST_CLASSES + 1
    assert "22 further classes" in html
