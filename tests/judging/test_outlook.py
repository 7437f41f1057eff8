"""What more votes would bring, what those so far have brought, and how the report shows both."""

import csv
import io
from urllib.parse import unquote

import numpy as np
import pytest
import torch
from datasets import Dataset

from hf_maxmig.judging.copies import Copy
from hf_maxmig.judging.outlook import Outlook, Payment
from hf_maxmig.judging.questions import Crowd
from hf_maxmig.model.annotator_rows import with_votes
from hf_maxmig.model.votes import Votes
from tests.judging.pages import CLASSES, HOSTILE, NAMES, make_items, make_report, write

N, M = 600, 6


@pytest.fixture(scope="module")
def world():
    """Two votes on each item by six annotators of differing quality, whose other answers are hidden."""
    generator = torch.Generator().manual_seed(1)
    truth = torch.randint(3, (N,), generator=generator)
    skill = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5, 1 / 3])
    right = torch.rand(N, M, generator=generator) < skill
    wrong = (truth[:, None] + torch.randint(1, 3, (N, M), generator=generator)) % 3
    answers = torch.where(right, truth[:, None], wrong)
    who = torch.stack([torch.randperm(M, generator=generator)[:2] for _ in range(N)])
    votes = Votes(who, answers.gather(1, who))
    other = (truth + torch.randint(1, 3, (N,), generator=generator)) % 3
    seen = torch.where(torch.rand(N, generator=generator) < 0.6, truth, other)
    log_h = torch.eye(3)[seen].mul(0.4).add(0.2).log()
    names = [f"a{m}" for m in range(M)]
    crowd = Crowd.of(log_h, log_h, None, votes, names, CLASSES)
    return truth, answers, log_h, crowd


def test_curve_is_what_hidden_votes_then_show(world):
    """A promise that is not kept would be found out only after the money is spent."""
    truth, answers, log_h, crowd = world
    outlook = Outlook.of(crowd)
    Q = len(outlook.questions)
    assert Q > 300
    assert len(outlook.right) == len(outlook.unsure) == Q + 1
    assert (np.diff(outlook.right) >= 0).all()
    assert (np.diff(outlook.unsure) <= 1e-9).all()
    before = float((crowd.log_forecast.argmax(dim=1) == truth).float().mean())
    assert outlook.right[0] == pytest.approx(before, abs=0.04)
    item = torch.tensor(outlook.questions["item"])
    who = torch.tensor([crowd.annotators.index(name) for name in outlook.questions["annotator"]])
    bought = torch.full((N, M), -1)
    bought[item, who] = answers[item, who]
    annotators = torch.where(bought >= 0, torch.arange(M), -1)
    votes = Votes(
        *(torch.cat(pair, dim=1) for pair in zip(crowd.votes, (annotators, bought), strict=True))
    )
    after = with_votes(log_h, crowd.log_rows, [votes])
    share = float((after.argmax(dim=1) == truth).float().mean())
    assert share > before + 0.05
    assert outlook.right[-1] == pytest.approx(share, abs=0.04)
    assert max(torch.bincount(who)) <= outlook.most_per_annotator == 3 * 2 * N // M or Q < 2 * N


def test_copies_are_paid_once():
    """Five accounts of one person would be paid five times."""
    report = make_report(copies=[Copy(2, 1, 1200, 1180, 710.5, 1e-9)])
    paid = Payment.of(report)
    nats = report.votes * report.information
    nats[[1, 2]] /= 2
    assert [one.annotator for one in paid] == np.argsort(-nats, kind="stable").tolist()
    assert sum(one.share for one in paid) == pytest.approx(1)
    for one in paid:
        assert one.nats == pytest.approx(nats[one.annotator])
        assert one.voices == (2 if one.annotator in (1, 2) else 1)
    nobody = make_report(information=np.full(5, np.nan))
    assert Payment.of(nobody) == []
    silent = make_report(votes=np.array([5, 0, 5, 5, 5]))
    assert 1 not in {one.annotator for one in Payment.of(silent)}


def outlook_of(names, items):
    names, items = (
        [n.encode("utf-8", "replace").decode() for n in part] for part in (names, items)
    )
    questions = Dataset.from_dict(
        {
            "item": list(range(len(items))),
            "file_name": items,
            "annotator": names,
            "expected_gain": [0.5 - 0.01 * i for i in range(len(items))],
            "reason": [f"the model hesitates; {name} knows" for name in names],
        }
    )
    Q = len(items)
    return Outlook(questions, np.linspace(0.8, 0.9, Q + 1), np.linspace(0.5, 0.25, Q + 1), 7)


def downloads(page):
    links = [unquote(source).split(",", 1)[1] for source in page.sources if source.startswith("data:text/csv")]  # fmt: skip
    return [[*csv.reader(io.StringIO(text, newline=""))] for text in links]


def test_page_says_what_to_ask_and_gives_all_of_it_as_a_file(tmp_path):
    """A list that cannot be taken from the page is not asked."""
    items = [f"{i}.jpg" for i in range(30)]
    names = [NAMES[i % 3] for i in range(30)]
    page = write(tmp_path, relabelled=make_items(), outlook=outlook_of(names, items))
    assert {"ask", "outlook", "payment"} <= page.ids
    assert 'href="#ask"' in page.raw
    assert "With 30 more votes, asked where they tell most, 90.0 % of the labels" in page.words
    assert "now 80.0 %" in page.words
    assert "from 0.500 to 0.250 nats" in page.words
    assert "Nobody is asked more than 7 times here" in page.words
    assert "The best 20 of 30 questions." in page.words
    assert "19.jpg bob 0.310 the model hesitates; bob knows" in page.words
    assert "20.jpg" not in page.words
    paid, asked = downloads(page)
    assert paid[0] == ["annotator", "votes", "nats", "share"]
    assert len(paid) == 6
    assert asked[0] == ["item", "file_name", "annotator", "expected_gain", "reason"]
    assert [row[1] for row in asked[1:]] == items
    nothing = write(tmp_path, outlook=outlook_of([], []))
    assert "No question that can be asked would tell anything" in nothing.words
    assert "outlook" not in nothing.ids
    without = write(tmp_path)
    assert "ask" not in without.ids


def test_hostile_names_stay_text_in_questions_and_files(tmp_path):
    """A file of questions is opened in a spreadsheet, and its link stands in an attribute."""
    names = [*HOSTILE[:-1], "=1+1"]
    page = write(
        tmp_path,
        make_report(names),
        relabelled=make_items(names),
        outlook=outlook_of(names, HOSTILE),
    )
    plain = write(tmp_path, relabelled=make_items(), outlook=outlook_of(NAMES, NAMES))
    assert {*page.tags} == {*plain.tags}
    _, asked = downloads(page)
    assert asked[5][2] == "'=1+1"
    assert asked[1][1] == HOSTILE[0]
