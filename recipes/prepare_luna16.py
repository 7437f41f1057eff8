"""LUNA16: cut the paper's 8,106 patches of 50 x 50 out of the public CT scans.

Data: Setio et al., "Validation, comparison, and combination of algorithms for automatic detection
of pulmonary nodules", Medical Image Analysis 2017 (CC BY 4.0; the scans are LIDC-IDRI's, CC BY
3.0), https://luna16.grand-challenge.org. `--data_dir` is a folder with `candidates.csv` and the
unpacked `subset0` ... `subset9`, 888 scans as .mhd and .raw, more than 100 GB.

    pip install -e ".[luna16]"
    python recipes/prepare_luna16.py --data_dir DIR --output_dir data/luna16

writes `train/{benign,malignant}/*.png` and `test/{benign,malignant}/*.png`, which `luna16.py`
takes, in hardly more time than it takes to read the scans once. What was interrupted goes on where
it was; `--output_dir` is there only when it is whole.

The paper says how many patches there are, not which. The numbers are those of `candidates.csv` (not
of `candidates_V2.csv`): its 1,351 nodules, which the paper calls malignant, and five times as many
other candidates, called benign, drawn by a seed: 8,106, split 80/20 by patch. A patch is the slice
nearest to the candidate, 50 mm a side at 1 mm a pixel, the same way up however the scan is stored,
from -1000 HU (black) to 400 HU (white). Patches of one patient may be in both splits.
"""

import csv
import json
import os
from collections import defaultdict
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import SimpleITK
from datasets.utils import tqdm
from PIL import Image

from hf_maxmig.command.flags import start
from hf_maxmig.data.simulated.experts import LUNA16
from hf_maxmig.model.whole_files import staged

SIZE = 50  # pixels a side, 1 mm each
AIR, WHITE = -1000, 400  # HU
BENIGN_EACH = 5  # benign candidates for each malignant one
COLUMNS = ("seriesuid", "coordX", "coordY", "coordZ", "class")


@dataclass
class PrepareArguments:
    """Where the scans are and where the patches go."""

    data_dir: str = field(
        metadata={"help": "Folder with candidates.csv and subset0 ... subset9, unpacked."}
    )
    output_dir: str = field(metadata={"help": "Folder to make, with train/ and test/."})
    seed: int = field(
        default=0, metadata={"help": "Which benign candidates, and which patches to test on."}
    )


class Candidate(NamedTuple):
    """A place in a scan: `row` in the file, `point` in millimetres of the scan's world, class."""

    row: int
    scan: str
    point: tuple[float, float, float]
    malignant: bool


def read_candidates(path: Path) -> list[Candidate]:
    """Read `candidates.csv`, each line checked."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} must exist, got no such file: get it from https://luna16.grand-challenge.org."
        )
    candidates = []
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if missing := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
            raise ValueError(f"{path} must have the columns {', '.join(COLUMNS)}: no {missing[0]}.")
        for row, line in enumerate(reader):
            try:
                x, y, z = (float(line[f"coord{axis}"]) for axis in "XYZ")
                malignant = {"0": False, "1": True}[line["class"]]
            except (KeyError, TypeError, ValueError) as cause:
                raise ValueError(
                    f"{path}, line {reader.line_num}: must be a place and the class 0 or 1, got "
                    f"{', '.join(map(str, line.values()))}."
                ) from cause
            candidates.append(Candidate(row, line["seriesuid"], (x, y, z), malignant))
    return candidates


def draw(candidates: list[Candidate], seed: int) -> dict[str, list[Candidate]]:
    """Take all malignant candidates and some of the benign, and split them 80/20."""
    generator = np.random.default_rng(seed)
    malignant = [c for c in candidates if c.malignant]
    benign = [c for c in candidates if not c.malignant]
    wanted = BENIGN_EACH * len(malignant)
    if not 0 < wanted <= len(benign):
        raise ValueError(
            f"candidates.csv must hold {BENIGN_EACH} benign candidates for each malignant one, got "
            f"{len(benign)} and {len(malignant)}."
        )
    drawn = [benign[i] for i in generator.choice(len(benign), wanted, replace=False)]
    together = [*malignant, *drawn]
    order = generator.permutation(len(together))
    cut = len(together) * 4 // 5
    return {
        "train": [together[i] for i in order[:cut]],
        "test": [together[i] for i in order[cut:]],
    }


def patch(scan: Any, point: tuple[float, float, float]) -> np.ndarray:
    """Cut a patch out of a scan.

    Args:
        scan: a SimpleITK image, in HU.
        point: its centre, in the scan's world.

    Returns:
        (50, 50) uint8; what lies outside of the scan is black.
    """
    index = scan.TransformPhysicalPointToContinuousIndex(point)
    if not all(-0.5 <= i <= n - 0.5 for i, n in zip(index, scan.GetSize(), strict=True)):
        raise ValueError(f"a candidate must lie in its scan, got {point}: voxel {index}.")
    # Half way between two slices would blur both: take the nearest.
    nearest = min(round(index[2]), scan.GetSize()[2] - 1)
    x, y, z = scan.TransformContinuousIndexToPhysicalPoint((*index[:2], nearest))
    corner = (SIZE - 1) / 2
    axes = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0)  # the patient's, not the file's
    cut = SimpleITK.Resample(
        scan, (SIZE, SIZE, 1), SimpleITK.Transform(), SimpleITK.sitkLinear, (x - corner, y - corner, z),
        (1.0, 1.0, 1.0), axes, AIR, SimpleITK.sitkFloat32,
    )  # fmt: skip
    grey = (SimpleITK.GetArrayFromImage(cut)[0].clip(AIR, WHITE) - AIR) / (WHITE - AIR)
    return np.round(grey * 255).astype(np.uint8)


def main(arguments: PrepareArguments) -> None:
    source, output = Path(arguments.data_dir), Path(arguments.output_dir)
    candidates = source / "candidates.csv"
    splits = draw(read_candidates(candidates), arguments.seed)
    setting = {"seed": arguments.seed, "candidates": sha256(candidates.read_bytes()).hexdigest()}
    part = output.with_name(f"{output.name}.part")
    for folder in (output, part):
        check_setting(folder, setting)
    if output.exists():
        print(f"{output} is whole already.")
        return
    wanted: dict[str, list[tuple[Candidate, Path]]] = defaultdict(list)
    for split, chosen in splits.items():
        for candidate in chosen:
            folder = part / split / LUNA16[candidate.malignant]
            wanted[candidate.scan].append((candidate, folder / f"{candidate.row:06}.png"))
    scans = {path.stem: path for path in source.glob("subset*/*.mhd")}
    if missing := sorted(set(wanted) - set(scans)):
        raise FileNotFoundError(
            f"{source} must hold the scans of all candidates, {len(wanted)} as subset*/*.mhd, got "
            f"{len(wanted) - len(missing)}: {missing[0]} is missing; unpack all subsets."
        )
    with staged(part / "setting.json") as place:
        place.write_text(json.dumps(setting))
    for name, pairs in tqdm(sorted(wanted.items()), desc="Scans"):
        cut_scan(scans[name], [(c, path) for c, path in pairs if not path.is_file()])
    os.replace(part, output)
    sizes = {split: len(chosen) for split, chosen in splits.items()}
    print(f"{output} has {sizes['train']} patches to train and {sizes['test']} to test.")


def check_setting(folder: Path, setting: dict[str, Any]) -> None:
    """Raise if a folder holds another draw: the two would be mixed."""
    if not folder.exists():
        return
    path = folder / "setting.json"
    got = json.loads(path.read_text()) if path.is_file() else "another folder"
    if got != setting:
        raise ValueError(
            f"{folder} must be absent or of the same draw, {setting}, got {got}: choose another "
            "`--output_dir`, or delete it."
        )


def cut_scan(path: Path, pairs: list[tuple[Candidate, Path]]) -> None:
    """Write the patches of one scan."""
    if not pairs:
        return
    scan = SimpleITK.ReadImage(str(path))
    for candidate, place in pairs:
        try:
            picture = Image.fromarray(patch(scan, candidate.point))
        except ValueError as cause:
            raise ValueError(f"candidates.csv, row {candidate.row}, {path.name}: {cause}") from None
        with staged(place) as file:
            picture.save(file)


if __name__ == "__main__":
    start(main)
