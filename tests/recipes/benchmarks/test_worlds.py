"""The measured worlds: features, votes and gold labels of each item belong together."""

import numpy as np
import pytest

from tests.recipes.imported import recipes


@pytest.fixture(scope="module")
def worlds():
    with recipes() as load:
        yield load("worlds")


@pytest.fixture
def places(worlds, tmp_path):
    return worlds.Places(str(tmp_path / "out"), crowds_dir=str(tmp_path))


@pytest.fixture
def leaves(tmp_path):
    """Twelve leaves: number k has feature k, gold k % 2, and votes whose sum identifies the leaf."""
    folder = tmp_path / "leaves"
    folder.mkdir()
    lines = [f"{k},{','.join([str(k)] * 64)}," for k in reversed(range(12))]
    (folder / "oak.fea").write_text("\n".join(lines) + "\n")
    (folder / "oak.gold").write_text("".join(f"{k}\t{k % 2}\n" for k in range(12)))
    votes = [(m, k, (k >> m) & 1) for k in range(12) for m in range(4)]
    (folder / "oak.resp").write_text("".join(f"{m}\t{k}\t{r}\n" for m, k, r in votes))
    return folder


def test_leaves_keep_their_votes_and_are_split_by_seed(worlds, places, leaves):
    """Names sort as 0, 1, 10, 11, 2, so features in the file's order would meet other leaves' votes."""
    splits = []
    for seed in (0, 1):
        world = worlds.leaves("oak", places, seed)
        assert (len(world.train), len(world.test)) == (8, 4)
        who = np.array(world.train["annotators"][:])
        names = world.train.features["annotators"].feature.names
        said = np.array(world.train["annotations"][:])
        number = (said << np.array(names).astype(int)[who]).sum(axis=1)
        features = np.array(world.train["features"][:])[:, 0]
        assert features == pytest.approx((number - number.mean()) / number.std(), abs=1e-5)
        assert world.train["label"][:] == (number % 2).tolist()
        tested = np.array(world.test["features"][:])[:, 0] * number.std() + number.mean()
        assert world.test["label"][:] == (tested.round() % 2).tolist()
        assert sorted([*number, *tested.round()]) == list(range(12))
        splits.append(set(number))
    assert splits[0] != splits[1]


def test_music_joins_features_and_classes_by_name(worlds, places, tmp_path):
    """The file of features has another order than the votes, and contains items without votes."""
    folder = tmp_path / "music"
    folder.mkdir()
    header = "id,feature0,feature1,class\n"
    (folder / "music_genre_gold.csv").write_text(header + "c,3,0,rock\nb,2,0,jazz\na,1,0,jazz\n")
    (folder / "music_genre_test.csv").write_text(header + "z,2,0,rock\ny,4,0,jazz\n")
    (folder / "mturk_answers.csv").write_text(
        "worker,song,true_label,label\n0,a,jazz,rock\n7,a,jazz,jazz\n7,c,rock,rock\n"
    )
    world = worlds.music(places, 0)
    assert np.array(world.train["features"][:])[:, 0] == pytest.approx([-1, 1], abs=1e-5)
    names = world.train.features["label"].names
    assert [names[c] for c in world.train["label"]] == ["jazz", "rock"]
    assert [[names[c] for c in said] for said in world.train["annotations"]] == [
        ["rock", "jazz"],
        ["rock"],
    ]
    assert world.train["annotators"][:] == [[0, 1], [1]]
    assert [names[c] for c in world.test["label"]] == ["rock", "jazz"]
    assert np.array(world.test["features"][:])[:, 0] == pytest.approx([0, 2], abs=1e-5)


@pytest.mark.slow
def test_real_worlds_have_the_sizes_that_the_page_says(worlds, shared_data, tmp_path):
    """A reader that drops items would measure other worlds."""
    places = worlds.Places(str(tmp_path), crowds_dir=str(shared_data))
    for name, sizes in {"alder": (268, 116), "music": (700, 300), "labelme": (1000, 1188)}.items():
        world = worlds.WORLDS[name](places, 0)
        assert (len(world.train), len(world.test)) == sizes, name


def test_crowd_of_a_data_set_has_its_votes_and_gold(worlds, places):
    """Verdicts are compared with this crowd, and one missing vote would shift all others."""
    train = worlds.sixty_seconds(places, 0).train
    crowd = worlds.crowd_of(train)
    who, said = crowd.padded()
    assert who.tolist() == train["annotators"][:]
    assert said.tolist() == train["annotations"][:]
    assert crowd.gold.tolist() == train["label"][:]
    right = [(said[:, m] == crowd.gold).mean() for m in range(3)]
    assert right == pytest.approx([0.9, 0.8, 0.5], abs=0.08)


def test_snippet_is_the_readmes(worlds, places, root):
    """With another draw than the README's, another world would be measured under its name."""
    code = (root / "README.md").read_text(encoding="utf-8").split("```python\n")[1]
    space: dict = {}
    exec(code.split("# With pictures")[0], space)
    train = worlds.sixty_seconds(places, 3).train
    assert np.array(train["features"][:]) == pytest.approx(space["features"], abs=1e-5)
    assert train["annotations"][:] == [list(x) for x in space["dataset"]["annotations"]]
    assert train["label"][:] == space["truth"].tolist()


@pytest.mark.slow
def test_world_from_scratch_is_that_of_its_recipe(worlds, shared_data, tmp_path):
    """A network that an earlier training has changed would not start from scratch."""
    places = worlds.Places(str(tmp_path), data_dir=str(shared_data))
    world = worlds.WHOLE["luna16 4.1 L"](places, 0)
    assert (len(world.train), len(world.test)) == (6484, 1622)
    assert world.inputs == ["image"]
    assert world.settings == {
        "learning_rate": 1e-4, "per_device_train_batch_size": 16, "num_train_epochs": 10, "prior": "learned",
    }  # fmt: skip
    first, second = (world.new_classifier(["benign", "malignant"]) for _ in range(2))
    assert type(first).__name__ == "FourLayerCNN"
    assert first.output.weight is not second.output.weight
