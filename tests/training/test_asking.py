"""The trainer asks: forecasts, rows and names come together for the right items and people."""

import pytest
import torch

from hf_maxmig import (
    CrowdTrainer,
    HeadClassifier,
    HeadConfig,
    MaxMIGModel,
    MaxMIGTrainer,
    MaxMIGTrainingArguments,
    peer,
)
from hf_maxmig.model.functional import confusion
from tests.worlds import ANNOTATORS, CLASSES, make_crowd


@pytest.fixture(scope="module")
def crowd():
    return make_crowd(300, unlabelled=40)


@pytest.fixture(scope="module")
def trained(crowd, tmp_path_factory):
    args = MaxMIGTrainingArguments(
        str(tmp_path_factory.mktemp("out")), num_train_epochs=2, report_to="none", use_cpu=True,
        init="vote_share", per_device_train_batch_size=50, disable_tqdm=True,
    )  # fmt: skip
    torch.manual_seed(0)
    head = HeadClassifier(HeadConfig(input_size=5, num_labels=3))
    trainer = MaxMIGTrainer(model=head, args=args, train_dataset=crowd)
    trainer.train()
    return trainer


def test_questions_are_about_what_is_not_known(trained, crowd):
    """Row numbers must be those of the data set, whatever order the batches had."""
    asked = trained.ask(crowd, 30)
    assert asked.column_names == ["item", "annotator", "expected_gain", "reason"]
    assert len(asked) == 30
    for item, who in zip(asked["item"], asked["annotator"], strict=True):
        assert ANNOTATORS.index(who) not in crowd[item]["annotators"]
    assert sum(not crowd[i]["annotators"] for i in asked["item"]) > 12  # those without any vote
    truth = torch.eye(3)[torch.tensor(crowd["label"][:])]
    votes = trained.crowd_of(crowd)
    right = sum(confusion(truth, *part, 4)[:, range(3), range(3)].mean(dim=1) for part in votes)
    best = ANNOTATORS[int(right.argmax())]
    assert asked["annotator"][0] == best == "ann"
    assert "dee" not in asked["annotator"][:10]  # answers at random


def test_columns_and_people_are_checked(trained, crowd):
    """A misspelt column would be noticed only where the questions are put."""
    names = [f"pic{i}" for i in range(len(crowd))]
    named = crowd.add_column("file", names)
    asked = trained.ask(
        named, 4, item_column="file", annotators=["zoe", "bob"], most_per_annotator=2
    )
    assert asked["file"][:] == [names[i] for i in asked["item"]]
    assert sorted(asked["annotator"]) == ["bob", "bob", "zoe", "zoe"]
    with pytest.raises(ValueError, match=r"`item_column` must be a column .*got 'files': it has"):
        trained.ask(named, 4, item_column="files")
    with pytest.raises(TypeError, match=r"must be a datasets.Dataset, got list"):
        trained.ask([1, 2], 4)


def test_items_without_crowd_columns_are_asked_about(trained, crowd):
    """The classifier alone says what is hard, and W who is good: votes of the training need not be at hand."""
    alone = crowd.remove_columns(["annotators", "annotations"])
    asked = trained.ask(alone, 5)
    assert len({*asked["item"]}) == 5
    assert "dee" not in asked["annotator"]
    unlabelled = trained.ask(crowd, 5, at_least=0.5)
    assert all(gain >= 0.5 for gain in unlabelled["expected_gain"])


def test_rival_without_an_aggregator_asks_too(crowd, tmp_path):
    """Its forecast is that of the classifier: votes given must count, or they would be bought again."""
    args = MaxMIGTrainingArguments(
        str(tmp_path), num_train_epochs=2, report_to="none", use_cpu=True, disable_tqdm=True
    )
    head = HeadClassifier(HeadConfig(input_size=5, num_labels=3))
    names = {"annotators": ANNOTATORS, "id2label": dict(enumerate(CLASSES))}
    model = peer("majority_vote", head, **names)
    assert not isinstance(model, MaxMIGModel)
    trainer = CrowdTrainer(model=model, args=args, train_dataset=crowd)
    trainer.train()
    asked = trainer.ask(crowd, 30)
    assert {*asked["annotator"]} <= {"ann", "bob"}
    votes = [len(annotators) for annotators in crowd["annotators"]]
    assert sum(votes[i] for i in asked["item"]) / 30 < 0.5 * sum(votes) / len(votes)
