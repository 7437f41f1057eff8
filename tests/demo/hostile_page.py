"""A page on which every name is hostile, served by a process of its own: Gradio leaves loops and sockets behind."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset, Image
from PIL import Image as Picture

from hf_maxmig import MaxMIGModel
from hf_maxmig.data.collator import CrowdCollator
from hf_maxmig.demo.app import Page, app, launched_here
from hf_maxmig.demo.corrections import Corrections
from hf_maxmig.demo.reviewing import Reviewing
from hf_maxmig.demo.trying import Trying
from hf_maxmig.judging.relabel import most_suspect_first, relabelled
from hf_maxmig.model.whole_files import staged
from tests.judging.pages import make_report
from tests.modalities import IMAGE, TABLE, TEXT
from tests.networks import draw_crowd

HACK = "window.hacked = true"
ANNOTATORS = [
    "ann",
    f"<script>{HACK}</script>",
    f"{{{{{HACK}}}}} ${{{HACK}}} `${{{HACK}}}` @children",
    f'"><img src=x onerror="{HACK}">' + "x" * 200,
    "\u202e\u05e9\u05dc\u05d5\u05dd",
]
CLASSES = ["cat", f"<img src=x onerror='{HACK}'>", f"${{{HACK}}}{{{{value}}}} **bold** [a](javascript:{HACK})"]  # fmt: skip
ITEMS = [f"<b onclick='{HACK}'>{name}</b>.png" for name in "abcdef"]
OTHERS = (TEXT, TABLE)
TRUTH = [0, 1, 2, 0, 1, 2]


def picture(folder, name, content=None):
    """Write a file that somebody drops."""
    path = Path(folder, name)
    if content is None:
        Picture.new("RGB", (40, 30), (200, 30, 30)).save(path, "PNG")
    else:
        path.write_bytes(content)
    return path


def trying():
    """Return a model whose classes and annotators have such names."""
    torch.manual_seed(0)
    names = dict(enumerate(CLASSES))
    head = IMAGE.on_encoder(id2label=names)
    model = MaxMIGModel.from_classifier(head, annotators=ANNOTATORS, id2label=names)
    return Trying(draw_crowd(model), IMAGE.processor())


def corrections(folder):
    return Corrections(Path(folder, "corrections.csv"), CLASSES)


def judged():
    reasons = [f"because of {name}" for name in ANNOTATORS]
    return make_report(ANNOTATORS, CLASSES, reason=reasons)


def reviewing(folder):
    """Return six items, all of them suspect: two say the next class, one the right one."""
    items = Dataset.from_dict(
        {
            "file_name": ITEMS,
            "image": [str(picture(folder, "item.png"))] * len(ITEMS),
            "annotators": [[0, 1, 3]] * len(ITEMS),
            "annotations": [[(c + 1) % 3, (c + 1) % 3, c] for c in TRUTH],
        }
    ).cast_column("image", Image())
    log_zeta = np.log(np.full((6, 3), 0.05) + 0.85 * np.eye(3)[TRUTH])
    found = relabelled(items, log_zeta, log_zeta, log_zeta, CrowdCollator(5, 3), CLASSES)
    return Reviewing(most_suspect_first(found), CLASSES, ANNOTATORS, "file_name")


def serve(folder):
    """Serve the page, and one of models of a text and of a row; note the addresses, and each connection made.

    Args:
        folder: where `addresses`, `connections` and `corrections.csv` are written.
    """
    log = os.open(Path(folder, "connections"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(event, arguments):
        if event == "socket.connect":
            os.write(log, f"{json.dumps(arguments[1])}\n".encode())

    sys.addaudithook(note)
    pages = {"image": Page(HACK, trying(), reviewing(folder), corrections(folder), judged())}
    pages |= {m.name: Page(m.name, Trying(m.model(), m.processor())) for m in OTHERS}
    apps = {name: app(page) for name, page in pages.items()}
    addresses = {
        name: launched_here(blocks, prevent_thread_lock=True) for name, blocks in apps.items()
    }
    with staged(Path(folder, "addresses")) as place:
        place.write_text(json.dumps(addresses))
    apps["image"].block_thread()
