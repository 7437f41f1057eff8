"""The metric for `evaluate`: it agrees with scikit-learn, the package and naive loops, and refuses nonsense."""

import doctest
import importlib.util
import json
import os
import runpy
import sys

import numpy as np
import pytest
import torch
import yaml
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from hf_maxmig import confusion
from hf_maxmig.metrics import calibration, certainty, chance_of_right, claims_of_right
from hf_maxmig.model.functional import confusion_counts
from tests.processes import finished
from tests.worlds import make_crowd

N, C, M = 40, 5, 3


@pytest.fixture(scope="module")
def folder(root):
    return root / "hf_maxmig" / "crowd_metrics"


@pytest.fixture(scope="module")
def metric(folder):
    import evaluate

    return evaluate.load(str(folder), keep_in_memory=True)


def posterior(seed, sharpness=2.0):
    logits = torch.randn(N, C, generator=torch.Generator().manual_seed(seed)) * sharpness
    return logits.log_softmax(-1).numpy()


@pytest.fixture
def labels():
    """Return gold labels that agree with the first posterior most of the time."""
    rng = np.random.default_rng(5)
    return np.where(rng.random(N) < 0.6, posterior(0).argmax(1), rng.integers(C, size=N))


def test_accuracy_brier_score_and_likelihood_are_those_of_scikit_learn(metric, labels):
    """A Brier score that is halved, or summed over one class only, would look as plausible."""
    given = {"predictions": posterior(0), "aggregator": posterior(1), "forecast": posterior(2)}
    scores = metric.compute(references=labels, **given)
    assert len(scores) == 12
    for name, log_p in given.items():
        prefix = "" if name == "predictions" else f"{name}_"
        assert scores[f"{prefix}accuracy"] == accuracy_score(labels, log_p.argmax(1))
        right = brier_score_loss(labels, np.exp(log_p), labels=range(C), scale_by_half=False)
        assert scores[f"{prefix}brier_score"] == pytest.approx(right, abs=1e-6)
        p = np.exp(log_p.astype(np.float64))
        nll = log_loss(labels, p / p.sum(axis=1, keepdims=True), labels=range(C))
        assert scores[f"{prefix}negative_log_likelihood"] == pytest.approx(nll, abs=1e-6)
        # The package's own, which the tables of the project show.
        found = certainty(log_p, labels)
        assert scores[f"{prefix}negative_log_likelihood"] == pytest.approx(found["nll"])
        assert scores[f"{prefix}brier_score"] == pytest.approx(found["brier"])
        assert scores[f"{prefix}calibration_error"] == pytest.approx(found["ece"])
    assert 0 < scores["aggregator_accuracy"] < scores["accuracy"] < 1


@pytest.mark.parametrize("bins", [1, 7, 15])
def test_calibration_error_is_the_packages_and_that_of_a_loop(metric, labels, bins):
    """Two implementations of one measure in one project must not differ."""
    p = np.exp(posterior(0).astype(np.float64))
    found = metric.compute(predictions=p, references=labels, bins=bins)["calibration_error"]
    confidence, correct = p.max(1), p.argmax(1) == labels
    assert found == pytest.approx(calibration(confidence, correct, bins).error, abs=1e-12)
    error = 0.0
    for b in range(bins):
        held = [i for i in range(N) if b / bins < confidence[i] <= (b + 1) / bins]
        if held:
            apart = np.mean([correct[i] for i in held]) - np.mean([confidence[i] for i in held])
            error += len(held) / N * abs(apart)
    assert found == pytest.approx(error, abs=1e-12)


def test_measures_of_three_items_by_hand(metric):
    """One item is right with certainty, one wrong with certainty, one undecided between two classes."""
    p = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]]
    scores = metric.compute(predictions=p, references=[0, 2, 0], bins=10)
    assert scores["accuracy"] == pytest.approx(2 / 3)
    assert scores["brier_score"] == pytest.approx((0 + 2 + 0.5) / 3)
    # Bin (0.9, 1]: two items, half right; bin (0.4, 0.5]: one item, right with probability 0.5.
    assert scores["calibration_error"] == pytest.approx((2 * 0.5 + 1 * 0.5) / 3)


def test_log_probabilities_and_probabilities_are_told_apart(metric, labels):
    """Probabilities taken for logs, or the reverse, would still have a most likely class."""
    log_p = posterior(0, sharpness=30.0).astype(np.float64)
    assert log_p.min() < -60
    as_logs = metric.compute(predictions=log_p, references=labels)
    assert as_logs == pytest.approx(metric.compute(predictions=np.exp(log_p), references=labels))
    sure = np.eye(C)[labels]
    with np.errstate(divide="ignore"):
        for given in (sure, np.log(sure)):  # minus infinity is a valid log
            scores = metric.compute(predictions=given, references=labels)
            assert scores == {
                "accuracy": 1.0, "negative_log_likelihood": 0.0, "calibration_error": 0.0, "brier_score": 0.0
            }  # fmt: skip


def test_likelihood_is_of_the_logs_that_were_given(metric):
    """As a probability, e^-800 is zero, so a single wrong item would make the mean infinite."""
    far = metric.compute(predictions=[[0.0, -800.0], [0.0, -800.0]], references=[1, 0])
    assert far["negative_log_likelihood"] == pytest.approx(400)
    never = metric.compute(predictions=[[1.0, 0.0], [1.0, 0.0]], references=[1, 0])
    assert never["negative_log_likelihood"] == np.inf


def test_items_without_gold_label_or_votes_are_left_out(metric, labels):
    """Counted as wrong, they would lower every figure. Without votes, g is the prior and zeta is h."""
    gold, annotated = np.arange(N) % 3 > 0, np.arange(N) % 4 > 0
    hidden = np.where(gold, labels, np.where(np.arange(N) % 2, -1, -100))
    given = {"predictions": posterior(0), "aggregator": posterior(1)}
    scores = metric.compute(references=hidden, annotated=annotated, **given)
    h = metric.compute(predictions=posterior(0)[gold], references=labels[gold])
    both = gold & annotated
    g = metric.compute(predictions=posterior(1)[both], references=labels[both])
    assert scores == pytest.approx({**h, **{f"aggregator_{k}": v for k, v in g.items()}})


def test_batches_are_added_up(metric, labels):
    """Long evaluations pass their items in parts."""
    for part in (slice(0, 17), slice(17, N)):
        metric.add_batch(predictions=posterior(0)[part], references=labels[part])
    together = metric.compute()
    assert together == pytest.approx(metric.compute(predictions=posterior(0), references=labels))


def test_confusion_error_is_that_of_a_loop(metric):
    """Rows with many labels weigh more, and rows without labels are not zeros."""
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 9, size=(M, C, C)) * (rng.random((M, C, 1)) < 0.8)
    found = rng.dirichlet(np.ones(C), size=(M, C))
    assert (counts.sum(-1) == 0).any()
    distance, number = 0.0, 0
    for m in range(M):
        for c in range(C):
            n = sum(counts[m, c])
            for r in range(C):
                distance += n * abs(found[m, c, r] - (counts[m, c, r] / n if n else 0)) / 2
            number += n
    p = {"predictions": np.eye(C)[:1], "references": [0]}
    scores = metric.compute(**p, confusion=found, true_confusion=counts)
    assert scores["confusion_error"] == pytest.approx(distance / number)
    true = np.array([[[0.5, 0.5], [0, 1]]])
    same = metric.compute(**p, confusion=true, true_confusion=true * 7)
    assert same["confusion_error"] == 0
    swapped = metric.compute(**p, confusion=[np.eye(C)[::-1]], true_confusion=[np.eye(C)])
    assert swapped["confusion_error"] == pytest.approx((C - 1) / C)


def test_confusion_error_is_the_benchmarks(metric, load):
    """The project's tables and the metric must mean the same number."""
    benchmark = load("benchmark")
    crowd = make_crowd()
    pairs = zip(crowd["annotators"], crowd["annotations"], strict=True)
    who, said = (
        torch.tensor([row + [-1] * (4 - len(row)) for row in rows])
        for rows in zip(*pairs, strict=True)
    )
    gold = torch.tensor(crowd["label"])
    p = torch.randn(len(gold), 3, generator=torch.Generator().manual_seed(0)).softmax(-1)
    found = confusion(p, who, said, num_annotators=4)
    counts = confusion_counts(torch.eye(3)[gold], who, said, num_annotators=4)
    scores = metric.compute(
        predictions=p.double(), references=gold, confusion=found, true_confusion=counts
    )
    right = benchmark.confusion_distance(p, gold, who, said, num_annotators=4)
    assert scores["confusion_error"] == pytest.approx(right, abs=1e-6)


@pytest.fixture
def voted(labels):
    """Return votes of one to three annotators per item, and matrices that roughly match them."""
    rng = np.random.default_rng(8)
    skill = np.array([0.9, 0.5, 0.1])[:, None, None]
    matrices = (1 - skill) * rng.dirichlet(np.ones(C), size=(M, C)) + skill * np.eye(C)
    who = [rng.permutation(M)[: 1 + i % M].tolist() for i in range(N)]
    said = [
        [int(rng.choice(C, p=matrices[m, labels[i]])) for m in row] for i, row in enumerate(who)
    ]
    return {"confusion": matrices, "annotators": who, "annotations": said}


@pytest.mark.parametrize("with_forecast", [False, True])
def test_annotators_are_measured_as_the_package_does(metric, labels, voted, with_forecast):
    """The project's tables and the metric must mean the same number; items without a gold label have none."""
    hidden = np.where(np.arange(N) % 4 > 0, labels, -1)
    given = {"predictions": posterior(0)}
    if with_forecast:
        given["forecast"] = posterior(2)
    believed = np.exp(given["forecast" if with_forecast else "predictions"].astype(np.float64))
    claimed, right = [], []
    for i, row in enumerate(voted["annotators"]):
        for m, said in zip(row, voted["annotations"][i], strict=True):
            if hidden[i] >= 0:
                chance = chance_of_right(believed[i : i + 1], voted["confusion"], np.array([[m]]))
                claimed.append(chance[0, 0])
                right.append(said == labels[i])
    found = claims_of_right(np.array(claimed), np.array(right))
    assert found["auroc"] > 0.5
    scores = metric.compute(references=hidden, **given, **voted)
    assert {n: v for n, v in scores.items() if n.startswith("annotator_")} == pytest.approx(
        {
            "annotator_accuracy": found["accuracy"],
            "annotator_auroc": found["auroc"],
            "annotator_brier_score": found["brier"],
            "annotator_calibration_error": found["ece"],
        }
    )
    padded = {
        name: [[*row, *[-1] * (M - len(row))] for row in voted[name]]
        for name in ("annotators", "annotations")
    }
    assert metric.compute(references=hidden, **given, **{**voted, **padded}) == scores


def test_annotators_who_are_all_right_have_no_ranking(metric):
    """scikit-learn returns NaN, which is not valid JSON."""
    scores = metric.compute(
        predictions=[[0.75, 0.25]], references=[0], confusion=[np.eye(2)], annotators=[[0]],
        annotations=[[0]],
    )  # fmt: skip
    assert "annotator_auroc" not in scores
    assert scores["annotator_brier_score"] == 0


HALF = [[0.5, 0.5], [0.5, 0.5]]
VOTED = {"confusion": [HALF], "annotators": [[0], [0]], "annotations": [[0], [1]]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"predictions": [[2.0, 1.0], [0.5, 0.5]]}, "must sum to one, got a sum of 3 at item 0"),
        ({"predictions": [[-1.0, -1.0], [-0.7, -0.7]]}, "log-probabilities: .* 0.7358 at item 0"),
        ({"predictions": [[0.5, float("nan")], [0.5, 0.5]]}, "got a sum of nan at item 0"),
        ({"predictions": [[1.0], [1.0]]}, r"C of at least 2, got \(2, 1\)"),
        ({"predictions": [[0.5, 0.5], [1.0]]}, "got rows of different lengths"),
        ({"references": [0, 2]}, "must lie in 0..1, or be -1 or -100 .*, got 2 at item 1"),
        ({"references": [-1, -100]}, "must hold a gold label, got none at 2 items"),
        ({"forecast": HALF[:1]}, r"`forecast` must have the shape .*\(2, 2\), got \(1, 2\)"),
        ({"aggregator": [[3.0, 0.0]] * 2}, "`aggregator` must hold .* got a sum of 3 at item 0"),
        ({"annotated": [0, 1]}, r"`annotated` must be \(N,\) = \(2,\) booleans, got \(2,\) of type int"),
        ({"forecast": HALF, "annotated": [False, False]}, "on an annotated item .*, got none"),
        ({"bins": 0}, "`bins` must be a whole number of at least 1, got 0"),
        ({"confusion": [HALF]}, "must be given together, got no `true_confusion`"),
        ({"annotators": [[0], [0]]}, "must be given together, got no `annotations`"),
        ({"annotators": [[0], [0]], "annotations": [[0], [0]]}, "must be given together, got no `confusion`"),
        ({**VOTED, "annotations": [[0], [0, 1]]}, "must be N = 2 lists of equal lengths, got 2 and 2 lists, with 2 and 3"),
        ({**VOTED, "annotators": [[0], [1]]}, "`annotators` must lie in 0..0 or be -1 for padding, got 1 at item 1"),
        ({**VOTED, "annotations": [[2], [1]]}, "`annotations` must lie in 0..1 .*, got 2 at item 0"),
        ({**VOTED, "annotations": [[0.5], [1]]}, "`annotations` must hold integers"),
        ({**VOTED, "annotators": 3}, "must hold a list for each item"),
        ({**VOTED, "annotators": [[-1], [-1]]}, "a vote on an item with a gold label, got none"),
        ({**VOTED, "confusion": HALF}, r"must have shape \(M, C, C\) with C = 2, got \(2, 2\)"),
        ({**VOTED, "confusion": [[[0.5, 0.5], [1, 1]]]}, r"got \[1.0, 1.0\] for annotator 0, true class 1"),
        ({"confusion": [HALF], "true_confusion": HALF}, r"got \(1, 2, 2\) and \(2, 2\)"),
        ({"confusion": [HALF], "true_confusion": [[[0, 0]] * 2]}, "at least one vote, got zeros"),
        ({"confusion": [HALF], "true_confusion": [[[1, -1]] * 2]}, "of at least 0, got -1"),
        ({"confusion": [[[0.5, 0.5], [1, 1]]], "true_confusion": [HALF]}, "got 2 for annotator 0, true class 1"),
    ],
)  # fmt: skip
def test_bad_inputs_say_what_must_hold(metric, changes, message):
    """A measure of logits, or of another data set's labels, would look like a valid number."""
    with pytest.raises(ValueError, match=message):
        metric.compute(**{"predictions": HALF, "references": [0, 1], **changes})


def test_gold_labels_in_another_order_are_matched_by_name(metric, labels):
    """Compared by number, a perfect classifier would be right only on the classes that kept their places."""
    names, order = [f"class {c}" for c in range(C)], [*range(1, C), 0]
    here = [names[c] for c in order]
    given = {"predictions": posterior(0)[:, order], "references": labels}
    right = metric.compute(predictions=posterior(0), references=labels)
    assert metric.compute(**given)["accuracy"] != right["accuracy"]
    assert metric.compute(**given, classes=here, reference_classes=names) == pytest.approx(right)
    more = [*names, "one more"]
    assert metric.compute(**given, classes=here, reference_classes=more) == pytest.approx(right)
    for classes, own, message in (
        (here, None, "no `reference_classes`"),
        (names[1:], names, "got class 0"),
        ([*names[1:], *names[1:]], names, "unique names"),
        (more, names, f"must name the C = {C} columns"),
    ):
        with pytest.raises(ValueError, match=message):
            metric.compute(**given, classes=classes, reference_classes=own)


def test_error_leaves_no_items_behind(metric, labels):
    """Items of a call that failed must not be counted in the next one."""
    right = metric.compute(predictions=posterior(0), references=labels)
    with pytest.raises(ValueError, match="must hold a gold label"):
        metric.compute(predictions=posterior(1)[:7], references=[-1] * 7)
    assert metric.compute(predictions=posterior(0), references=labels) == right


def test_readme_is_a_spaces_card_and_its_examples_run(folder, root, monkeypatch):
    """Users copy these lines first, and the Hub reads the block above them."""
    monkeypatch.chdir(root)
    text = (folder / "README.md").read_text(encoding="utf-8")
    card = yaml.safe_load(text.split("---\n")[1])
    assert card["sdk"] == "gradio"
    assert (folder / card["app_file"]).is_file()
    assert {"evaluate", "metric"} <= set(card["tags"])
    runs = doctest.DocTestParser().get_doctest(
        text.replace("```", ""), {}, "README.md", str(folder / "README.md"), 0
    )
    assert len(runs.examples) > 5
    result = doctest.DocTestRunner().run(runs)
    assert result.failed == 0


def test_page_of_the_space_computes_its_example(folder):
    """An example with a renamed argument would fail only once the Space is up."""
    page = runpy.run_path(str(folder / "app.py"))
    scores = page["measure"](json.dumps(page["EXAMPLE"]))
    assert scores["forecast_accuracy"] == 1.0


@pytest.mark.slow
def test_page_of_the_space_is_built(folder):
    """Gradio's arguments change with each version."""
    if importlib.util.find_spec("gradio") is None:
        pytest.skip("gradio is not installed: only the Space needs it")
    # Gradio leaves an event loop open, so this runs in a separate process.
    script = "import runpy; assert runpy.run_path('app.py')['page']() is not None"
    finished([sys.executable, "-c", script], cwd=folder)


@pytest.mark.slow
def test_metric_needs_neither_network_nor_package(folder, tmp_path):
    """A Space installs what `requirements.txt` lists, and this package is not listed."""
    script = (
        "import sys\n"
        "sys.modules['hf_maxmig'] = sys.modules['scipy'] = sys.modules['sklearn'] = None\n"
        "import evaluate\n"
        f"metric = evaluate.load({str(folder)!r})\n"
        "print(metric.compute(predictions=[[0.75, 0.25]], references=[1]))\n"
    )
    env = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "home"),
    }
    output, _ = finished([sys.executable, "-c", script], cwd=tmp_path, env=env)
    for part in ("'accuracy': 0.0", "'calibration_error': 0.75", "'brier_score': 1.125"):
        assert part in output
