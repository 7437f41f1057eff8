"""WAUM: scores compared with loops, and the items that the filter leaves out."""

import numpy as np
import pytest
import torch

from hf_maxmig import MaxMIGTrainingArguments
from hf_maxmig.peers import waum as package
from hf_maxmig.peers import waum_filter, waum_scores
from hf_maxmig.peers.aggregated import aggregate_labels
from hf_maxmig.training.training import votes_of
from tests import reference
from tests.networks import small_head
from tests.weights import assert_same
from tests.worlds import CLASSES, make_crowd

pytestmark = pytest.mark.filterwarnings("ignore:The (copy|inplace) keyword")  # crowd-kit on pandas


@pytest.fixture
def head():
    pytest.importorskip("crowdkit")
    return small_head(classes=CLASSES)


def arguments(tmp_path, **more):
    return MaxMIGTrainingArguments(
        str(tmp_path / "waum"), use_cpu=True, report_to="none", disable_tqdm=True, learning_rate=0.01,
        per_device_train_batch_size=16, **more,
    )  # fmt: skip


def test_scores_are_those_of_loops(head, tmp_path, monkeypatch):
    """A margin to the largest class, another annotator's trust, or that of the first epoch would look similar."""
    crowd = make_crowd(num_items=40, unlabelled=5)
    noted = []
    plain = package.MarginsModel.end_epoch

    def spy(self, parts, progress):
        plain(self, parts, progress)
        noted.append(self.log_h.double().exp())

    monkeypatch.setattr(package.MarginsModel, "end_epoch", spy)
    scores = waum_scores(crowd, head, arguments(tmp_path), epochs=3)
    assert len(noted) == 3

    parts = list(votes_of(crowd, package.MarginsModel.from_classifier(head, num_annotators=4)))
    posterior = torch.from_numpy(aggregate_labels(parts, "DawidSkene", 3))
    (who, said) = (torch.cat(tables) for tables in zip(*parts, strict=True))
    matrices = reference.confusion(reference.confusion_counts(posterior, who, said, 4), 0)
    v = 0
    for i, (annotators, annotations) in enumerate(
        zip(crowd["annotators"], crowd["annotations"], strict=True)
    ):
        total = weight = 0.0
        for m, r in zip(annotators, annotations, strict=True):
            aum = 0.0
            for p in noted:
                aum += float(p[v, r] - sorted(p[v].tolist())[-2]) / 3
            trust = sum(float(noted[-1][v, c] * matrices[m, c, c]) for c in range(3))
            total += trust * aum
            weight += trust
            v += 1
        if weight:
            assert scores[i] == pytest.approx(total / weight, abs=1e-5)
        else:
            assert np.isnan(scores[i])
    assert v == len(noted[0])
    assert np.isnan(scores).any()
    assert np.nanstd(scores) > 0.05


def test_every_vote_is_an_item_of_its_own(head):
    """Votes in another order than their items, or of other items, would train as well."""
    crowd = make_crowd(num_items=12, unlabelled=3)
    rows = crowd.select([0, 0, 2])
    model = package.MarginsModel.from_classifier(head, num_annotators=4)
    model.said = torch.tensor([2, 0, 1])
    prepared = model.prepare(rows, [])
    assert len(prepared) == 3
    for i, (item, said) in enumerate(zip([0, 0, 2], [2, 0, 1], strict=True)):
        assert prepared[i]["features"] == crowd["features"][item]
        assert prepared[i]["crowd_posterior"].tolist() == np.eye(3)[said].tolist()


@pytest.mark.slow
def test_filter_leaves_out_items_whose_votes_mislead(head, tmp_path):
    """This is the purpose of the method; gold labels take no part in it."""
    crowd = make_crowd(num_items=200, unlabelled=10)
    right = [
        np.mean([r == label for r in row]) if row else np.nan
        for row, label in zip(crowd["annotations"], crowd["label"], strict=True)
    ]
    blind = crowd.remove_columns("label").add_column("row", list(range(len(crowd))))
    before = {name: tensor.clone() for name, tensor in head.state_dict().items()}
    args = arguments(tmp_path)
    scores = waum_scores(blind, head, args, epochs=12)
    assert_same(before, head.state_dict())
    assert np.isnan(scores).tolist() == np.isnan(right).tolist()
    by_right = [scores[np.array(right) == share].mean() for share in (1.0, 0.0)]
    assert by_right[0] > by_right[1] + 0.3
    kept = waum_filter(blind, head, 0.05, args, epochs=12)
    left_out = sorted(set(range(len(crowd))) - set(kept["row"][:]))
    # Where a vote names the second likeliest class after every epoch, the score is zero, and items are tied.
    assert 5 <= len(left_out) <= 10
    assert max(scores[left_out]) < np.nanmin(np.delete(scores, left_out))
    assert max(right[i] for i in left_out) < 1  # nor NaN: items without votes stay
    assert not (tmp_path / "waum").exists()
    assert len(waum_filter(blind, head, 0.0, args, epochs=1)) == len(blind)


def test_nonsense_is_refused_before_the_training(head, tmp_path):
    """A share given in percent would leave out all items."""
    crowd = make_crowd(num_items=12)
    with pytest.raises(ValueError, match="`alpha` must be a share of the items, .* got 5"):
        waum_filter(crowd, head, 5, arguments(tmp_path))
    weighted = crowd.add_column(
        "annotation_weights", [[0.5] * len(row) for row in crowd["annotations"]]
    )
    with pytest.raises(ValueError, match="left out for WAUM, .*: it learns each vote as an item"):
        waum_scores(weighted, head, arguments(tmp_path))
    with pytest.raises(TypeError, match="must be a datasets.Dataset"):
        waum_scores(crowd.to_iterable_dataset(), head, arguments(tmp_path))
