"""Made-up reports and relabelled items, and their page as readers and screen readers get it."""

import dataclasses
import io
import math
import wave
from html.parser import HTMLParser

import numpy as np
from datasets import ClassLabel, Dataset, Features, Image, List, Value
from PIL import Image as Picture

from hf_maxmig.judging.annotators import AnnotatorReport
from hf_maxmig.judging.copies import Copy
from hf_maxmig.judging.report import write_report

NAMES = ["ann", "bob", "cyd", "dee", "eve"]
CLASSES = ["cat", "dog", "emu"]
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=http://evil.example/x onerror=alert(1)>',
    "{{ 7*7 }}{% raw %}",
    "a\u202eb\x00\ud800\n' onclick='alert(1)",
    "</title></style></svg></pre>&lt;$\\frac$" + "x" * 500,
]
LOG = [
    {"gain": 0.1, "loss": -0.1, "epoch": 1.0, "step": 5},
    {"eval_gain": 0.2, "epoch": 1.0, "step": 5},
    {"gain": float("nan"), "epoch": 2.0, "step": 10},
    {"train_runtime": 1.0, "epoch": 2.0, "step": 10},
]
METRICS = {"eval_accuracy": 0.8765, "eval_gain": 1}


def make_report(names=NAMES, classes=CLASSES, **changes):
    number, size = len(names), len(classes)
    rng = np.random.default_rng(0)
    confusion = rng.dirichlet(np.ones(size), size=(number, size))
    accuracy = np.linspace(0.9, 0.35, number)
    report = AnnotatorReport(
        annotators=list(names),
        classes=list(classes),
        votes=np.arange(number, dtype=np.int64) * 40 + 11,
        counts=confusion * 7,
        confusion=confusion,
        accuracy=accuracy,
        accuracy_low=accuracy - 0.05,
        accuracy_high=accuracy + 0.05,
        information=np.linspace(0.8, 0.01, number),
        verdict=["expert", "ordinary", "copied or copying", "too few votes", "random"][:number],
        reason=[f"because of {name}" for name in names],
        copies=[Copy(2, 1, 1200, 1180, 710.5, 1e-9)] if number > 2 else [],
    )
    return dataclasses.replace(report, **changes)


def without_pictures(report=None):
    """The same report with nothing to plot, for tests of the text alone."""
    report = make_report() if report is None else report
    return dataclasses.replace(
        report,
        confusion=np.full_like(report.confusion, np.nan),
        information=np.full_like(report.information, np.nan),
        copies=[],
    )


def picture(mode="RGB", size=(30, 20)):
    return Picture.new(mode, size)


def tone(seconds=1.0, rate=8000, pitch=440.0, channels=1, width=2):
    """Make the bytes of a WAV."""
    time = np.arange(round(seconds * rate)) / rate
    samples = np.repeat(0.5 * np.sin(2 * math.pi * pitch * time), channels)
    numbers = (samples * (2 ** (8 * width - 1) - 1)).astype("<i4")
    stored = numbers.view(np.uint8).reshape(-1, 4)[:, :width]
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((channels, width, rate, 0, "NONE", ""))
        sound.writeframes((stored ^ 128 if width == 1 else stored).tobytes())
    return file.getvalue()


def make_items(names=NAMES, classes=CLASSES, number=12, gold=True, own=None, kinds=None, **changes):
    """Make twelve items: the first four are suspect, the last has no votes, every second has a gold label."""
    rng = np.random.default_rng(1)
    posterior = rng.dirichlet(np.ones(len(classes)), size=number).astype("float32")
    best = posterior.argmax(axis=1)
    other = (best + 1) % len(classes)
    suspect = np.arange(number) < 4
    said = np.where(suspect, other, best)
    voted = np.arange(number) < number - 1
    columns = {
        "annotators": [[0, 1, 2] if v else [] for v in voted],
        "annotations": [
            [int(c), int(c), int(b)] if v else [] for c, b, v in zip(said, best, voted, strict=True)
        ],
        "forecast": [classes[c] for c in best],
        "confidence": posterior.max(axis=1),
        "plurality": [classes[c] if v else None for c, v in zip(said, voted, strict=True)],
        "label_quality": [
            float(posterior[i, said[i]]) if voted[i] else None for i in range(number)
        ],
        "suspect": suspect,
        "suspicion": [
            float(1 - posterior[i, said[i]]) if voted[i] else None for i in range(number)
        ],
        "difficulty": [
            float(1 - (2 * posterior[i, said[i]] + posterior[i, best[i]]) / 3) if voted[i] else None
            for i in range(number)
        ],
        **{f"{name}_posterior": posterior for name in ("classifier", "aggregator", "forecast")},
    }
    crowd = List(ClassLabel(names=[n.encode("utf-8", "replace").decode() for n in names]))
    features = {
        "annotators": crowd, "annotations": List(ClassLabel(names=list(classes))),
        "forecast": Value("string"), "confidence": Value("float32"), "plurality": Value("string"),
        "label_quality": Value("float32"), "suspect": Value("bool"), "suspicion": Value("float32"),
        "difficulty": Value("float32"),
        **{name: List(Value("float32"), length=len(classes)) for name in columns if "_p" in name},
    }  # fmt: skip
    own = {"file_name": [f"{i}.jpg" for i in range(number)]} if own is None else own
    features |= {n: Image() if n == "image" else Value("string") for n in own}
    features |= kinds or {}
    columns |= own
    if gold:
        columns["label"] = [int(best[i]) if i % 2 else None for i in range(number)]
        features["label"] = ClassLabel(names=list(classes))
    columns |= changes
    return Dataset.from_dict(columns, features=Features(features))


class Page(HTMLParser):
    """Tags with the names of their attributes, ids, sources and the text of a page."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.ids, self.sources, self.roles, self.text = [], set(), [], [], ""
        self.all_images_have_text = True
        self.raw = path.read_text(encoding="utf-8")
        self.feed(self.raw)
        self.words = " ".join(self.text.split())

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.text += " " if tag in ("p", "th", "td", "div", "span") else ""
        self.tags.append((tag, tuple(sorted(named))))
        self.ids.add(named.get("id"))
        self.sources += [
            named[k] for k in ("src", "href", "action", "srcset", "data") if k in named
        ]
        if tag == "img":
            self.all_images_have_text &= bool(named.get("alt"))
        if tag == "svg":
            self.all_images_have_text &= bool(named.get("aria-label")) and named["role"] == "img"

    def handle_data(self, data):
        self.text += data


def write(tmp_path, report=None, **settings):
    settings = {"title": "Animals", "summary": "12 items\n5 annotators", **settings}
    return Page(
        write_report(
            tmp_path / "report.html", make_report() if report is None else report, **settings
        )
    )
