"""The claims of the benchmark: each is judged by its numbers, and says what may be chance."""

import pytest

from tests.recipes.benchmarks.cells import cell, claimed, real, small


@pytest.fixture
def claims(load):
    """Import the module from its folder."""
    return load("benchmark_claims")


def test_summary_judges_each_claim_by_its_numbers(claims):
    """A claim that is repeated although the numbers contradict it is worse than none."""
    majority, aggnet, none, best = claims.summary(claimed(0.9)).splitlines()
    assert majority == (
        "- Digits: Majority vote (d) falls under naive majority (5 points or more below 4.1): "
        "4.2(H) holds, 10.0 against 70.0 in 4.1(H); 4.2(L) holds, 10.0 against 70.0 in 4.1(L)."
    )
    assert "4.3(H) holds, 60.0 against 90.0 in 4.1(H);" in aggnet
    assert "4.3(L) does not hold, 86.0 against 90.0 in 4.1(L)." in aggnet
    assert none.endswith("in H): holds, 90.0 in 4.1(H) against 97.0.")
    assert "4.1(H) holds, 90.0 against 90.0 (AggNet);" in best
    *_, none, best = claims.summary(claimed(0.8)).splitlines()
    assert none.endswith("does not hold, 80.0 in 4.1(H) against 97.0.")
    assert "4.1(H) does not hold, 80.0 against 90.0 (AggNet);" in best
    assert "4.3(H) holds, 80.0 against 70.0 (Majority vote);" in best


def test_summary_judges_the_forecasters_too(claims):
    """A method may fail there alone: where labels carry little information, classifiers look alike."""
    cells = claimed(0.9)
    for one in cells:
        falls = (one["method"], one["case"]) == ("aggnet", "correlated")
        forecast = {"max_mig": 0.92, "aggnet": 0.5 if falls else 0.95}.get(one["method"])
        if forecast is not None:
            one["last"]["forecast_accuracy"] = forecast
    *others, aggnet, best = claims.summary(cells).splitlines()
    assert others == claims.summary(claimed(0.9)).splitlines()
    assert aggnet == (
        "- Digits: AggNet (dc) falls under correlated mistakes (5 points or more below 4.1): "
        "4.3(H) holds, 50.0 against 95.0 in 4.1(H); 4.3(L) holds, 50.0 against 95.0 in 4.1(L)."
    )
    assert best.startswith("- Digits: Max-MIG (dc) is the best of the paper's methods, or within")
    assert "4.2(H) does not hold, 92.0 against 95.0 (AggNet);" in best
    assert "4.3(H) holds, 92.0 against 50.0 (AggNet);" in best


def test_summary_does_not_judge_what_was_not_measured(claims):
    """Two of three cases say nothing about the third, and a drop needs both ends."""
    majority, aggnet, none, best = claims.summary(small()[:3]).splitlines()
    assert majority.endswith("4.2(H) not measured; 4.2(L) not measured.")
    assert aggnet.endswith("4.3(H) not measured; 4.3(L) not measured.")
    assert none.endswith("not judged, 4.2(H), 4.3(H), true labels not measured.")
    assert best.endswith("not measured.")


def test_summary_of_a_real_crowd_has_the_one_claim(claims):
    """It has no cases between which to drop."""
    (line,) = claims.summary(real()).splitlines()
    assert line.startswith("- LabelMe: Max-MIG (d) is the best")
    assert line.endswith("holds, 89.6 against 81.0 (Doctor Net).")


def row(method, *accuracies, dataset="labelme", **measures):
    return [
        cell(method, dataset=dataset, seed=i, accuracy=a, **{name: m[i] for name, m in measures.items()})
        for i, a in enumerate(accuracies)
    ]  # fmt: skip


def test_claims_say_what_is_within_a_standard_error(claims):
    """A lead that another seed might turn round is no lead."""
    near = [*row("max_mig", 0.90, 0.92), *row("aggnet", 0.92, 0.90)]
    far = [*row("max_mig", 0.90, 0.92), *row("aggnet", 0.89, 0.91)]
    for judge in (claims.summary, claims.beside_all):
        assert ", within a standard error." in judge(near)
        assert "standard error" not in judge(far)
    case = {"case": "independent", "expertise": "high"}, {"case": "correlated", "expertise": "high"}
    falls = [
        {**one, **crowd}
        for crowd, accuracies in zip(case, ((0.9, 0.7), (0.6, 0.85)), strict=True)
        for one in row("aggnet", *accuracies, dataset="digits")
    ]
    (text,) = [line for line in claims.summary(falls).splitlines() if "AggNet (d) falls" in line]
    assert (
        "4.3(H) holds, 72.5 ± 17.7 against 80.0 ± 14.1 in 4.1(H), within a standard error;" in text
    )


def test_max_mig_is_judged_beside_all_methods_but_its_own_starts(claims):
    """A rival outside the paper's five may be the best one; a second start of ours is no rival."""
    cells = [
        *row("max_mig", 0.90, 0.90, nll=(0.5, 0.5), ece=(0.1, 0.1)),
        *row("max_mig_cross_fit", 0.95, 0.95, nll=(0.3, 0.3), ece=(0.3, 0.3)),
        *row("conal", 0.91, 0.91, nll=(0.4, 0.4), ece=(0.2, 0.2)),
        *row("aggnet", 0.89, 0.89, nll=(0.45, 0.45)),
        *row("madl", 0.85, 0.85, ece=(0.25, 0.25)),
        *row("true_labels", 0.99, 0.99, nll=(0.1, 0.1), ece=(0.0, 0.0)),
    ]
    assert claims.beside_all(cells).splitlines() == [
        "- Real crowds: Max-MIG (d) is the best of all methods, or within 0.5 points of it: "
        "LabelMe: does not hold, 90.0 ± 0.0 against 91.0 ± 0.0 (CoNAL).",
        "- Real crowds: Max-MIG, cross-fitted (d) is the best of all methods, or within 0.5 points of it: "
        "LabelMe: holds, 95.0 ± 0.0 against 91.0 ± 0.0 (CoNAL).",
        "- Real crowds: Max-MIG has the lowest or second lowest NLL (d): "
        "LabelMe: does not hold, 0.500 ± 0.000 against 0.400 ± 0.000 (CoNAL).",
        "- Real crowds: Max-MIG, cross-fitted has the lowest or second lowest NLL (d): "
        "LabelMe: holds, 0.300 ± 0.000 against 0.400 ± 0.000 (CoNAL).",
        "- Real crowds: Max-MIG has the lowest or second lowest calibration error (d): "
        "LabelMe: holds, 0.100 ± 0.000 against 0.200 ± 0.000 (CoNAL).",
        "- Real crowds: Max-MIG, cross-fitted has the lowest or second lowest calibration error (d): "
        "LabelMe: does not hold, 0.300 ± 0.000 against 0.200 ± 0.000 (CoNAL).",
    ]
    assert claims.beside_all(row("max_mig", 0.9)) == ""


def test_claims_beside_all_name_crowds_beyond_the_papers(claims):
    """The sparse crowds and the hard items are worlds too."""
    cells = [
        cell(method, "sparse_one", "high", accuracy=accuracy)
        for method, accuracy in (("max_mig", 0.9), ("geo_w", 0.7))
    ]
    (line,) = claims.beside_all(cells).splitlines()
    assert line.startswith("- Digits, more crowds: Max-MIG (d)")
    assert line.endswith("sparse one (H) holds, 90.0 against 70.0 (GeoCrowdNet-W).")
