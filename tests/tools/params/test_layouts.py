"""The table of layouts in docs/data-layouts.md: what `set data=PATH` does with each, and that its advice works."""

import gzip
import io
import json
import random
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pipeline.__main__ import main
from pipeline.core.yaml_document import Document
from pipeline.tools.params import recommending
from tests.imports import TOP
from tests.sources.pictures import encoded, write_folder, write_zip

Files = dict[str, bytes]
LABELS = ("cat", "dog")
NUMBERS = range(12)
HEIC = b"\0\0\0\x18ftypheic" + bytes(40)
ADDED = re.compile(r"(?:add|or|with|write) ('(?:source|data=)[^']+'|(?:source(?:\.\w+)?=|data=)[^ ,;:\s]+)")


def picture(number: int, kind: str = "PNG") -> bytes:
    """Return an image that differs from those of other numbers."""
    pixels = np.random.default_rng(number).integers(0, 255, (12, 12, 3), np.uint8)
    return encoded(Image.fromarray(pixels), kind)


def grey(number: int, factor: int, kind: str = "TIFF") -> bytes:
    """Return a grey image of 16 bits, with values up to 13 times `factor`, or up to 4095 if this is more; a TIFF is big-endian."""
    pixels = np.random.default_rng(number).integers(0, max(13 * factor, 4096), (12, 12)).astype(np.uint16)
    return encoded(Image.frombytes("I;16B", (12, 12), pixels.astype(">u2").tobytes()) if kind == "TIFF" else Image.fromarray(pixels), kind)


def by_class(*folders: str, suffix: str = "png", content: bytes = b"") -> Files:
    """Return 12 files for two or more class folders, or for several sets of them."""
    kind = "JPEG" if suffix == "jfif" else "PNG"
    return {
        f"{folder}/{at}{number}.{suffix}": content or picture(100 * at + number, kind)
        for at, folder in enumerate(folders)
        for number in NUMBERS
    }


def images(folder: str = "images", numbers: Any = NUMBERS) -> Files:
    return {f"{folder}/{number}.png": picture(number) for number in numbers}


def table(names: str, *rows: Any, sep: str = ",") -> bytes:
    """Return a table with a line of names, and the fields of each row."""
    return "".join(sep.join(map(str, row)) + "\n" for row in (names.split(","), *rows)).encode()


def listing(
    numbers: Any = NUMBERS, path: str = "images/{}.png", names: str = "file,kind", sep: str = ",", more: Any = lambda _: ()
) -> bytes:
    return table(names, *((path.format(number), LABELS[number % 2], *more(number)) for number in numbers), sep=sep)


def text(number: int) -> str:
    return f"the {('red', 'blue', 'old')[number % 3]} thing number {number}"


def texts(names: str = "text,label", labels: Any = LABELS, sep: str = ",", numbers: Any = NUMBERS) -> bytes:
    return table(names, *((text(number), labels[number % len(labels)]) for number in numbers), sep=sep)


def parquet(numbers: Any, image: Callable[[int], Any], names: list[str] | None = None, *, labelled: bool = True) -> bytes:
    """Return a Parquet file of images. `names` are the names of its classes, as the library `datasets` stores them."""
    found = pa.table({"image": [image(number) for number in numbers], "label": [number % 2 for number in numbers]})
    if names:
        found = found.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": {"label": {"names": names}}}})})
    stream = io.BytesIO()
    pq.write_table(found if labelled else found.drop(["label"]), stream)
    return stream.getvalue()


def with_bytes(number: int) -> dict[str, Any]:
    return {"bytes": picture(number), "path": None}


def arrays(*names: str) -> bytes:
    """Return an `.npz` of images and class numbers, by turns."""
    stream = io.BytesIO()
    pixels = np.random.default_rng(1).integers(0, 255, (12, 12, 12), np.uint8)
    np.savez(stream, **{name: np.arange(12)[:, None] % 2 if at % 2 else pixels for at, name in enumerate(names)})  # type: ignore[arg-type]
    return stream.getvalue()


def rows(numbers: Any) -> list[dict[str, str]]:
    return [{"text": text(number), "label": LABELS[number % 2]} for number in numbers]


def measurements(last: str, *values: Any, beside: bool = False) -> bytes:
    """Return a table of ages, sizes and `values`, with a text in each row if `beside`."""
    cells = [(n * n % 41, n * 7 % 12 / 2, values[n % len(values)], *([text(n)] if beside else [])) for n in range(24)]
    return table(f"age,size,{last}" + (",about" if beside else ""), *cells)


def unspaced(letters: str, size: int) -> list[str]:
    """Return 60 different texts of `size` letters without white space."""
    draw = random.Random(1)
    return ["".join(draw.choices(letters, k=size)) for _ in range(60)]


CHINESE, THAI = unspaced("电影很好我们都喜欢看天气不坏", 12), unspaced("กขคงจฉชซฌญ", 30)
LINES = b"".join(f"{text(number)}\n".encode() for number in NUMBERS)
CORPUS = "".join(f"{text(number)}, and so on. " for number in range(60)).encode()
CLASSES = b"".join(f"{number % 2}\n".encode() for number in NUMBERS)
TRAIN_TEST = {"train.csv": listing(), "test.csv": listing(range(4)), **images()}
LAYOUTS: dict[str, Files] = {
    "`cat/1.png`, `cat/tabby/2.png`, `dog/3.png`": by_class("cat", "dog") | by_class("cat/tabby"),
    "`Training/cat/1.png`, `Testing2/cat/2.png`": by_class("Training/cat", "Training/dog", "Testing2/cat", "Testing2/dog"),
    "`train/cat/1.png`, `test/2.png`": by_class("train/cat", "train/dog", "test"),
    "`training_set/cat/1.png`, `test_set/cat/2.png`, `single_prediction/3.png`": by_class(
        *(f"{part}_set/{name}" for part in ("training", "test") for name in LABELS), "single_prediction"
    ),
    "`seg_train/seg_train/cat/1.png`, `seg_test/seg_test/cat/2.png`": by_class(
        *(f"seg_{part}/seg_{part}/{name}" for part in ("train", "test") for name in LABELS)
    ),
    "`train/cat.1.png`, `test1/2.png`": {
        f"train/{name}.{number}.png": picture(number + 50 * (name == "dog")) for name in LABELS for number in NUMBERS
    }
    | images("test1"),
    "`photos/1.png`": images("photos"),
    "`train/cat/images/1.png`, `val/images/2.png`": by_class("train/cat/images", "train/dog/images", "val/images"),
    "`fold1/cat/1.png`, `fold2/cat/2.png`": by_class("fold1/cat", "fold1/dog", "fold2/cat", "fold2/dog"),
    "`train/cat/1.png`, `val/owl/2.png`": by_class("train/cat", "train/dog", "val/cat", "val/owl"),
    "`cat/1.jfif`": by_class("cat", "dog", suffix="jfif"),
    "`cat/1.heic`": by_class("cat", "dog", suffix="heic", content=HEIC),
    "`Café/1.png` in two Unicode forms": by_class("Caf\u00e9", "Cafe\u0301", "Tea"),
    "`Cat/1.png`, `cat/2.png`": by_class("Cat", "cat", "dog"),
    "`cat/1.png`, `cat/faces.idx`": by_class("cat", "dog") | {"cat/faces.idx": b"x1,y1"},
    "`cat/1.png`, `dog/2.png`, `notes/a.yml`": by_class("cat", "dog") | {"notes/a.yml": b"a: 1"},
    "`cat/1.png`, `dogs/old/1.png`, `dogs/new/2.png`": by_class("cat", "dogs/old", "dogs/new"),
    "`images/1.png`, `masks/1.png`": images() | images("masks"),
    "`mask/1.png`, `no_mask/1.png`": {
        f"{folder}/{n}.png": picture(n + 50 * at) for at, folder in enumerate(("mask", "no_mask")) for n in NUMBERS
    },
    "`train-images-idx3-ubyte`, `train-labels-idx1-ubyte`": {
        f"train-{name}-ubyte": b"\0\0\x08\1" for name in ("images-idx3", "labels-idx1")
    },
    "`10/1.png`, `9/2.png`": by_class("10", "9"),
    "`cat/1.tif` of 16 bits, grey, big-endian": {name: grey(at, 5000) for at, name in enumerate(by_class("cat", "dog", suffix="tif"))},
    "`cat/1.png` of 16 bits with values of 12 bits": {name: grey(at, 1, "PNG") for at, name in enumerate(by_class("cat", "dog"))},
    "`cat/1.tif` of floating-point numbers from 0 to 1": {
        name: encoded(Image.fromarray(np.random.default_rng(at).random((12, 12), np.float32)), "TIFF")
        for at, name in enumerate(by_class("cat", "dog", suffix="tif"))
    },
    "`cat/1.png` of 16 bits, some with values of 12 bits": {
        name: grey(at, 5000 * (at % 2), "PNG") for at, name in enumerate(by_class("cat", "dog"))
    },
    "`cat/1.png` of 16 bits beside 8 bits": by_class("dog", "cat") | {name: grey(at, 1, "PNG") for at, name in enumerate(by_class("cat"))},
    "`labels.csv` with `images/1.png,cat`": {"labels.csv": listing(), **images()},
    "`labels.csv` with `IMAGES\\1.PNG;cat`": {"labels.csv": listing(path="IMAGES\\{}.PNG", sep=";"), **images()},
    "`labels.tsv` with `1.png`, a tab and `cat`, without names of columns": {
        "labels.tsv": b"".join(f"{number}.png\t{LABELS[number % 2]}\n".encode() for number in NUMBERS),
        **images(),
    },
    "`labels.csv` with two rows of an image, a class and the columns `xmin`, `ymin`, `xmax`, `ymax`": {
        "labels.csv": listing([*NUMBERS, *NUMBERS], names="file,kind,xmin,ymin,xmax,ymax", more=lambda number: (number, 1, number + 9, 8)),
        **images(),
    },
    "`boxes.json` in the form of COCO, `images/1.png`": {
        "boxes.json": json.dumps({"images": [{"id": 1}], "annotations": [{"image_id": 1, "bbox": [0, 0, 2, 2]}]}).encode(),
        **images(),
    },
    "`labels.csv` with a column for each class, whose names begin with a blank": {
        "labels.csv": table("file, Red, Wet, Dry", *((f"images/{n}.png", *(f" {int(n % 3 == at)}" for at in range(3))) for n in NUMBERS)),
        **images(),
    },
    "`labels.csv` with `/home/ann/cats/images/1.png,cat`": {"labels.csv": listing(path="/home/ann/cats/images/{}.png"), **images()},
    "`data/legend.csv` with `1,cat`, `part1/1.png`, `part2/2.png`": {
        "data/legend.csv": listing(path="{}"),
        **images("part1", range(6)),
        **images("part2", range(6, 12)),
    },
    "`train.csv`, `test.csv`, `images/1.png`": TRAIN_TEST,
    "`train.txt`, `test.txt` with `images/1.png`, a space or a comma, and `0`": {
        "train.txt": b"".join(f"images/{n}.png {n % 2} 7\n".encode() for n in NUMBERS),
        "test.txt": b"".join(f"images/{n}.png, {n % 2}, 7\n".encode() for n in range(4)),
        **images(),
    },
    "`list.txt` with a line of names, `images/1.png,cat`": {"list.txt": listing(), "README.txt": b"about", **images()},
    "`my cats/1.png`, `my dogs/2.png`, `list.txt` with `my cats/1.png good`, `boxes.txt` with numbers": {
        "boxes.txt": b"1 60.5 27\n2 13 41.5\n",
        "list.txt": "".join(f"my {LABELS[number % 2]}s/{number}.png good\n" for number in NUMBERS).encode(),
        **{f"my {LABELS[number % 2]}s/{number}.png": picture(number) for number in NUMBERS},
    },
    "`labels.csv` with a column of `train`, `valid` and `test`": {
        "labels.csv": listing(names="file,kind,part", more=lambda number: [("train", "valid", "test")[number % 6 // 2]]),
        **images(),
    },
    "`labels.csv` with a column `is_test` of truth values": {
        "labels.csv": listing(names="file,kind,is_test", more=lambda number: [number % 4 > 1]),
        **images(),
    },
    "`train.csv`, `sample_submission.csv`, `train/1.png`, `test/1.png`": {
        "train.csv": listing(path="{}"),
        "sample_submission.csv": table("file,kind", *((number, 0) for number in NUMBERS)),
        **images("train"),
        **{f"test/{number}.png": picture(50 + number) for number in NUMBERS},
    },
    "`labels.csv` with a row for each label of an image": {
        "labels.csv": table("file,kind", *((f"images/{number // 2}.png", LABELS[number % 2]) for number in range(24))),
        **images(),
    },
    "`labels.csv` that lists a missing image": {"labels.csv": listing(range(13)), **images()},
    "`labels.csv` that lists missing images only": {"labels.csv": listing(path="other/x{}.png"), **images()},
    "`cat/1.png`, `labels.csv` that lists them": by_class("cat", "dog")
    | {"labels.csv": table("file,kind", *((name, name[:3]) for name in by_class("cat", "dog")))},
    "`cat/1.png`, `colours.csv` that lists none": by_class("cat", "dog")
    | {"colours.csv": table("name,colour", *((number, ("red", "blue")[number % 2]) for number in NUMBERS))},
    "`part1/1.png`, `part2/2.png`, `labels.csv` with `1,cat,old`, `pixels.csv`": {
        "pixels.csv": table("p1,p2,kind", *((n + 0.5, n / 8, LABELS[n % 2]) for n in NUMBERS)),
        "labels.csv": listing(path="{}", names="id,kind,age", more=lambda number: [("old", "new", "used")[number % 3]]),
        **images("part1", range(6)),
        **images("part2", range(6, 12)),
    },
    "`labels.csv` with columns of 0 and 1": {
        "labels.csv": table("file,small,old,wet", *((f"images/{n}.png", n % 2, n % 3 % 2, n % 4 // 3) for n in NUMBERS)),
        **images(),
    },
    "`labels.csv` with columns of 0 and 1, and one 1 in each row, `sample_submission.csv`": {
        "sample_submission.csv": table("file,red,old,wet", *((f"images/{n}.png", 0.3, 0.3, 0.4) for n in range(3))),
        "labels.csv": table("file,red,old,wet", *((f"images/{n}.png", *(int(n % 3 == at) for at in range(3))) for n in NUMBERS)),
        **images(),
    },
    "`labels.csv` with columns `kind` and `test_result` of 0 and 1": {
        "labels.csv": listing(names="file,kind,test_result", more=lambda number: [number // 2 % 2]),
        **images(),
    },
    "`a.csv`, `b.csv` that list the same images, with two labels": {
        **dict.fromkeys(("a.csv", "b.csv"), listing(names="file,kind,age", more=lambda number: [("old", "new", "used")[number % 3]])),
        **images(),
    },
    "`patient1/1.png`, `patient1/labels.csv` that lists them": {
        f"patient{at}/{name.removeprefix('images/')}": data
        for at in (1, 2)
        for name, data in {"images/labels.csv": listing(path="{}.png"), **images(numbers=[*NUMBERS])}.items()
    },
    "`all.zip` with `labels.csv`": {"labels.csv": listing(), **images()},
    "`all.zip` with `cat/1.png`, `dogs/old/1.png`, `dogs/new/2.png`": by_class("cat", "dogs/old", "dogs/new"),
    "`all.zip` with names like `cat\\1.png`": {name.replace("/", "\\"): data for name, data in by_class("cat", "dog").items()},
    "`data/train-00000-of-00002.parquet`, names of classes inside": {
        "README.md": b"about",
        "data/train-00000-of-00002.parquet": parquet(range(8), with_bytes, ["zebra", "ant"]),
        "data/train-00001-of-00002.parquet": parquet(range(8, 12), with_bytes, ["zebra", "ant"]),
        "data/test-00000-of-00001.parquet": parquet(range(20, 24), with_bytes, ["zebra", "ant"]),
    },
    "`train.parquet` with paths, but without bytes": {
        "train.parquet": parquet(NUMBERS, lambda number: {"bytes": None, "path": f"{number}.png"}),
        **{name.removeprefix("images/"): data for name, data in images().items()},
    },
    "`train.parquet`, `test.parquet` without labels": {
        "train.parquet": parquet(NUMBERS, with_bytes),
        "test.parquet": parquet(range(20, 24), with_bytes, labelled=False),
    },
    "`train/metadata.csv`, `test/metadata.csv`": {
        f"{split}/{name}": data
        for split in ("train", "test")
        for name, data in {"metadata.csv": listing(path="{}.png"), **{f"{n}.png": picture(n + len(split)) for n in NUMBERS}}.items()
    },
    "`train.csv`, `test.csv` without labels": {
        "train.csv": texts(),
        "test.csv": table("text", *((text(number),) for number in NUMBERS)),
        "sample_submission.csv": table("id,label", *((number, 0) for number in NUMBERS)),
    },
    "`train.csv`, `test.csv` without texts": {"train.csv": texts(), "test.csv": texts("key,label")},
    "`train.csv`, `train_more.csv`": dict.fromkeys(
        ("train.csv", "train_more.csv"),
        table("text,label,age", *((text(n), LABELS[n % 2], ("old", "new", "used")[n % 3]) for n in NUMBERS)),
    ),
    "`a.tsv` with a column `hate` whose labels are `hate` and `none`": {
        "a.tsv": table("text,hate,bias", *((text(n), ("hate", "none")[n % 2], n // 2 % 2) for n in NUMBERS), sep="\t")
    },
    "`a.csv` with two texts and two labels": {
        "a.csv": table("title,body,kind,age", *((text(n), text(-n), LABELS[n % 2], ("old", "new", "used")[n % 3]) for n in NUMBERS))
    },
    "`all.zip` with `train.csv` and `test.csv` of texts": {"train.csv": texts(), "test.csv": texts(numbers=range(4))},
    "`all.zip` with `notes/a.csv` and `notes/b.csv` of texts": {f"notes/{name}.csv": texts() for name in "ab"},
    "`a.csv` with the first line `text,cat`, and the labels `cat` and `dog`": {"a.csv": texts("text,cat")},
    "`a.csv` with the names of its columns again in a line": {"a.csv": texts() + texts()},
    "`a.csv` with `;`, tabs or a bar": {"a.csv": texts(sep="|")},
    "`a.csv` that begins with `sep=`": {"a.csv": b"sep=;\n" + texts(sep=";")},
    "`a.csv.gz`": {"a.csv.gz": gzip.compress(texts())},
    "`a.json` with a list": {"a.json": json.dumps(rows(NUMBERS)).encode()},
    "`a.json` with a list for each split": {
        "a.json": json.dumps(
            {"train": [[text(n), LABELS[n % 2]] for n in NUMBERS], "oos_test": [[text(n), LABELS[n % 2]] for n in range(4)]}
        ).encode()
    },
    "`a.tsv` with texts in quotes": {"a.tsv": "".join(f'"{text(n)} ""x"""\t{LABELS[n % 2]}\n' for n in NUMBERS).encode()},
    "`a.csv` of Chinese texts": {"a.csv": table("text,label", *((each, LABELS[n % 2]) for n, each in enumerate(CHINESE)))},
    "`a.tsv` of Thai texts, without names": {"a.tsv": "".join(f"{LABELS[n % 2]}\t{each}\n" for n, each in enumerate(THAI)).encode()},
    "`a.csv` in GBK": {"a.csv": table("text,label", *((f"很好 {text(n)}", LABELS[n % 2]) for n in NUMBERS)).decode().encode("gbk")},
    "`a.csv` in UTF-16, with its mark": {"a.csv": texts().decode().encode("utf-16")},
    "`a.csv` with the labels `1` and `1.0`": {"a.csv": texts(labels=("1", "2", "1.0", "2"))},
    "`a.csv` with the labels `+1`, `1`, `-0.0` and `0`": {"a.csv": texts(labels=("+1", "-0.0", "1", "0"))},
    "`a.csv` with empty texts": {"a.csv": texts() + b",cat\n ,dog\n"},
    "`a.csv` with the label `owl` in one row": {"a.csv": texts() + b"a red owl,owl\n"},
    "`a.csv` with a number such as 2.5 for each text": {"a.csv": texts(labels=[2.5, 0.25, 4, 3.75, 1])},
    "`a.csv` with labels such as `cat;dog`": {"a.csv": texts(labels=(*LABELS, "cat;dog"))},
    "`a.jsonl` with a list of labels for each text": {
        "a.jsonl": "".join(json.dumps({"text": text(n), "labels": ([*LABELS], ["cat"], ["dog"])[n % 3]}) + "\n" for n in NUMBERS).encode()
    },
    "`a.json` with `31`, `cat` and a list in each row": {
        "a.json": json.dumps(
            [{"size": n * n, "kind": LABELS[n % 2], "parts": (["salt", "oil"], ["oil"], ["rice"])[n % 3]} for n in range(24)]
        ).encode()
    },
    "`a.csv` with `31,4.5,Oslo`, the last column called `target`": {"a.csv": measurements("target", "Oslo", "Lima")},
    "`a.csv` with `31 4.5 Oslo`, the last column called `target`": {"a.csv": measurements("target", "Oslo", "Lima").replace(b",", b"  ")},
    "`a.txt` with `31,4.5,7`": {"a.txt": measurements("target", 3, 7, 9)},
    "`a.data` with `A11`, a tab and `31`, without names": {
        "a.data": "".join(f"A1{n % 3}\t{n * n % 41}\tA9{n % 2}\n" for n in range(24)).encode()
    },
    '`a.csv` with `31  4.5`, a tab and `"red car"`, without names': {
        "a.csv": "".join(f'{n * n % 41}   {n * 7 % 12 / 2}\t"{("red", "old")[n % 2]} car"\n' for n in range(24)).encode()
    },
    "`a.csv` with `31,4.5,Oslo`, the last column called `city`": {"a.csv": measurements("city", "Oslo", "Lima")},
    "`a.csv` with `31,4.5,7`, the last column called `target`": {"a.csv": measurements("target", 3, 7, 9)},
    "`a.csv` with `31,4.5,Oslo`, the third column called `target`, and a text": {
        "a.csv": measurements("target", "Oslo", "Lima", beside=True)
    },
    "`a.csv` with names such as `Mr Rex 7` beside six other columns": {
        "a.csv": table(
            "age,name,size,town,mass,year,target",
            *(
                (20 + n * 7 % 31, f"Mr Rex {n}", n * n / 8, ("Rome", "Oslo")[n % 2], n % 7 / 2, 1990 + n % 5, LABELS[n % 3 % 2])
                for n in range(24)
            ),
        )
    },
    "`a.csv` with `31,4.5,https://a.org/1.jpg`, the second column called `target`": {
        "a.csv": table("age,target,photo", *((20 + n * n, n + 0.5, f"https://a.org/{n}.jpg") for n in NUMBERS))
    },
    "`a.csv` with `31;4.5;Oslo`, and one row that ends with another `;`": {
        "a.csv": table("age;size;target", *((f"{n};{n + 0.5};{LABELS[n % 2]}{';' * (n == 3)}",) for n in NUMBERS))
    },
    "`a.csv` with a name for two columns": {
        "a.csv": table("age,size,kind,size", *((20 + n, n + 0.5, LABELS[n % 2], n % 3) for n in NUMBERS))
    },
    "`a.csv` with two columns of texts": {
        "a.csv": table("text,reply", *((text(number), f"reply {text(number)[::-1]}") for number in NUMBERS))
    },
    "`train.en`, `train.de`, line by line": {
        f"{split}.{word}": "".join(f"{word} {text(n)}\n" for n in numbers).encode()
        for split, numbers in (("train", NUMBERS), ("test", range(3)))
        for word in ("en", "de")
    },
    "`a.de-en.de`, `a.de-en.en`, line by line": {
        f"a.de-en.{word}": "".join(f"{word} {text(n)}\n" for n in NUMBERS).encode() for word in ("de", "en")
    },
    "`train.article.txt`, `train.title.txt`, `valid.title.txt`, line by line": {
        f"{split}.{word}.txt": "".join(f"{word} {text(n)}\n" for n in numbers).encode()
        for split, numbers in (("train", NUMBERS), ("valid", range(3)))
        for word in ("article", "title")
    },
    "`a.train.txt`, `a.test.txt` with two texts and a tab between them": {
        f"a.{split}.txt": "".join(f"{text(n)}\treply {text(n)[::-1]}\n" for n in numbers).encode()
        for split, numbers in (("train", NUMBERS), ("test", range(3)))
    },
    "`src-train.txt`, `tgt-train.txt`, line by line": {
        f"{word}-{split}.txt": "".join(f"{word} {text(n)}\n" for n in numbers).encode()
        for split, numbers in (("train", NUMBERS), ("val", range(3)))
        for word in ("src", "tgt")
    },
    "`train/seq.in`, `train/label`, line by line": {
        f"{split}/{name}": content for split in ("train", "test") for name, content in (("seq.in", LINES), ("label", CLASSES))
    },
    "`train.en`, `train.de`, `dev.en`, `dev.de`, `valid.de`, `test.en`": {
        f"{split}.{word}": "".join(f"{word} {text(n)}\n" for n in NUMBERS).encode()
        for split, words in (("train", "en de"), ("dev", "en de"), ("valid", "de"), ("test", "en"))
        for word in words.split()
    },
    "`all.nl`, `all.cm`, line by line, one with a bracket first": {
        "all.nl": LINES,
        "all.cm": "".join(f"ls -l dir{n}\n" for n in NUMBERS[:-1]).encode() + b"[ 'a' 'b' ] && echo\n",
    },
    "`a/en.txt`, `a/de.txt`, `a/fr.txt`, `a/es.txt`, `b/en.txt` and so on, line by line": {
        f"{folder}/{name}.txt": LINES for folder in "ab" for name in ("en", "de", "fr", "es")
    },
    "`x_train.txt` with rows of numbers, `y_train.txt` and `y_test.txt` with labels": {
        "x_train.txt": "".join(f"{n / 7:.6e} {n / 3:.6e}\n" for n in NUMBERS).encode(),
        "y_train.txt": CLASSES,
        "y_test.txt": CLASSES,
    },
    "`a.json` with two texts in an object `translation`": {
        "a.json": "".join(json.dumps({"translation": {"en": text(n), "de": text(n)[::-1]}}) + "\n" for n in NUMBERS).encode()
    },
    "`a.csv` with texts and amounts such as `7 EUR`": {"a.csv": table("text,amount", *((text(n), f"{n} EUR") for n in NUMBERS))},
    "`a.csv` with three replies to each text": {
        "a.csv": table("text,reply", *((text(n), f"{word} {text(n)[::-1]}") for n in NUMBERS for word in ("so", "yes", "no")))
    },
    "`a.csv` with one text and two labels": {"a.csv": texts() + f"{text(1)},cat\n".encode()},
    "`train_text.txt`, `train_labels.txt`, `mapping.txt`": {
        "train_text.txt": LINES,
        "train_labels.txt": CLASSES,
        "mapping.txt": b"0\tgood\n1\tbad\n",
    },
    "`a.txt` with `cat` and a tab before each text": {"a.txt": "".join(f"{LABELS[n % 2]}\t{text(n)}\n" for n in NUMBERS).encode()},
    "`a.txt` with `__label__cat` before each text, and an `@` in it": {
        "a.txt": "".join(f"__label__{LABELS[n % 2]} {text(n)} @ann\n" for n in NUMBERS).encode()
    },
    "`train.txt`, `dev.txt` with `3`, a space, three bars and a text": {
        f"{split}.txt": "".join(f"{n % 2} ||| {text(n)}\n" for n in numbers).encode()
        for split, numbers in (("train", NUMBERS), ("dev", range(4)))
    },
    "`books.txt`, `films.txt` with a tab and `0` after each text": {
        f"{name}.txt": "".join(f"{text(n)}\t{n % 2}\n" for n in NUMBERS).encode() for name in ("books", "films")
    },
    "`train.txt`, `test.txt` with `text;label` in each line": {
        f"{split}.txt": "".join(f"{text(n)};{LABELS[n % 2]}\n" for n in NUMBERS).encode() for split in ("train", "test")
    },
    "`a.txt` with `text\\|label` in each line": {"a.txt": "".join(f"{text(n)}|{LABELS[n % 2]}\n" for n in NUMBERS).encode()},
    "`a.txt` with `text@label` in each line": {"a.txt": "".join(f"{text(n)}@{LABELS[n % 2]}\n" for n in NUMBERS).encode()},
    "`cat.txt`, `dog.txt` with a number, a text, a word and a fraction, with tabs between them": {
        f"{word}.txt": "".join(f"{start + n}\t{text(start + n)}\t{word}\t0.{n}\n" for n in range(40)).encode()
        for start, word in ((0, "cat"), (40, "dog"))
    },
    "`train.txt`, `test.txt` with an object of JSON in each line": {
        f"{split}.txt": "".join(json.dumps({"text": text(n), "label": LABELS[n % 2]}) + "\n" for n in NUMBERS).encode()
        for split in ("train", "test")
    },
    "`a.arff`, `b.arff` of Weka": dict.fromkeys(("a.arff", "b.arff"), b"@relation texts\n@data\n" + LINES),
    "`a.abc`, `b.abc` with a text in each line": {"a.abc": LINES, "b.abc": LINES},
    "`a.txt` with `__label__cat __label__red` before each text": {
        "a.txt": "".join(f"__label__{LABELS[n % 2]} __label__red {text(n)}\n" for n in NUMBERS).encode()
    },
    "`a.txt` with a tab in each line, and two in one": {
        "a.txt": "".join(f"{LABELS[n % 2]}\t{text(n)}\n" for n in range(40)).replace("2\n", "2\t\n", 1).encode()
    },
    "`texts.txt`, `labels.txt`, `README.txt`": {"texts.txt": LINES, "labels.txt": CLASSES, "README.txt": b"about\n"},
    "`texts.txt`, `labels.txt` with another number of lines": {"texts.txt": LINES, "labels.txt": CLASSES + b"1\n"},
    "`fra.txt` with two texts and a tab, `_about.txt`": {
        "fra.txt": b"".join(f"{text(n)}\t{text(99 - n)}\n".encode() for n in NUMBERS),
        "_about.txt": LINES,
    },
    "`train/pos/1.txt`, `train/unsup/2.txt`": {
        f"train/{name}/{n}.txt": text(n + 50 * at).encode() for at, name in enumerate(("pos", "neg", "unsup")) for n in NUMBERS
    },
    "`train/good/a.txt`, `test/bad/b.txt`": {
        f"{split}/{label}/{n}.txt": text(n).encode() for split in ("train", "test") for n in NUMBERS for label in [("good", "bad")[n % 2]]
    },
    "`news-train/alt.atheism/49960`, `news-test/sci.med/49961`, without suffixes": {
        f"news-{split}/{label}/{49960 + n}": text(n).encode()
        for split in ("train", "test")
        for label in ("alt.atheism", "sci.med")
        for n in NUMBERS
    },
    "`all/1.txt`, `some_train/1.txt`, `labels.csv` with `1,cat`": {
        "labels.csv": listing(path="{}"),
        **{f"{folder}/{n}.txt": text(n).encode() for folder in ("all", "some_train") for n in NUMBERS},
    },
    "`reviews.pos`, `reviews.neg` with a text in each line": {"reviews.pos": LINES, "reviews.neg": LINES},
    "`pos.txt`, `neg.txt` with a text in each line": {"pos.txt": LINES, "neg.txt": LINES},
    "`train/pos.txt`, `train/neg.txt`, `test/pos.txt` with a text in each line": dict.fromkeys(
        ("train/pos.txt", "train/neg.txt", "test/pos.txt"), LINES
    ),
    "`pos.txt`, `neg.txt`, `a/1.txt`, `b/2.txt`": {"pos.txt": LINES, "neg.txt": LINES, **by_class("a", "b", suffix="txt", content=LINES)},
    "`a.pos`, `a.neg`, `b.pos`, `b.neg`": {f"{name}.{label}": LINES for name in "ab" for label in ("pos", "neg")},
    "`TREC.train` with `0` before each text, `a.pos`, `a.neg`": {
        "TREC.train": b"".join(f"{n % 2} {text(n)}\n".encode() for n in NUMBERS),
        **{f"a.{label}": LINES for label in ("pos", "neg")},
    },
    "`labels.txt` with a label in each line": {"labels.txt": CLASSES},
    "`fold1/good/a.txt`, `fold2/good/b.txt`": by_class("fold1/good", "fold1/bad", "fold2/good", "fold2/bad", suffix="txt", content=LINES),
    "`a.npz` with `x_train`, `y_train`, `x_test`, `y_test`": {"a.npz": arrays("x_train", "y_train", "x_test", "y_test")},
    "`a.npz` with `train_images`, `train_labels`": {"a.npz": arrays("train_images", "train_labels")},
    "`a.csv` with `text,label`, `x_train.npy`": {
        "a.csv": table("text,label", *((text(n), LABELS[n % 2]) for n in NUMBERS)),
        "x_train.npy": b"",
    },
    "`a.txt`, `b/c.txt`": {"a.txt": LINES, "b/c.txt": LINES},
    "`wiki.train.tokens`, `wiki.valid.tokens`, `README.md`": {f"wiki.{split}.tokens": CORPUS for split in ("train", "valid")}
    | {"README.md": b"about"},
}


def documented() -> dict[str, tuple[str, str]]:
    """Return the answer and the sentence for each layout, from the table in docs/data-layouts.md."""
    page = (TOP / "docs/data-layouts.md").read_text(encoding="utf-8")
    lines = page.partition("| in PATH | read by |")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return {layout: (answer.strip("`"), sentence.strip("`")) for layout, answer, sentence in cells}


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, untimed: None) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(TOP / "presets", "presets")
    shutil.copy(TOP / "params.yaml", "params.yaml")


def written(layout: str) -> str:
    """Write the files of a layout, and return their path."""
    files = LAYOUTS[layout]
    if layout.startswith("`all.zip`"):
        Path("data").mkdir()
        return str(write_zip(Path("data/all.zip"), files))
    write_folder(Path("data/x"), files)
    return f"data/x/{next(iter(files))}" if len(files) == 1 else "data/x"


def test_the_table_in_the_docs_has_every_layout() -> None:
    assert [*documented()] == [*LAYOUTS]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_read_as_the_docs_say_and_the_advice_works(layout: str, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, sentence = documented()[layout]
    path = written(layout)
    code = main(["set", f"data={path}"])
    printed = "".join(capsys.readouterr())
    assert sentence in printed
    assert code == (2 if answer == "refused" else 0), printed
    if code == 0:
        assert Document.of(Path("params.yaml").read_text(encoding="utf-8"), Path("params.yaml")).data["source"]["name"] == answer
    # the parameters of a training are written once for each layout, which takes most of the time
    monkeypatch.setattr(recommending, "suited", lambda finding, *_, **__: (f"source: {{name: {finding.source['name']}}}\n", []))
    for words in followed(path, printed):
        assert main(["set", *words]) == 0, words
        assert sentence not in capsys.readouterr().out


def followed(path: str, printed: str) -> list[list[str]]:
    """Do what the message `printed` advises, and return the words of `set` that should then succeed."""
    if renamed := re.search(r"rename (?:it to )?(\S+?)(?: to (\S+?))?,", printed):
        target = Path(path).with_name(Path(renamed[2] or renamed[1]).name)
        shutil.copy(path, target)
        return [[f"data={target}"], *([["data=" + path, "source=text"]] if "source=text" in printed else [])]
    if unpacked := re.search(r"unpack it with `python ([^`]+)`", printed):
        subprocess.run([sys.executable, *shlex.split(unpacked[1])], check=True)
    if "Labels in the names of files" in printed:
        recipe = re.search(
            r"```python\n(.*?)```", (TOP / "docs/data.md").read_text(encoding="utf-8").partition("Labels in the names")[2], re.DOTALL
        )
        assert recipe
        exec(recipe[1].replace("data/raw/pets/images", "data/x/train").replace("*.jpg", "*.png"), {})  # noqa: S102  # the docs' own
        return [["data=data/x/train"]]
    if joined := re.search(r"`(paste [^`]+)`", printed):
        subprocess.run(["bash", "-c", joined[1]], check=True)  # which the message is for
        return [[f"data={path}", "source.label_column=3"]]
    if named_encoding := re.search(r"`python -m pipeline set (\S+ source.encoding=)\w+`", printed):
        return [[*shlex.split(f"{named_encoding[1]}{name}")] for name in re.findall(r'(\w+)` for "', printed)]
    if "train_text.txt beside" in printed:
        Path("data/x/train_text.txt").write_bytes(LINES)
        Path(path).rename("data/x/train_labels.txt")
        return [["data=data/x"]]
    answers = list[list[str]]()
    for either in re.split("; or |; (?=if these are texts)", printed):
        questions = [[shlex.split(word)[0] for word in ADDED.findall(question)] for question in either.split("; and ")]
        several = (words for words in product(*questions) if words)
        answers += [[*words] if words[0].startswith("data=") else [f"data={path}", *words] for words in several]
    return answers
