"""The patches of LUNA16: cut at the candidates, once, completely."""

import csv
import json
import os

import numpy as np
import pytest

from hf_maxmig import luna16
from tests.recipes.imported import recipes

SimpleITK = pytest.importorskip("SimpleITK", reason="SimpleITK is not installed")

# Spacing, origin and direction, none of which may be taken for granted.
SCANS = {
    "plain": ((1.0, 1.0, 1.0), (0.0, 0.0, 0.0), (1, 0, 0, 0, 1, 0, 0, 0, 1)),
    "fine": ((0.6, 0.7, 2.5), (-120.0, 35.5, -300.25), (1, 0, 0, 0, 1, 0, 0, 0, 1)),
    "flipped": ((0.8, 0.5, 1.25), (97.5, 60.0, 11.0), (-1, 0, 0, 0, -1, 0, 0, 0, 1)),
}
SIZE = (120, 140, 9)  # x, y, z


@pytest.fixture(scope="module")
def page():
    with recipes() as load:
        yield load("prepare_luna16")


def make_scan(name, voxel, hu=400, radius=4.0):
    """Return a scan of air with a ball of the given radius in mm, and the ball's centre in world coordinates."""
    spacing, origin, direction = SCANS[name]
    scan = SimpleITK.Image(SIZE, SimpleITK.sitkInt16)
    scan.SetSpacing(spacing)
    scan.SetOrigin(origin)
    scan.SetDirection(direction)
    point = scan.TransformContinuousIndexToPhysicalPoint(voxel)
    z, y, x = np.indices(SIZE[::-1])
    offsets = (np.stack([x, y, z]) - np.reshape(voxel, (3, 1, 1, 1))) * np.reshape(
        spacing, (3, 1, 1, 1)
    )
    values = np.where(np.square(offsets).sum(axis=0) <= radius**2, hu, -1000).astype(np.int16)
    filled = SimpleITK.GetImageFromArray(values)
    filled.CopyInformation(scan)
    return filled, point


def centre(patch):
    """Return the centre of the bright area, (row, column), in pixels."""
    weight = patch.astype(float)
    rows, columns = np.indices(patch.shape)
    return (rows * weight).sum() / weight.sum(), (columns * weight).sum() / weight.sum()


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("voxel", [(60.0, 70.0, 4.0), (41.3, 77.6, 3.4)])
def test_patch_is_centred_on_the_candidate(name, voxel, page):
    """If world coordinates were taken for voxels, or x for y, the patch would show another place just as grey."""
    scan, point = make_scan(name, voxel)
    patch = page.patch(scan, point)
    assert (patch.shape, patch.dtype) == ((50, 50), np.uint8)
    assert (patch.min(), patch.max()) == (0, 255)
    assert centre(patch) == pytest.approx((24.5, 24.5), abs=0.25)
    # The slice through the middle of the ball (or nearest to it) at 1 mm per pixel: its area in mm^2.
    off = abs(voxel[2] - round(voxel[2])) * SCANS[name][0][2]
    assert (patch > 127).sum() == pytest.approx(np.pi * (16 - off**2), abs=7)


def test_patch_is_the_same_way_up_however_the_scan_is_stored(page):
    """To the network, scans stored upside down would be another kind of picture."""
    patches = []
    for name in SCANS:
        scan, point = make_scan(name, (60.0, 70.0, 4.0))
        patches.append(page.patch(scan, (point[0] - 10, point[1] + 5, point[2])))
    for patch in patches:  # 10 mm to the right of the candidate, 5 mm above
        assert centre(patch) == pytest.approx((19.5, 34.5), abs=0.25)


def test_patch_at_the_border_is_black_outside_and_a_place_outside_is_an_error(page):
    """Outside the scan zeros would be wrong: 0 HU is water, which is grey."""
    scan, _ = make_scan("plain", (60.0, 70.0, 4.0))
    scan = scan * 0 + 400
    patch = page.patch(scan, (10.0, 70.0, 8.4))
    assert patch[:, :14].max() == 0
    assert patch[:, 16:].min() == 255
    with pytest.raises(ValueError, match=r"a candidate must lie in its scan, got \(10.0, -3.0"):
        page.patch(scan, (10.0, -3.0, 4.0))


def test_window_is_of_the_lung(page):
    """In a window for bones, a nodule would be as black as the air around it."""
    for hu, grey in ((-1000, 0), (-2000, 0), (-300, 128), (400, 255), (3000, 255)):
        scan, point = make_scan("plain", (60.0, 70.0, 4.0), hu=hu, radius=60)
        assert page.patch(scan, point)[25, 25] == grey


def test_draw_takes_all_malignant_and_five_benign_each(page):
    """A candidate in both splits would be memorised. The paper's numbers must come out."""
    candidates = [page.Candidate(i, "a", (0, 0, 0), i % 8 == 3) for i in range(10_808)]
    splits = page.draw(candidates, seed=0)
    assert sum(c.malignant for c in candidates) == 1351
    assert {split: len(chosen) for split, chosen in splits.items()} == {"train": 6484, "test": 1622}
    rows = [c.row for chosen in splits.values() for c in chosen]
    assert len(set(rows)) == 8106
    assert sum(candidates[row].malignant for row in rows) == 1351
    assert 200 < sum(c.malignant for c in splits["test"]) < 350
    assert page.draw(candidates, seed=0) == splits
    assert page.draw(candidates, seed=1) != splits
    with pytest.raises(ValueError, match="5 benign candidates for each malignant one, got 4 and 1"):
        page.draw(candidates[:5], seed=0)


@pytest.fixture
def source(tmp_path):
    """A folder as published: two scans in two subsets, 9 malignant candidates, 50 benign."""
    folder = tmp_path / "published"
    rows = []
    for i, name in enumerate(("fine", "flipped")):
        scan, point = make_scan(name, (60.0, 70.0, 4.0))
        place = folder / f"subset{i}" / f"1.3.6.{i}.mhd"
        place.parent.mkdir(parents=True)
        SimpleITK.WriteImage(scan, str(place))
        rows += [(f"1.3.6.{i}", *point, 1)] * (5 - i)
        rows += [(f"1.3.6.{i}", point[0] + k, point[1] - 9, point[2], 0) for k in range(25)]
    masks = folder / "seg-lungs-LUNA16"  # masks have the names of their scans
    masks.mkdir()
    SimpleITK.WriteImage(SimpleITK.Image(SIZE, SimpleITK.sitkUInt8), str(masks / "1.3.6.0.mhd"))
    with (folder / "candidates.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["seriesuid", "coordX", "coordY", "coordZ", "class"])
        writer.writerows(rows)
    return folder


def test_prepare_writes_what_the_loader_reads(page, source, tmp_path):
    """The script and the loader must agree, and a malignant patch must show its nodule."""
    out = tmp_path / "out"
    page.main(page.PrepareArguments(str(source), str(out)))
    data = luna16(out)
    assert {split: len(rows) for split, rows in data.items()} == {"train": 43, "test": 11}
    labels = data["train"]["label"][:] + data["test"]["label"][:]
    assert sum(labels) == 9
    for rows in data.values():
        for row in rows:
            patch = np.asarray(row["image"])
            assert (row["image"].mode, patch.shape) == ("L", (50, 50))
            assert bool(patch[24:26, 24:26].min() > 200) == bool(row["label"])
    assert not out.with_name("out.part").exists()


def test_prepare_goes_on_where_it_was_interrupted(page, source, tmp_path, monkeypatch):
    """Half of the patches taken for all of them would silently be a smaller data set."""
    out, cut = tmp_path / "out", page.cut_scan
    arguments = page.PrepareArguments(str(source), str(out))
    done = []

    def cut_one_scan(path, pairs):
        if done:
            raise KeyboardInterrupt
        done.append(path.stem)
        cut(path, pairs)

    with monkeypatch.context() as patch:
        patch.setattr(page, "cut_scan", cut_one_scan)
        with pytest.raises(KeyboardInterrupt):
            page.main(arguments)
    assert not out.exists()
    part = out.with_name("out.part")
    before = {p.name: p.stat().st_mtime_ns for p in part.rglob("*.png")}
    assert 0 < len(before) < 54
    read = []
    read_image = SimpleITK.ReadImage
    monkeypatch.setattr(
        SimpleITK, "ReadImage", lambda path: (read.append(path), read_image(path))[1]
    )
    page.main(arguments)
    assert len(read) == 1  # the finished scan is not read again
    after = {p.name: p.stat().st_mtime_ns for p in out.rglob("*.png")}
    assert len(after) == 54
    assert before.items() <= after.items()
    page.main(arguments)  # already complete
    assert len(read) == 1
    with pytest.raises(
        ValueError, match=r"must be absent or of the same draw, .*'seed': 1.*'seed'"
    ):
        page.main(page.PrepareArguments(str(source), str(out), seed=1))


def test_prepare_does_not_mix_two_draws(page, source, tmp_path):
    """An unfinished folder of another seed would leave its patches in the wrong split."""
    part = tmp_path / "out.part"
    part.mkdir()
    (part / "setting.json").write_text(json.dumps({"seed": 5, "candidates": "another"}))
    with pytest.raises(ValueError, match="out.part must be absent or of the same draw"):
        page.main(page.PrepareArguments(str(source), str(tmp_path / "out")))
    assert os.listdir(part) == ["setting.json"]


def test_prepare_names_what_is_missing_or_malformed(page, source, tmp_path):
    """Minutes into a run it is too late to learn that a subset is not unpacked."""
    arguments = page.PrepareArguments(str(source), str(tmp_path / "out"))
    scan = source / "subset1" / "1.3.6.1.mhd"
    scan.rename(scan.with_suffix(".off"))
    with pytest.raises(FileNotFoundError, match=r"2 as subset\*/\*.mhd, got 1: 1.3.6.1 is missing"):
        page.main(arguments)
    scan.with_suffix(".off").rename(scan)
    assert not (tmp_path / "out.part").exists()
    candidates = source / "candidates.csv"
    text = candidates.read_text()
    candidates.write_text(text.rstrip()[:-1] + "2")
    with pytest.raises(ValueError, match=r"candidates.csv, line 60: .* class 0 or 1, got 1.3.6.1"):
        page.main(arguments)
    candidates.write_text(text.replace("coordZ", "z"))
    with pytest.raises(ValueError, match="must have the columns .*: no coordZ"):
        page.main(arguments)
    candidates.unlink()
    with pytest.raises(FileNotFoundError, match=r"candidates.csv must exist.*grand-challenge"):
        page.main(arguments)


def test_prepare_names_the_candidate_outside_of_its_scan(page, source, tmp_path):
    """Coordinates of another scan would give 8,106 black squares."""
    path = source / "subset0" / "1.3.6.0.mhd"
    place = (page.Candidate(17, "1.3.6.0", (900.0, 0.0, 0.0), True), tmp_path / "000017.png")
    with pytest.raises(ValueError, match=r"row 17, 1.3.6.0.mhd: a candidate must lie in its scan"):
        page.cut_scan(path, [place])
    assert list(tmp_path.glob("*.png")) == []
