"""Tests of `hf_maxmig.data.class_order`, and of every place where two lists of classes meet."""

import logging

import numpy as np
import pytest
import timm
import torch
from datasets import ClassLabel, Dataset, Features, Value
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import ConcatDataset, Subset
from transformers import BertConfig, BertForSequenceClassification, TimmWrapperConfig

from hf_maxmig import (
    HeadClassifier,
    HeadConfig,
    MaxMIGConfig,
    MaxMIGModel,
    MaxMIGTrainer,
    add_annotations,
)
from hf_maxmig.data.class_order import align_gold
from hf_maxmig.data.columns import crowd_names
from hf_maxmig.judging.report import write_report
from hf_maxmig.peers import peer

CLASSES = ["ant", "bee", "cow", "doe"]
FEW = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
N = 12


def gold_set(names, said):
    """Return items whose gold labels are the names `said`, numbered by `names`."""
    features = Features(id=Value("int64"), label=ClassLabel(names=names))
    label = [None if name is None else names.index(name) for name in said]
    return Dataset.from_dict({"id": list(range(len(said))), "label": label}, features=features)


def named(dataset):
    """Return the gold labels of a data set by name."""
    names = dataset.features["label"].names
    return [None if c is None else names[c] for c in dataset["label"][:]]


@FEW
@given(st.permutations(CLASSES), st.permutations(CLASSES), st.data())
def test_gold_labels_keep_their_names_in_any_order(own, classes, data):
    """Matched by number, a permutation of the names would permute the truth."""
    said = data.draw(st.lists(st.sampled_from([*CLASSES, None]), min_size=1, max_size=8))
    dataset = gold_set(own, said)
    aligned = align_gold(dataset, classes)
    assert aligned.features["label"].names == classes
    assert named(aligned) == said
    assert aligned["id"][:] == dataset["id"][:]
    stream = align_gold(dataset.to_iterable_dataset(), classes)
    assert [None if row["label"] is None else classes[row["label"]] for row in stream] == said


@FEW
@given(st.permutations(CLASSES), st.integers(1, 4), st.data())
def test_gold_labels_of_fewer_or_more_names_are_matched_or_named(own, number, data):
    """A subset of names is not another order. An extra name is an error only if an item has it."""
    classes = data.draw(st.permutations(CLASSES))[:number]
    said = data.draw(st.lists(st.sampled_from(CLASSES), min_size=1, max_size=8))
    dataset, unknown = gold_set(own, said), [name for name in said if name not in classes]
    if unknown:
        with pytest.raises(ValueError, match=rf"got '({'|'.join(unknown)})' at item \d+"):
            align_gold(dataset, classes)
    else:
        aligned = align_gold(dataset, classes)
        assert [classes[c] for c in aligned["label"][:]] == said


def test_gold_labels_that_are_right_already_stay_as_they_are():
    """Copying a data set of pictures takes minutes."""
    dataset = gold_set(CLASSES[:3], ["ant", "cow"])
    assert align_gold(dataset, CLASSES) is dataset
    bare = dataset.remove_columns("label")
    assert align_gold(bare, CLASSES) is bare
    rows = [{"label": 1}]
    assert align_gold(rows, CLASSES) is rows


def test_gold_labels_inside_torchs_data_sets_are_matched():
    """A `Subset` hides the names, and `random_split` makes one of every data set."""
    dataset = gold_set(CLASSES[::-1], ["ant", "bee", "cow", "doe"])
    subset = align_gold(Subset(dataset, [3, 0]), CLASSES)
    assert [subset[i]["label"] for i in range(2)] == [3, 0]
    both = align_gold(ConcatDataset([Subset(dataset, [1]), gold_set(CLASSES, ["bee"])]), CLASSES)
    assert [both[i]["label"] for i in range(2)] == [1, 1]
    right = Subset(gold_set(CLASSES, ["ant"]), [0])
    assert align_gold(right, CLASSES) is right


def test_gold_labels_in_text_are_matched_and_in_a_transform_too():
    """Text labels used to be refused only at the end of a training."""
    dataset = Dataset.from_dict({"id": [0, 1, 2], "label": ["cow", None, "ant"]})
    assert named(align_gold(dataset, CLASSES)) == ["cow", None, "ant"]
    with pytest.raises(ValueError, match=r"got 'Cow' at item 0 \(did you mean 'cow'\?\)"):
        align_gold(Dataset.from_dict({"id": [0], "label": ["Cow"]}), CLASSES)
    shown = gold_set(CLASSES[::-1], ["cow"]).with_transform(lambda rows: {"labels": rows["label"]})
    assert align_gold(shown, CLASSES)[0]["labels"] == 2


def test_gold_numbers_are_names_only_where_the_classes_are_numbers(caplog):
    """Ratings from 1 to 3 read as positions would each be one too low, and the highest an error."""
    numbers = Dataset.from_dict({"id": [0, 1], "label": [1, 3]})
    assert named(align_gold(numbers, ["1", "2", "3"])) == ["1", "3"]
    with pytest.raises(ValueError, match=r"got '0' at item 1"):
        align_gold(Dataset.from_dict({"id": [0, 1], "label": [1, 0]}), ["1", "2", "3"])
    flags = Dataset.from_dict({"id": [0, 1], "label": [True, False]})
    assert align_gold(flags, ["true", "false"])["label"][:] == [0, 1]
    logging.getLogger("hf_maxmig").propagate = True
    with caplog.at_level("WARNING"):
        assert align_gold(numbers, ["0", "1", "2", "3"]) is numbers
        assert not caplog.text
        for _ in range(2):
            assert align_gold(numbers, CLASSES) is numbers
    assert len(caplog.records) == 1
    assert "0 is taken for the class 'ant'" in caplog.text


# Every place where two lists meet


def world(seed=0, classes=CLASSES):
    """Return items whose features show their class, and votes of three annotators by name."""
    rng = np.random.default_rng(seed)
    truth = [classes[c] for c in rng.permutation(np.arange(N * 4) % len(classes))]
    x = np.eye(len(CLASSES))[[CLASSES.index(name) for name in truth]] * 4
    votes = {
        "item": [i for i in range(len(truth)) for _ in "pqr"],
        "annotator": list("pqr") * len(truth),
        "annotation": [name for name in truth for _ in "pqr"],
    }
    items = {"id": list(range(len(truth))), "features": x.astype("float32").tolist()}
    return items, votes, truth


def knowing_classifier(order):
    """Return a head whose output r is the score of class `order[r]`."""
    head = HeadClassifier(
        HeadConfig(input_size=4, hidden_size=4, id2label=dict(enumerate(order)), dropout=0.0)
    )
    with torch.no_grad():
        head.fc.weight.copy_(torch.eye(4))
        head.fc.bias.zero_()
        head.output.weight.copy_(torch.eye(4)[[CLASSES.index(name) for name in order]])
        head.output.bias.zero_()
    return head


@settings(FEW, max_examples=6)
@given(st.permutations(CLASSES), st.permutations(CLASSES), st.permutations(CLASSES))
def test_everything_that_meets_in_a_trainer_is_matched_by_name(make_args, own, said, gold):
    """Classifier, votes and gold labels come in three orders, of which matching by number gets few right."""
    items, votes, truth = world()
    dataset = add_annotations(Dataset.from_dict(items), votes, "id", classes=said)
    numbered = dataset.add_column(
        "label", [gold.index(name) for name in truth], feature=ClassLabel(names=gold)
    )
    head = knowing_classifier(own)
    trainer = MaxMIGTrainer(
        model=head, args=make_args(), train_dataset=numbered, eval_dataset={"a": numbered}
    )
    names = trainer.crowd_model.config.class_names
    assert [*head.config.id2label.values()] == names == said
    output = trainer.predict(numbered)
    assert [names[c] for c in output.predictions[0].argmax(axis=1)] == truth
    assert [names[c] for c in output.label_ids] == truth
    assert output.metrics["test_accuracy"] == 1
    assert trainer.evaluate()["eval_a_accuracy"] == 1
    assert trainer.evaluate(numbered.to_iterable_dataset())["eval_accuracy"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["max_mig", "true_labels", "aggnet"])
def test_training_on_reordered_gold_labels_ends_right_by_name(name, make_args, tmp_path):
    """`true_labels` learns from gold labels, which matched by number would be permuted."""
    items, votes, truth = world()
    gold = ["doe", "ant", "cow", "bee"]
    dataset = add_annotations(Dataset.from_dict(items), votes, "id")
    dataset = dataset.add_column(
        "label", [gold.index(n) for n in truth], feature=ClassLabel(names=gold)
    )
    torch.manual_seed(0)
    head = HeadClassifier(HeadConfig(input_size=4, num_labels=4))
    annotators, classes = crowd_names(dataset)
    model = head
    if name != "max_mig":
        model = peer(name, head, annotators=annotators, id2label=dict(enumerate(classes)))
    trainer = MaxMIGTrainer(model=model, args=make_args(num_train_epochs=20), train_dataset=dataset)
    trainer.train()
    found = trainer.predict(dataset).predictions[0].argmax(axis=1)
    assert (
        np.mean(
            [
                trainer.crowd_model.config.class_names[c] == t
                for c, t in zip(found, truth, strict=True)
            ]
        )
        == 1
    )
    assert trainer.evaluate(dataset)["eval_accuracy"] == 1
    table = trainer.relabel(dataset)
    assert table["forecast"][:] == [truth[i] for i in table["id"][:]]
    if name == "max_mig":
        report = trainer.report(dataset)
        aligned = align_gold(table, classes)
        assert aligned.features["label"].names != table.features["label"].names
        pages = [
            write_report(
                tmp_path / f"{place}.html", report, title="", summary="", relabelled=variant
            ).read_text("utf-8")
            for place, variant in enumerate((table, aligned))
        ]
        assert pages[0] == pages[1]


def test_gold_labels_of_unknown_classes_are_refused_before_training(make_args):
    """A gold class without votes used to be counted as another one."""
    items, votes, truth = world()
    dataset = add_annotations(Dataset.from_dict(items), votes, "id")
    gold = ["yak", *CLASSES]
    dataset = dataset.add_column(
        "label", [0, *(gold.index(n) for n in truth[1:])], feature=ClassLabel(names=gold)
    )
    head = HeadClassifier(HeadConfig(input_size=4, num_labels=4))
    with pytest.raises(
        ValueError, match=r"got 'yak' at item 0.*give `add_annotations` all `classes`"
    ):
        MaxMIGTrainer(model=head, args=make_args(), train_dataset=dataset)
    known = dataset.select(range(1, len(dataset)))
    trainer = MaxMIGTrainer(model=head, args=make_args(), train_dataset=known)
    with pytest.raises(ValueError, match="got 'yak' at item 0"):
        trainer.evaluate(dataset)


def test_votes_on_fewer_or_more_classes_say_which(make_args, make_model, crowd):
    """A held-out file in which one class does not occur numbers the others differently."""
    trainer = MaxMIGTrainer(model=make_model(), args=make_args(), train_dataset=crowd)
    for names, message in (
        (["cat", "emu"], "'dog' is missing"),
        (["cat", "dog", "emu", "fox"], "'fox' is not among them"),
        (["Cat", "dog", "emu"], "did you mean 'cat'"),
    ):
        other = Dataset.from_dict(
            {"annotators": [[0]], "annotations": [[0]], "features": [crowd[0]["features"]]},
            features=Features(
                annotators=crowd.features["annotators"],
                annotations=type(crowd.features["annotations"])(ClassLabel(names=names)),
                features=crowd.features["features"],
            ),
        )
        with pytest.raises(ValueError, match=message):
            trainer.predict(other)
        with pytest.raises(ValueError, match=message):
            trainer.predict(Subset(other, [0]))


def test_classifier_of_other_classes_is_refused_by_name(make_args):
    """Its outputs used to be named after the votes' classes, whatever they stood for."""
    items, votes, _ = world()
    dataset = add_annotations(Dataset.from_dict(items), votes, "id")
    for own, message in (
        (["ant", "bee", "cow", "DOE"], "'doe' is not among them"),
        (["a", "b", "c", "d"], "'a', 'b', 'c', 'd' are missing"),
        ([*CLASSES, "elk"], "one output per class = 4, got 5 \\('elk' is not among them"),
        (CLASSES[:3], "one output per class = 4, got 3 \\('doe' is missing"),
    ):
        head = HeadClassifier(HeadConfig(input_size=4, id2label=dict(enumerate(own))))
        with pytest.raises(ValueError, match=message):
            MaxMIGTrainer(model=head, args=make_args(), train_dataset=dataset)
    with pytest.raises(ValueError, match="another order"):
        MaxMIGModel.from_classifier(
            knowing_classifier(CLASSES[::-1]), num_annotators=3, id2label=dict(enumerate(CLASSES))
        )
    kept = MaxMIGModel.from_classifier(knowing_classifier(CLASSES[::-1]), num_annotators=3)
    assert kept.config.class_names == CLASSES[::-1]


def test_classifier_whose_output_layer_is_hidden_is_refused(make_args):
    """A classifier reordered only in part would silently be wrong."""
    items, votes, _ = world()
    dataset = add_annotations(Dataset.from_dict(items), votes, "id")
    head = knowing_classifier(CLASSES[::-1])
    head.register_forward_hook(
        lambda m, i, output: output.__setitem__("logits", output.logits * torch.arange(1.0, 5))
    )
    before = head.output.weight.clone()
    with pytest.raises(ValueError, match=r"another order.*output layer of HeadClassifier"):
        MaxMIGTrainer(model=head, args=make_args(), train_dataset=dataset)
    torch.testing.assert_close(head.output.weight, before)
    assert [*head.config.id2label.values()] == CLASSES[::-1]


def test_text_classifier_keeps_what_it_knows(make_args):
    """Fine-tuned sentiment models may list POSITIVE before NEGATIVE or after it."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        id2label={0: "positive", 1: "negative"},
    )  # fmt: skip
    model = BertForSequenceClassification(config).eval()
    tokens = torch.arange(12).reshape(6, 2)
    before = model(input_ids=tokens).logits.detach()
    items = Dataset.from_dict({"id": list(range(6)), "input_ids": tokens.tolist()})
    votes = {"item": [0, 1], "annotator": ["p", "q"], "annotation": ["positive", "negative"]}
    trainer = MaxMIGTrainer(
        model=model, args=make_args(), train_dataset=add_annotations(items, votes, "id")
    )
    assert trainer.crowd_model.config.class_names == ["negative", "positive"]
    after = trainer.predict(trainer.train_dataset).predictions[0]
    np.testing.assert_allclose(after, before.log_softmax(-1)[:, [1, 0]].numpy(), atol=1e-5)


def test_timm_model_keeps_what_it_knows(make_args):
    """Models that timm loads from the Hub keep their names in `pretrained_cfg` and have no config."""
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=4, img_size=32).eval()
    names = ["cow", "ant", "doe", "bee"]
    model.pretrained_cfg = {**model.pretrained_cfg, "label_names": names}
    pixels = torch.randn(4, 3, 32, 32)
    before = [names[c] for c in model(pixels).argmax(dim=1)]
    items = Dataset.from_dict({"id": list(range(4)), "pixel_values": pixels.tolist()})
    votes = {"item": list(range(4)), "annotator": list("pqpq"), "annotation": CLASSES}
    dataset = add_annotations(items, votes, "id")
    trainer = MaxMIGTrainer(model=model, args=make_args(), train_dataset=dataset)
    assert trainer.crowd_model.config.class_names == CLASSES
    after = trainer.predict(dataset).predictions[0].argmax(axis=1)
    assert [CLASSES[c] for c in after] == before


def test_config_whose_tables_contradict_each_other_is_refused():
    """One table used to overwrite the other, which swapped names."""
    names = dict(enumerate(CLASSES))
    with pytest.raises(ValueError, match="`label2id` must be the inverse"):
        MaxMIGConfig(id2label=names, label2id={name: 3 - c for c, name in names.items()})
    with pytest.raises(ValueError, match="classifier's classes in its order"):
        MaxMIGConfig(
            classifier_config=HeadConfig(id2label=dict(enumerate(CLASSES[::-1]))), id2label=names
        )


def test_tables_may_list_twelve_classes_in_any_order(tmp_path, make_args):
    """Sorted as text, 10 comes before 2. Read in that order, all but two classes would move."""
    names = [f"class {letter}" for letter in "lkjihgfedcba"]
    table = {c: names[c] for c in sorted(range(12), key=str)}
    assert [*table.values()] != names
    x, rows = torch.randn(12, 4), list(range(12))
    items = Dataset.from_dict({"id": rows, "features": x.tolist()})
    votes = {"item": rows, "annotator": ["p", "q"] * 6, "annotation": names}
    for order in (names, sorted(names)):
        head = HeadClassifier(HeadConfig(input_size=4, id2label=table)).eval()
        expected = [names[c] for c in head(features=x).logits.argmax(dim=1)]
        dataset = add_annotations(items, votes, "id", classes=order)
        trainer = MaxMIGTrainer(model=head, args=make_args(), train_dataset=dataset)
        found = trainer.predict(dataset).predictions[0].argmax(axis=1)
        assert [order[c] for c in found] == expected
    timm = TimmWrapperConfig(architecture="resnet18", num_labels=12)
    MaxMIGConfig(classifier_config=timm, id2label=table).save_pretrained(tmp_path)
    again = MaxMIGConfig.from_pretrained(tmp_path)
    assert again.classifier_config.to_dict()["label_names"] == again.class_names == names


def test_renamed_classes_survive_the_disk(tmp_path, make_model):
    """We advise users to rename classes in `id2label`, so all other tables must follow."""
    model = make_model()
    model.config.id2label = {0: "dog", 1: "cat", 2: "emu"}
    model.save_pretrained(tmp_path)
    again = MaxMIGModel.from_pretrained(tmp_path)
    assert again.config.class_names == ["dog", "cat", "emu"]
    assert again.config.label2id == {"dog": 0, "cat": 1, "emu": 2}
    assert [*again.classifier.config.id2label.values()] == ["dog", "cat", "emu"]


@FEW
@given(st.permutations(CLASSES), st.integers(1, 4))
def test_add_annotations_takes_the_order_of_the_gold_labels(gold, number):
    """One data set with two numberings of the same classes is a trap for everybody."""
    items = gold_set(gold, [gold[0], gold[-1]])
    votes = {"item": [0] * number, "annotator": ["p"] * number, "annotation": sorted(gold[:number])}
    assert crowd_names(add_annotations(items, votes, "id"))[1] == gold
    votes["annotation"] = [*votes["annotation"][:-1], "elk"]
    other = add_annotations(items, votes, "id")
    assert crowd_names(other)[1] == sorted({*votes["annotation"]})
    assert crowd_names(add_annotations(items, votes, "id", classes=["elk", *CLASSES]))[1] == [
        "elk",
        *CLASSES,
    ]


class _Nothing(nn.Module):
    """Not a classifier at all."""


def test_what_is_no_classifier_is_told_as_before(make_args):
    """Reading its names must not hide the original error."""
    items, votes, _ = world()
    with pytest.raises(TypeError, match="of transformers or timm, got _Nothing"):
        MaxMIGTrainer(
            model=_Nothing(),
            args=make_args(),
            train_dataset=add_annotations(Dataset.from_dict(items), votes, "id"),
        )
