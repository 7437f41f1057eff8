"""Cells as `benchmark.py` writes them, shared by the tests of numbers, tables and figure."""


def cell(method, case=None, expertise=None, *, seed=0, dataset="digits", items="test", **last):
    """Return a cell whose three picks differ: the best on test is a point above the last epoch."""
    best = {name: value + 0.01 for name, value in last.items()}
    free = None if "forecast_accuracy" not in last else {n: v - 0.01 for n, v in last.items()}
    return {
        "method": method, "dataset": dataset, "case": case, "expertise": expertise, "seed": seed,
        "last": last, "label_free": free, "best_on_test": best, "forecast_items": items,
    }  # fmt: skip


def small():
    """Return three methods on digits: unequal numbers of seeds, missing cases, and a method without a forecaster."""
    high = ("independent", "high")
    return [
        cell("max_mig", *high, seed=0, accuracy=0.90, forecast_accuracy=0.95, aggregator_accuracy=0.8),
        cell("max_mig", *high, seed=1, accuracy=0.92, forecast_accuracy=0.97, aggregator_accuracy=0.8),
        cell("max_mig", "correlated", "low", accuracy=0.7, forecast_accuracy=0.75),
        cell("majority_vote", *high, seed=0, accuracy=0.91),
        cell("majority_vote", *high, seed=1, accuracy=0.91),
        cell("majority_vote", "naive_majority", "high", seed=0, accuracy=0.1),
        cell("majority_vote", "naive_majority", "high", seed=1, accuracy=0.1),
        cell("crowd_layer_vote_share", *high, seed=0, accuracy=0.5),
        cell("crowd_layer_vote_share", *high, seed=1, accuracy=0.6),
        cell("true_labels", seed=0, accuracy=0.97),
        cell("true_labels", seed=1, accuracy=0.98),
    ]  # fmt: skip


def real():
    """Return a real crowd, whose test items have no votes; one seed each."""
    shared = {"dataset": "labelme", "items": "train"}
    return [
        cell("max_mig", accuracy=0.896, forecast_accuracy=0.887, aggregator_accuracy=0.86, **shared),
        cell("doctor_net", accuracy=0.81, **shared),
        cell("true_labels", accuracy=0.936, **shared),
    ]  # fmt: skip


def claimed(max_mig, ceiling=0.97):
    """Return cells in which majority vote and AggNet fail as the paper says, except for AggNet in (L)."""
    falls = {
        ("majority_vote", "naive_majority", "high"): 0.1,
        ("majority_vote", "naive_majority", "low"): 0.1,
        ("aggnet", "correlated", "high"): 0.6,
        ("aggnet", "correlated", "low"): 0.86,
    }
    usual = {"majority_vote": 0.7, "aggnet": 0.9, "max_mig": max_mig}
    return [
        *(
            cell(method, case, level, accuracy=falls.get((method, case, level), accuracy))
            for method, accuracy in usual.items()
            for case in ("independent", "naive_majority", "correlated")
            for level in ("high", "low")
        ),
        cell("true_labels", accuracy=ceiling),
    ]
