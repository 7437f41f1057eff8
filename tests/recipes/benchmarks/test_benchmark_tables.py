"""The benchmark's tables and claims: they show exactly what the cells say."""

import json
import sys

import pytest

from tests.recipes.benchmarks.cells import cell, real, small


@pytest.fixture
def tables(load):
    """Import the module from its folder."""
    return load("benchmark_tables")


def test_title_says_where_ours_is_below_the_papers(tables):
    """The paper's Table 3 for LUNA16 gives (d) 90.88 and 88.90, (dc) 94.56 and 91.16 in 4.1 H and L."""
    at = {"high": "independent", "low": "independent"}

    def title(high, low):
        numbers = {"high": high, "low": low}
        cells = [
            cell("max_mig", at[level], level, dataset="luna16", accuracy=d, forecast_accuracy=dc)
            for level, (d, dc) in numbers.items()
        ]
        return tables.tables(cells, "last")[0].title

    assert "Max-MIG is nowhere more than a point below" in title((0.899, 0.936), (0.90, 0.95))
    text = title((0.898, 0.936), (0.88, 0.90))
    assert (
        "Max-MIG is more than a point below the paper's best test epoch only in (d) of 4.1(H) and in (dc) of 4.1(L)."
        in text
    )
    text = title((0.898, 0.90), (0.86, 0.95))  # more than half
    assert " best test epoch in (d) of 4.1(H), 4.1(L) and in (dc) of 4.1(H)." in text
    unprinted = [
        cell("max_mig", accuracy=0.1, dataset="digits"),
        cell("aggnet", dataset="labelme", accuracy=0.1),
    ]
    assert all("paper" not in table.title for table in tables.tables(unprinted))


def test_title_says_that_some_trainings_were_in_bfloat16_unless_all_or_none_were(tables):
    """Rows of one table are compared, so rows that were trained differently must be marked."""
    command = "python recipes/benchmarks/benchmark.py --dataset digits --methods aggnet"

    def title(*flags):
        cells = [
            {**one, "command": command + more} for one, more in zip(small(), flags, strict=True)
        ]
        return tables.tables(cells)[0].title

    others = len(small()) - 2
    mixed = title(" --bf16 True --use_cpu True", " --bf16", *[" --bf16 False"] * others)
    assert f"Of {others + 2} trainings 2 were in bfloat16, the others in float32" in mixed
    for flag in (" --bf16=True", "", " --bf16=False", " --bf16_full_eval True"):
        assert "bfloat16" not in title(*[flag] * (others + 2))


def test_held_out_votes_stand_beside_the_last_epoch(tables):
    cells = [*small(), cell("max_mig", dataset="labelme", accuracy=0.8, forecast_accuracy=0.9)]
    rows = tables.held_out_votes(cells).splitlines()[4:]
    entries = [[entry.strip() for entry in row.strip("|").split("|")] for row in rows if row]
    assert entries[0][:2] == ["Max-MIG, forecaster (dc)", "4.1(H)"]
    assert entries[2] == ["Digits, last epoch", "96.0 ± 1.4", "", "", "", "", "75.0"]
    assert entries[3] == ["Digits, with held-out votes", "95.0 ± 1.4", "", "", "", "", "74.0"]
    assert len(entries) == 4
    assert tables.held_out_votes([c for c in cells if c["method"] != "max_mig"]) == ""


def test_held_out_votes_say_where_they_cost(tables):
    """A section on the value of held-out votes must not leave a loss to be discovered in its columns."""
    few, much = (
        cell("max_mig", case, "high", accuracy=0.8, forecast_accuracy=0.9)
        for case in ("independent", "correlated")
    )
    few["label_free"]["forecast_accuracy"] = 0.892
    much["label_free"]["forecast_accuracy"] = 0.888
    unpicked = cell("max_mig", "independent", "low", accuracy=0.8, forecast_accuracy=0.9)
    unpicked["label_free"] = None
    assert "They cost nowhere more than a point." in tables.held_out_votes([few, unpicked])
    section = tables.held_out_votes([few, much, unpicked])
    assert "They cost more than a point in 4.3(H) of Digits." in section


def test_markdown_of_a_simulated_crowd(tables):
    """A zero for a cell that never ran, or a mean over other seeds than stated, would be a false claim."""
    assert (
        tables.markdown(small())
        == """\
### Digits

Accuracy in percent of the last epoch, on the test items. Mean ± standard deviation over 2 seeds, elsewhere their number in brackets. Bold: the best of its column. Blank: not measured.

| Classifier (d)           |         4.1(H) |         4.2(H) | 4.3(H) | 4.1(L) | 4.2(L) |       4.3(L) |
| ------------------------ | -------------: | -------------: | -----: | -----: | -----: | -----------: |
| Majority vote            | **91.0 ± 0.0** | **10.0 ± 0.0** |        |        |        |              |
| Crowd Layer, eq. 2 start |     55.0 ± 7.1 |                |        |        |        |              |
| Max-MIG                  | **91.0 ± 1.4** |                |        |        |        | **70.0** (1) |

Trained on the true labels, which no crowd changes: 97.5 ± 0.7.

| Data-crowds forecaster (dc) |         4.1(H) | 4.2(H) | 4.3(H) | 4.1(L) | 4.2(L) |       4.3(L) |
| --------------------------- | -------------: | -----: | -----: | -----: | -----: | -----------: |
| Max-MIG                     | **96.0 ± 1.4** |        |        |        |        | **75.0** (1) |
"""
    )


def test_latex_of_a_simulated_crowd(tables):
    """LaTeX that does not compile, or differs from the Markdown, is noticed the evening before a deadline."""
    assert (
        tables.latex(small())
        == r"""% needs \usepackage{booktabs}
\begin{table}[htp]
\caption{Digits. Accuracy in percent of the last epoch, on the test items. Mean $\pm$ standard deviation over 2 seeds, elsewhere their number in brackets. Bold: the best of its column. Blank: not measured.}
\label{table:digits}
\centering
\begin{tabular}{l c c c c c c}
\toprule
 & 4.1(H) & 4.2(H) & 4.3(H) & 4.1(L) & 4.2(L) & 4.3(L) \\
\midrule
\multicolumn{7}{l}{\emph{Classifier (d)}} \\
Majority vote & $\mathbf{91.0 \pm 0.0}$ & $\mathbf{10.0 \pm 0.0}$ &  &  &  &  \\
Crowd Layer, eq. 2 start & $55.0 \pm 7.1$ &  &  &  &  &  \\
Max-MIG & $\mathbf{91.0 \pm 1.4}$ &  &  &  &  & $\mathbf{70.0}$ (1) \\
True labels & \multicolumn{6}{c}{$97.5 \pm 0.7$} \\
\midrule
\multicolumn{7}{l}{\emph{Data-crowds forecaster (dc)}} \\
Max-MIG & $\mathbf{96.0 \pm 1.4}$ &  &  &  &  & $\mathbf{75.0}$ (1) \\
\bottomrule
\end{tabular}
\end{table}
"""
    )


def test_markdown_of_a_real_crowd_stands_beside_the_paper(tables):
    """With the gold labels' row in bold, or the paper's taken for ours, the table would call the wrong method best."""
    assert (
        tables.markdown(real())
        == """\
### LabelMe

Accuracy in percent of the last epoch, on the test items (forecaster and aggregator: on the training items). One seed. Bold: the best of its column. Blank: not measured. Max-MIG is nowhere more than a point below the paper's best test epoch.

| Method                                | Classifier (d) | Data-crowds forecaster (dc) | Aggregator |
| ------------------------------------- | -------------: | --------------------------: | ---------: |
| paper: Majority vote, best test epoch |   80.41 ± 0.56 |                             |            |
| paper: Crowd Layer, best test epoch   |   83.65 ± 0.50 |                             |            |
| Doctor Net                            |           81.0 |                             |            |
| paper: Doctor Net, best test epoch    |   80.56 ± 0.59 |                             |            |
| paper: AggNet, best test epoch        |   85.20 ± 0.26 |                             |            |
| Max-MIG                               |       **89.6** |                    **88.7** |   **86.0** |
| paper: Max-MIG, best test epoch       |   86.42 ± 0.36 |                             |            |
| True labels                           |           93.6 |                             |            |
"""
    )


def test_latex_of_a_real_crowd(tables):
    """Its only block needs no heading, and the gold labels need no line across the columns."""
    lines = tables.latex(real()).splitlines()
    assert r"\begin{tabular}{l c c c}" in lines
    assert r"Method & Classifier (d) & Data-crowds forecaster (dc) & Aggregator \\" in lines
    assert r"Max-MIG & $\mathbf{89.6}$ & $\mathbf{88.7}$ & $\mathbf{86.0}$ \\" in lines
    assert r"paper: Max-MIG, best test epoch & $86.42 \pm 0.36$ &  &  \\" in lines
    assert r"True labels & $93.6$ &  &  \\" in lines
    assert "multicolumn" not in "".join(lines)


@pytest.mark.parametrize(
    ("dataset", "shown"), [("luna16", True), ("digits", False), ("cifar10_features", False)]
)
def test_rows_of_the_paper_stand_where_it_measured(dataset, shown, tables):
    """The paper's CIFAR-10 beside features would compare two different things."""
    cells = [cell("max_mig", "independent", "high", dataset=dataset, accuracy=0.91)]
    text = tables.markdown(cells)
    assert ("| paper: Max-MIG (d), best test epoch" in text) is shown
    assert ("paper: AggNet (dc), best test epoch" in text) is shown
    if shown:
        (row,) = [line for line in text.splitlines() if "Max-MIG (dc)" in line]
        numbers = [entry.strip() for entry in row.split("|")[2:-1]]
        assert numbers == ["94.56", "93.97", "92.63", "91.16", "91.23", "92.05"]


def test_picks_say_which_they_are(tables):
    """The best epoch on the test items, taken for the last one, is a figure that must not be quoted."""
    texts = {pick: tables.markdown(small(), pick) for pick in tables.PICKS}
    assert len(set(texts.values())) == 3
    assert "**91.0 ± 1.4**" in texts["last"]
    assert "no fair number" in texts["best_on_test"]
    assert "**92.0 ± 1.4**" in texts["best_on_test"]
    assert "without gold labels" in texts["label_free"]
    assert "**90.0 ± 1.4**" in texts["label_free"]
    assert "Majority vote" not in texts["label_free"]
    assert "has no such pick" in texts["label_free"]
    with pytest.raises(ValueError, match="`pick` must be one of last, label_free, best_on_test"):
        tables.markdown(small(), "best")


def test_aggregator_is_a_block_if_asked(tables):
    """The paper's table does not have it, but readers who compare aggregators look for it."""
    heading = "| Aggregator "
    assert heading not in tables.markdown(small())
    text = tables.markdown(small(), aggregator=True)
    assert heading in text
    assert "**80.0 ± 0.0**" in text.partition(heading)[2]
    assert r"\emph{Aggregator}" in tables.latex(small(), aggregator=True)


def certain():
    """Return a real crowd with the measures of newer cells; one cell is older, and one method has no forecaster."""
    shared = {"dataset": "labelme", "items": "train"}
    rows = [
        cell("max_mig", accuracy=0.9, forecast_accuracy=0.9, nll=0.43, forecast_nll=0.3004, **shared),
        cell("max_mig", seed=1, accuracy=0.9, forecast_accuracy=0.9, nll=0.45, forecast_nll=0.3, **shared),
        cell("majority_vote", accuracy=0.9, nll=0.5, brier=0.2, **shared),
        cell("doctor_net", accuracy=0.81, **shared),
        cell("true_labels", accuracy=0.936, nll=0.2, **shared),
    ]  # fmt: skip
    rows[0]["annotators"] = {"accuracy": 0.7, "auroc": 0.8, "brier": 0.1, "matrices": "counted"}
    rows[2]["annotators"] = {"accuracy": 0.6, "auroc": 0.9, "brier": 0.2, "confusion_error": 0.25}
    return rows


def test_what_is_beyond_accuracy_has_tables_of_its_own(tables):
    """Lower is better in all columns but two. What an older cell did not measure stays blank, or has no row."""
    certainty, annotators = tables.further(certain()).strip().split("\n\n### LabelMe: annotators\n")
    assert certainty.startswith("### LabelMe: certainty\n")
    assert (
        "the forecaster's (dc) on the training items. The lower, the better. One seed" in certainty
    )
    assert certainty.endswith(
        """
| Method        |               NLL (d) | Brier score (d) | Calibration error (d) |              NLL (dc) | Brier score (dc) | Calibration error (dc) |
| ------------- | --------------------: | --------------: | --------------------: | --------------------: | ---------------: | ---------------------: |
| Majority vote |                 0.500 |       **0.200** |                       |                       |                  |                        |
| Max-MIG       | **0.440 ± 0.014** (2) |                 |                       | **0.300 ± 0.000** (2) |                  |                        |
| True labels   |                 0.200 |                 |                       |                       |                  |                        |"""
    )
    assert "on the votes on the training items, of the last epoch" in annotators
    assert annotators.endswith(
        """
| Method        |  Accuracy |     AUROC | Brier score | Calibration error | Error of the matrices |
| ------------- | --------: | --------: | ----------: | ----------------: | --------------------: |
| Majority vote |     0.600 | **0.900** |       0.200 |                   |             **0.250** |
| Max-MIG       | **0.700** |     0.800 |   **0.100** |                   |                       |"""
    )
    picked = tables.further(certain(), "label_free")
    assert "**0.430 ± 0.014**" in picked
    assert "annotators" not in picked  # they are measured once, in the last epoch
    latex = tables.latex(certain())
    for label in ("{table:labelme}", "{table:labelme-certainty}", "{table:labelme-annotators}"):
        assert latex.count(label) == 1
    assert r"Max-MIG & $\mathbf{0.440 \pm 0.014}$ (2) &  &" in latex


def test_what_is_beyond_accuracy_of_simulated_crowds_is_a_block_a_measure(tables):
    """The measures of annotators for training on gold labels are of one crowd, and must not appear below six."""
    cells = small()
    for one in cells:
        one["last"] = one["last"] | {"ece": 0.2 if one["method"] == "max_mig" else 0.1}
        one["annotators"] = {"auroc": 0.7 if one["method"] == "max_mig" else 0.6}
    certainty, annotators = tables.further(cells).split("### Digits: annotators")
    (row,) = [line for line in certainty.splitlines() if line.startswith("| Majority vote")]
    assert [entry.strip() for entry in row.split("|")[2:-1]] == [
        "**0.100 ± 0.000**", "**0.100 ± 0.000**", "", "", "", "",
    ]  # fmt: skip
    assert "which no crowd changes: 0.100 ± 0.000." in certainty
    assert "| **0.700 ± 0.000** |" in annotators
    assert "no crowd changes" not in annotators


def test_cells_of_an_older_version_have_no_further_tables(tables):
    """Columns of blanks or zeros would show what nobody measured."""
    older = [*small(), *real()]
    assert tables.further(older) == ""
    assert "Beyond accuracy" not in tables.page(older)
    assert "## Beyond accuracy" in tables.page(certain())
    assert tables.latex(older).count(r"\begin{table}") == 2


def level():
    """Return a real crowd: AggNet is level with the first by pairs of seeds, CoNAL is not, and MaDL has other seeds."""

    def row(method, *accuracies, start=0):
        return [
            cell(method, dataset="labelme", seed=start + i, accuracy=a, nll=1 - a)
            for i, a in enumerate(accuracies)
        ]

    return [
        *row("max_mig", 0.90, 0.92, 0.94),
        *row("aggnet", 0.92, 0.90, 0.93),
        *row("conal", 0.89, 0.91, 0.93),
        *row("madl", 0.89, 0.91, 0.93, start=5),
        *row("soft_vote", 0.919),
    ]


def test_numbers_level_with_the_first_are_marked(tables):
    """A reader takes every difference in a table for a result; a footnote without a mark explains nothing."""
    text = tables.markdown(level())
    assert "\n\n† Within a standard error of the difference to the first of its column. " in text
    rows = {
        line.split("|")[1].strip(): line.split("|")[2].strip()
        for line in text.splitlines()
        if "|" in line
    }
    assert rows["Max-MIG"] == "**92.0 ± 2.0**"
    assert rows["AggNet"] == "91.7 ± 1.5 †"
    assert rows["CoNAL"] == "91.0 ± 2.0"  # a point below with each seed
    assert rows["MaDL"] == "91.0 ± 2.0 †"  # the same numbers, of other seeds
    assert rows["Soft vote"] == "91.9 (1)"
    assert "paper: AggNet, best test epoch" in rows
    assert not any("†" in rows[name] for name in rows if name.startswith("paper"))
    certainty = tables.further(level())
    assert "0.083 ± 0.015 †" in certainty  # the lower, the better
    assert certainty.count("†") == 3
    latex = tables.latex(level())
    assert r"AggNet & $91.7 \pm 1.5$\textsuperscript{\dag} &" in latex
    assert r"\textsuperscript{\dag} Within a standard error" in latex
    assert "†" not in tables.markdown(small()) + tables.latex(small())


def test_table_of_the_readme_has_no_marks(tables):
    """There is no footnote below it."""
    cells = [*level(), *(cell("max_mig", "independent", "high", accuracy=0.9) for _ in range(1))]
    text = tables.in_short(cells)
    assert "91.7 ± 1.5" in text
    assert "†" not in text


def test_latex_escapes_what_it_does_not_know(tables):
    """A method or data set of a later version must not break the document."""
    text = tables.latex([cell("a_b&c", dataset="my_data%", accuracy=0.5)])
    assert r"a\_b\&c & $\mathbf{50.0}$ &  &  \\" in text
    assert r"\caption{my\_data\%. " in text
    assert r"\label{table:my-data-}" in text


@pytest.mark.parametrize("dataset", ["luna16", "labelme"])
def test_gold_labels_alone_make_a_table(dataset, tables):
    """They may be the first to be run."""
    cells = [cell("true_labels", dataset=dataset, accuracy=0.97)]
    assert "True labels" in tables.markdown(cells)
    assert "True labels & $97.0$" in tables.latex(cells)


def test_page_of_the_committed_results_is_what_its_files_give(tables, root):
    """A page that was typed by hand, or left over from other cells, shows what was never measured."""
    cells = tables.read_cells(tables.RESULTS)
    written = (tables.RESULTS / "README.md").read_text(encoding="utf-8")
    assert written == tables.page(cells)
    for heading in ("## Last epoch", "## Label-free pick", "## Best epoch on the test items"):
        assert heading in written
    files = set(tables.ranking_files(cells).values())
    assert len(files) > 3
    for name in {"figure3.png", "digits.png"} | files:
        assert (tables.RESULTS / name).is_file()
    assert files == {place.name for place in tables.RESULTS.glob("ranking_*.png")}
    parts = {
        "docs/results.md": ("benchmark", tables.of_docs),
        "README.md": ("results in short", tables.in_short),
    }
    written_parts = [(place, *part) for place, part in parts.items()]
    written_parts += [("docs/rivals.md", *part) for part in tables.RIVALS.items()]
    for place, name, write in written_parts:
        text = (root / place).read_text(encoding="utf-8")
        assert f"<!-- {name} -->\n{write(cells).strip()}\n<!-- end {name} -->" in text, place


@pytest.mark.slow
def test_one_command_writes_the_pages_of_whatever_was_measured(tables, tmp_path, monkeypatch):
    """Cells come in pieces: a world with some methods only, one seed, crowds beyond the paper's, a method unknown here."""
    pytest.importorskip("matplotlib")
    crowds = [("independent", "high"), ("hard_items", "low")]
    cells = [
        *small(),
        *real(),
        *(cell("geo_w", *crowd, seed=3, accuracy=0.8, nll=0.5) for crowd in crowds),
        *(cell("a_later_method", dataset="music", seed=seed, accuracy=0.7, nll=1.0, ece=0.1) for seed in (0, 1)),
        cell("max_mig", *crowds[0], dataset="luna16", accuracy=0.9, forecast_accuracy=0.9),
        cell("true_labels", dataset="sentiment", accuracy=0.7),
    ]  # fmt: skip
    results, docs = tmp_path / "results", tmp_path / "docs"
    for folder in (results, docs):
        folder.mkdir()
    (results / "cells.json").write_text(json.dumps(cells), encoding="utf-8")
    (results / "ranking_of-a-world-that-was-renamed.png").touch()
    readme = tmp_path / "README.md"
    pages = {
        place.name: place.read_text("utf-8") for place in (tables.README, *tables.DOCS.glob("*.md"))
    }
    for place in (readme, docs / "results.md", docs / "rivals.md"):
        place.write_text(pages[place.name], encoding="utf-8")
    for name, place in (("RESULTS", results), ("DOCS", docs), ("README", readme)):
        monkeypatch.setattr(tables, name, place)
    monkeypatch.setattr(sys, "argv", ["benchmark_tables.py"])
    tables.main()
    assert {place.name for place in results.iterdir()} == {
        "cells.json", "README.md", "digits.png", "figure3.png", "ranking_digits.png", "ranking_luna16.png",
        "ranking_digits-more-crowds.png", "ranking_real-crowds.png",
    }  # fmt: skip
    assert (results / "README.md").read_text("utf-8") == tables.page(cells)
    for place in (readme, docs / "results.md", docs / "rivals.md"):
        assert place.read_text("utf-8") != pages[place.name]
