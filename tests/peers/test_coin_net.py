"""COINNet compared with plain loops in float64, and how long its outliers of single votes are kept."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hf_maxmig import CrowdTrainer
from hf_maxmig.data.numbered import ROW
from hf_maxmig.peers import CoinNetConfig, CoinNetModel, peer
from hf_maxmig.training.vote_tables import FILE, first_votes, save_votes
from tests.networks import small_head
from tests.weights import assert_same, state
from tests.worlds import ANNOTATORS, make_crowd, random_votes

M, C = 4, 3


def in_loops(model, outliers, logits, who, said):
    """Return the loss of the authors' code, with E[i][k] the outlier of the vote at place k of item i."""
    softmax = lambda s: np.exp(s) / np.exp(s).sum()  # noqa: E731
    scores = model.matrices.table.detach().double().numpy()
    terms, sizes, answers = [], [], []
    for i in range(len(who)):
        h, size, voted = softmax(logits[i]), 0.0, False
        for k, (m, r) in enumerate(zip(who[i].tolist(), said[i].tolist(), strict=True)):
            if m < 0 or r < 0:
                continue
            e = outliers[i][k] - outliers[i][k].mean()
            y = e + sum(h[c] * softmax(scores[m, :, c]) for c in range(C))
            y = np.clip(y, 1e-10, 1 - 1e-10)
            terms.append(-math.log(y[r] / y.sum()))
            size, voted = size + (e**2).sum(), True
        if voted:
            sizes.append((size + 1e-10) ** 0.2)
            answers.append(h)
    least = 1e-6 * len(answers) * np.eye(C)  # keeps it finite
    volume = np.linalg.slogdet(np.array(answers).T @ np.array(answers) + least)[1]
    config = model.config
    return np.mean(terms) - config.lam1 * volume + config.lam2 * np.mean(sizes)


def made(**fields):
    """Return a model that is initialised on its crowd, with random outliers, and the batch of all items."""
    who, said = random_votes(13)
    model = peer("coin_net", small_head(), num_annotators=M, **fields).train()
    torch.manual_seed(0)
    torch.nn.init.normal_(model.matrices.table)
    model.outliers.meet(first_votes([(who, said)]))
    batch = {"features": 2 * torch.randn(13, 5), "annotators": who, "annotations": said}
    return model, batch | {ROW: torch.arange(13)}


def loss_of(model, batch):
    return model.crowd_loss(model(**{n: t for n, t in batch.items() if n != ROW}), batch)[0]


@pytest.mark.parametrize("scale", [0.0, 0.05, 2.0])
def test_loss_is_that_of_the_authors(scale):
    """With the outlier of another vote, or one that is not truncated, the loss would still fall."""
    model, batch = made(lam1=0.02, lam2=0.3)
    torch.nn.init.normal_(model.outliers.rows, std=scale)
    who, said = batch["annotators"], batch["annotations"]
    outliers, number = np.zeros((13, who.shape[1], C)), 0
    for i in range(13):
        for k in range(who.shape[1]):
            if (who[i, k:] >= 0).any() or (said[i, k:] >= 0).any():
                outliers[i, k] = model.outliers.rows[number].detach().double()
                number += 1
    assert number == len(model.outliers.rows) < 13 * who.shape[1]
    logits = model.classifier(features=batch["features"]).logits.detach().double().numpy()
    expected = in_loops(model, outliers, logits, who, said)
    assert loss_of(model, batch).item() == pytest.approx(expected, abs=1e-4)
    order = torch.tensor([4, 9, 2, 11])
    some = {n: t[order] for n, t in batch.items()}
    expected = in_loops(model, outliers[order], logits[order], who[order], said[order])
    assert loss_of(model, some).item() == pytest.approx(expected, abs=1e-4)


def test_only_votes_of_the_batch_move_their_outliers():
    """A row off by one would silently train the neighbour's outlier."""
    model, batch = made()
    torch.nn.init.normal_(model.outliers.rows, std=0.01)
    items = [3, 7]
    loss_of(model, {n: t[items] for n, t in batch.items()}).backward()
    moved = model.outliers.rows.grad.abs().sum(dim=1) > 0
    first = model.outliers.first
    of_items = [
        int(first[i]) + k
        for i in items
        for k in range(int(first[i + 1] - first[i]))
        if batch["annotators"][i, k] >= 0 and batch["annotations"][i, k] >= 0
    ]
    assert 1 < len(of_items) < len(moved)
    assert moved.nonzero().flatten().tolist() == of_items
    torch.testing.assert_close(model.outliers.rows.grad.sum(dim=1), torch.zeros(len(moved)))


def test_at_zero_the_penalty_has_no_gradient_and_the_likelihood_has():
    """The root of a squared length has an infinite slope at zero."""
    model, batch = made(lam2=1.0)
    loss_of(model, batch).backward()
    grad = model.outliers.rows.grad
    assert grad.isfinite().all()
    assert grad.abs().max() > 1e-3
    assert grad.abs().max() < 10


@pytest.fixture(scope="module")
def odd():
    """Draw a crowd with eight items on which all annotators name the same wrong class."""
    crowd = make_crowd(num_items=120)
    rows = [i for i, votes in enumerate(crowd["annotations"]) if len(votes) > 1][:80:10]
    annotations = [list(votes) for votes in crowd["annotations"]]
    for row in rows:
        annotations[row] = [(crowd["label"][row] + 1) % 3] * len(annotations[row])
    features = crowd.features["annotations"]
    rest = crowd.remove_columns("annotations")
    return rest.add_column("annotations", annotations, feature=features), rows


def train(dataset, args, **fields):
    model = peer("coin_net", small_head(), annotators=ANNOTATORS, **fields)
    return CrowdTrainer(model=model, args=args, train_dataset=dataset)


@pytest.mark.slow
def test_items_that_no_matrix_explains_are_found(odd, make_args):
    """This is the purpose of the method; outliers that stay at zero make it GeoCrowdNet-F."""
    dataset, rows = odd
    args = make_args(num_train_epochs=20, aggregator_learning_rate=0.04)
    trainer = train(dataset, args)
    with pytest.raises(ValueError, match="must follow a training of this model, got none"):
        trainer.crowd_model.outliers_of_items()
    trainer.train()
    sizes = trainer.crowd_model.outliers_of_items()
    assert sizes.shape == (120,)
    rest = [i for i, votes in enumerate(dataset["annotations"]) if votes and i not in rows]
    assert len(rows) == 8
    # The share of pairs in which the odd item has the larger outlier.
    assert (sizes[rows][:, None] > sizes[rest][None]).float().mean() > 0.85
    unvoted = [i for i, votes in enumerate(dataset["annotations"]) if not votes]
    assert unvoted
    assert (sizes[unvoted] == 0).all()


@pytest.mark.slow
def test_outliers_are_in_checkpoints_and_in_no_saved_model(crowd, make_args, tmp_path):
    """A resumed training needs them, but a shared model must not hold facts about single votes of people."""
    settings = {"aggregator_learning_rate": 0.02, "num_train_epochs": 4}
    args = make_args(**settings, save_strategy="steps", save_steps=9)
    whole = train(crowd, args)
    whole.train()
    checkpoint = tmp_path / "out" / "checkpoint-9"
    assert (checkpoint / FILE).is_file()
    again = train(crowd, make_args(num_train_epochs=4, aggregator_learning_rate=0.02))
    again.train(resume_from_checkpoint=str(checkpoint))
    assert_same(state(whole), state(again))
    found = [trainer.crowd_model.outliers.found for trainer in (whole, again)]
    torch.testing.assert_close(*found, rtol=0, atol=0)
    assert found[0].abs().max() > 0.01
    save_votes(whole.crowd_model, tmp_path)  # after the training these parameters are removed
    assert torch.equal(load_file(tmp_path / FILE)["outliers"], found[0])
    whole.save_model(str(tmp_path / "shared"))
    assert not list((tmp_path / "shared").rglob(FILE))
    loaded = CoinNetModel.from_pretrained(tmp_path / "shared")
    assert not any("outliers" in name for name in (*state(whole), *state(loaded)))
    assert list(loaded.outliers.parameters()) == []
    with pytest.raises(ValueError, match="got none: a saved model holds no outliers"):
        loaded.outliers_of_items()
    other = train(make_crowd(num_items=91), make_args(num_train_epochs=4))
    with pytest.raises(ValueError, match="must be that of the checkpoint"):
        other.train(resume_from_checkpoint=str(checkpoint))


def test_second_training_begins_anew(crowd, make_args):
    """The first training's optimizer still holds its parameter, so a new one would not be trained."""
    trainer = train(crowd, make_args(num_train_epochs=3, aggregator_learning_rate=0.02))
    found = []
    for _ in range(2):
        trainer.train()
        found.append(trainer.crowd_model.outliers.found)
        assert found[-1].abs().max() > 0.01
    assert not torch.equal(*found)


def test_what_it_cannot_do_is_refused(crowd, make_args):
    """Each case would silently leave the outliers at zero."""
    with pytest.raises(TypeError, match="must have a length for CoinNetModel, got IterableDataset"):
        train(crowd.to_iterable_dataset(), make_args(max_steps=2)).train()
    with pytest.raises(ValueError, match=r"`mixup_alpha` must be 0 for COINNet, got 0\.4"):
        train(crowd, make_args(mixup_alpha=0.4))
    model, batch = made()
    batch.pop(ROW)
    with pytest.raises(ValueError, match="must have `crowd_row`, got features, annotators"):
        loss_of(model, batch)
    nothing = torch.full((2, 1), -1)
    with pytest.raises(ValueError, match="at least one vote, got none"):
        first_votes([(nothing, nothing)])
    for name in ("lam1", "lam2"):
        with pytest.raises(ValueError, match=f"`{name}` must be a finite number of 0 or more"):
            CoinNetConfig(annotators=["ann"], **{name: -0.1})
