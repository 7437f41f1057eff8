"""The model card says what is inside, with the numbers that were measured."""

import pytest
from huggingface_hub import ModelCard

from hf_maxmig import MaxMIGTrainer
from hf_maxmig.hub import model_card


def test_card_has_the_results_and_says_that_names_are_inside(
    crowd, make_model, make_args, tmp_path
):
    """Names of annotators may be personal data; a card with a number nobody measured is worse than none."""
    trainer = MaxMIGTrainer(model=make_model(), args=make_args(), train_dataset=crowd)
    trainer.train()
    metrics = trainer.evaluate(crowd)
    trainer.create_model_card(model_name="org/scenes", license="apache-2.0", dataset="org/crowd")
    card = ModelCard.load(tmp_path / "out" / "README.md")
    results = {result.metric_name: result.metric_value for result in card.data.eval_results}
    assert results["accuracy of classifier h"] == pytest.approx(metrics["eval_accuracy"], abs=1e-4)
    assert results["gain of h and g, on the crowd's labels alone"] == pytest.approx(
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
    assert "{{" not in card.content


def test_card_without_results_says_so(make_model):
    """An empty table looks like a mistake of the reader's."""
    card = model_card(make_model(), {}, {}, "pair")
    assert "Nothing was measured." in card.text
    assert card.data.eval_results is None
