"""Settings and fixtures that several test files share."""

import os

# Before the libraries are imported: a Hub call without a network takes half a minute to fail, and
# small steps on two threads take ten times as long as on one.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import gc
import importlib.util
import multiprocessing
from pathlib import Path

import pytest
import torch
from huggingface_hub import close_session
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    PreTrainedTokenizerFast,
    ResNetConfig,
    ResNetForImageClassification,
    ViTImageProcessor,
)

from hf_maxmig import (
    MaxMIGModel,
    MaxMIGTrainer,
    MaxMIGTrainingArguments,
    fitted_table_processor,
)
from tests import children
from tests.attacks.mutations import SEED
from tests.hub_server import HubServer
from tests.networks import small_head
from tests.recipes.imported import recipes
from tests.worlds import ANNOTATORS, make_crowd, make_table

torch.set_num_threads(1)

ROOT = Path(__file__).parents[1]
# Each takes half a minute or more: started last, it would keep one core busy while the others are idle.
LONGEST = [
    "tests/recipes/test_recipes.py",
    "tests/peers/test_peers.py",
    "tests/attacks/test_kills.py",
    "tests/recipes/benchmarks/test_benchmark_speed.py",
    "tests/recipes/test_three_ways.py",
    "tests/recipes/benchmarks/test_latent_seniors.py",
    "tests/recipes/benchmarks/test_benchmark.py",
    "tests/training/test_distributed.py",
    "tests/model/test_architectures.py",
]


@pytest.fixture(scope="module", autouse=True)
def imported_modules_are_no_garbage():
    """Hide imported modules from the collector: `Trainer.train` calls it each time, which costs 0.3 s."""
    gc.collect()
    gc.freeze()


def pytest_report_header():
    """Print which damaged inputs the attacks try: the same seed gives the same ones."""
    return f"attacks: ATTACK_SEED={SEED}"


def pytest_collection_modifyitems(items):
    """Put the longest files first: xdist hands out files in this order, with `--no-loadscope-reorder`."""
    place = {ROOT / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


@pytest.fixture
def clean_workers():
    """Fork the workers of loaders from a process with one thread: forked from this one they may hang."""
    children.context()
    multiprocessing.set_start_method("forkserver", force=True)
    yield
    multiprocessing.set_start_method(None, force=True)


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture
def load():
    """Import a recipe as a module."""
    with recipes() as by_name:
        yield by_name


@pytest.fixture
def without(monkeypatch):
    """Let an optional package look as if it were not installed."""
    find = importlib.util.find_spec

    def hide(package):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == package else find(name, *rest))  # fmt: skip

    return hide


@pytest.fixture(scope="session")
def shared_data():
    """Return the folder of real crowds beside the checkout, where available; they are not part of the project."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no folder of real crowd data beside the checkout")
    return folder


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Return a Hub on which nobody is logged in."""
    with HubServer() as server:
        server.point_here(monkeypatch, tmp_path / "home")
        yield server
        close_session()


@pytest.fixture(scope="session")
def crowd():
    return make_crowd()


@pytest.fixture(scope="session")
def table():
    """Return the crowd on rows of a table."""
    return make_table()


@pytest.fixture(scope="session")
def table_processor(table):
    """Return what turns the rows into features."""
    return fitted_table_processor(table)


@pytest.fixture
def make_model():
    def build(dropout=0.0, seed=0, **config_fields):
        head = small_head(seed=seed, dropout=dropout)
        return MaxMIGModel.from_classifier(head, annotators=ANNOTATORS, **config_fields)

    return build


@pytest.fixture
def make_args(tmp_path):
    def build(**changes):
        settings = {
            "output_dir": str(tmp_path / "out"),
            "use_cpu": True,
            "report_to": "none",
            "disable_tqdm": True,
            "per_device_train_batch_size": 16,
            "num_train_epochs": 2,
            "save_strategy": "no",
            "logging_strategy": "no",
            "learning_rate": 1e-2,
            "init": "vote_share",
            "search_rate": False,
            "search_strength": False,
        }
        return MaxMIGTrainingArguments(**{**settings, **changes})

    return build


@pytest.fixture
def backbone(tmp_path):
    """Return the folder of a frozen backbone, with its image processor."""
    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic")
    model = ResNetForImageClassification(config)
    model.save_pretrained(tmp_path / "backbone")
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path / "backbone")
    return model


@pytest.fixture
def ann(hub, monkeypatch):
    """Return the token of a member of the organisation, who is logged in."""
    token = hub.add_user("ann", organisations=["org"])
    hub.log_in(monkeypatch, token)
    return token


@pytest.fixture
def make_trainer(make_model, make_args, crowd):
    """Return a function that builds a trainer of a model that is shared as `org/pair`."""

    def build(**changes):
        args = make_args(hub_model_id="org/pair", **changes)
        return MaxMIGTrainer(model=make_model(), args=args, train_dataset=crowd)

    return build


@pytest.fixture
def tokenizer():
    """Return a tokenizer with a vocabulary of a few words."""
    words = {"[PAD]": 0, "a": 1, "good": 2, "bad": 3, "film": 4, "beyond": 9}
    made = Tokenizer(WordLevel(words, unk_token="[PAD]"))
    made.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]")
