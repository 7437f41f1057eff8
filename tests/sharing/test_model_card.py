"""The model card describes the model, with measured numbers only."""

import re

import pytest
from huggingface_hub import ModelCard

from hf_maxmig import MaxMIGTrainer
from hf_maxmig.model.aggregators import PRIORS
from hf_maxmig.sharing.model_card import model_card
from tests.worlds import ANNOTATORS


def test_card_has_the_results_and_says_that_names_are_inside(
    crowd, make_model, make_args, tmp_path
):
    """Names of annotators may be personal data, and a number that nobody measured is worse than no card."""
    trainer = MaxMIGTrainer(model=make_model(), args=make_args(), train_dataset=crowd)
    trainer.train()
    metrics = trainer.evaluate(crowd)
    trainer.create_model_card(model_name="org/scenes", license="apache-2.0", dataset="org/crowd")
    card = ModelCard.load(tmp_path / "out" / "README.md")
    results = {result.metric_name: result.metric_value for result in card.data.eval_results}
    assert results["accuracy of classifier h"] == pytest.approx(metrics["eval_accuracy"], abs=1e-4)
    assert results["gain of h and g, on the crowd's votes alone"] == pytest.approx(
        metrics["eval_gain"], abs=1e-4
    )
    assert (card.data.license, card.data.datasets, card.data.library_name) == (
        "apache-2.0", "org/crowd", "transformers",
    )  # fmt: skip
    for text in (
        "cat, dog, emu",
        "their names are in `config.json`",
        'from_pretrained("org/scenes")',
        "cao2019maxmig",
    ):
        assert text in card.text
    assert "| learning_rate | 0.01 |" in card.text
    assert f"of at most {metrics['eval_gain_ceiling']:.4f}; 95 %: " in card.text
    assert "90 items, 4 annotators, 3 classes" in card.text
    assert "Krippendorff's alpha" in card.text
    assert "{{" not in card.content


def test_card_sums_up_the_annotators_and_names_none(crowd, make_model, make_args, tmp_path):
    """Judgements of individuals are for the owner of the data, not for everybody who finds the model."""
    pytest.importorskip("matplotlib")
    trainer = MaxMIGTrainer(model=make_model(), args=make_args(), train_dataset=crowd)
    trainer.train()
    judged = trainer.report(crowd)
    trainer.create_model_card()
    text = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "| accuracy, as far as the model can tell | " in text
    for verdict in set(judged.verdict):
        assert f"{judged.verdict.count(verdict)} {verdict}" in text
    for name in ANNOTATORS:
        assert not re.search(rf"\b{name}\b", text), name


@pytest.mark.parametrize("prior", PRIORS)
def test_card_without_results_says_so(prior, make_model):
    """An empty table looks like an error. A learned prior has a gradient, which must not stop the card."""
    card = model_card(make_model(prior=prior), {}, {}, "pair")
    assert "Nothing was measured." in card.text
    assert card.data.eval_results is None
