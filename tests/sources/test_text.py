"""Files of text as a corpus: every token is in one row, splits are divided as documented, and what cannot be divided is refused."""

import random

import pytest

from pipeline.core.environment import Environment, Paths
from pipeline.core.prepared import Prepared
from pipeline.core.refusal import Refusal
from pipeline.core.tokenizer import Tokenizer
from pipeline.core.tokenizer_description import END, PAD, UNKNOWN
from pipeline.prepare.inputs import corpus
from pipeline.prepare.inputs.corpus import Document, divide_by_name, divide_by_position, divide_by_split
from pipeline.prepare.reading import streams
from pipeline.prepare.stage import prepare
from pipeline.sources import text
from tests.pretrained_tokenizers import FITTED

from . import settings

BYTE = {"tokenizer": "byte", **FITTED, "vocabulary": None, "min_count": None, "normalization": [], "max_length": 8}
CHARACTER = {"tokenizer": "character", "vocabulary": 100, "min_count": 1}


def params(root, **changes):
    return settings.params(text.Settings, root, **{"valid": 0.25, "test": 0.2, "pattern": "*.txt"} | BYTE | changes)


def run(root, top, **changes):
    prepare(params(root, **changes), Paths(top), Environment())
    return Prepared.open(Paths(top).prepared)


def refusal(root, top, **changes):
    with pytest.raises(Refusal) as caught:
        run(root, top, **changes)
    return str(caught.value)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def tokens_of(prepared, split):
    return prepared.splits[split].inputs.ravel().tolist()


def test_a_file_is_divided_by_position_into_rows_of_tokens(tmp_path, capsys):
    content = "abcdefghijklmnopqrstuvwxyz0123456789ABCD"
    prepared = run(write(tmp_path / "a", content), tmp_path)
    tokenizer = Tokenizer(prepared.spec.inputs.tokenizer)
    assert prepared.spec.targets.kind == "language_modeling"
    assert {name: split.targets.shape for name, split in prepared.splits.items()} == {"train": (3, 0), "valid": (2, 0), "test": (2, 0)}
    assert tokens_of(prepared, "train") == [END, *tokenizer.encode(content[:23])]
    assert tokens_of(prepared, "valid") == [END, *tokenizer.encode(content[24:32]), *[PAD] * 7]
    assert tokens_of(prepared, "test") == [END, *tokenizer.encode(content[32:]), *[PAD] * 7]
    assert prepared.spec.inputs.lengths(prepared.splits["test"].inputs).tolist() == [8, 1]
    output = capsys.readouterr().out
    assert "prepare: valid: 1 document, 9 tokens\n" in output
    assert "is not used" not in output


def test_files_of_a_folder_are_joined_in_order_with_an_end_before_each(tmp_path):
    for name, content in {
        "b.txt": "bbbb",
        "a/z.txt": "zzzz",
        ".hidden.txt": "hhhh",
        "c.md": "mmmm",
        "empty.txt": "",
        "d.txt": "dd",
    }.items():
        write(tmp_path / "data" / name, content)
    prepared = run(tmp_path / "data", tmp_path, max_length=5, valid=0.0, test=0.2)
    tokenizer = Tokenizer(prepared.spec.inputs.tokenizer)
    assert tokens_of(prepared, "train") == [END, *tokenizer.encode("zzzz"), END, *tokenizer.encode("bbbb")]
    assert tokens_of(prepared, "test") == [END, *tokenizer.encode("dd"), PAD, PAD]
    assert set(prepared.splits) == {"train", "test"}


def test_a_cut_within_a_document_divides_it():
    texts = {"a": "a" * 5, "b": "b" * 35}
    divided = divide_by_position([Document.of(name, text) for name, text in texts.items()], valid=0.25, test=0.2)
    found = ["".join(piece for part in divided[split] for piece in part.pieces()) for split in ("train", "valid", "test")]
    assert found == ["a" * 5 + "b" * 19, "b" * 8, "b" * 8]


def test_files_belong_to_the_splits_that_their_names_mean():
    named = [Document.of(name, "x" * 40) for name in ("a/test/1.txt", "ptb.train.txt", "train-2.txt")]
    divided = divide_by_split(named, valid=0.25, test=0.2)
    assert [part.name for part in divided["test"]] == ["a/test/1.txt"]
    assert [(part.name, part.start, part.end) for part in divided["train"]] == [("ptb.train.txt", 0, 40), ("train-2.txt", 0, 20)]
    assert [(part.name, part.start, part.end) for part in divided["valid"]] == [("train-2.txt", 20, 40)]
    with pytest.raises(Refusal, match=r"source.divide: b.txt: its name means no split: put train, valid or test into it"):
        divide_by_split([*named, Document.of("b.txt", "x")], valid=0.25, test=0.2)


def test_a_readme_belongs_to_no_split(tmp_path):
    for name in ("wiki.train.txt", "wiki.valid.txt", "wiki.test.txt", "README.txt"):
        write(tmp_path / "data" / name, "ab" * 40)
    assert list(run(tmp_path / "data", tmp_path, divide="splits").splits) == ["train", "valid", "test"]


def test_files_are_assigned_whole_by_their_names():
    documents = [Document.of(f"{number}.txt", "x" * (50 + number)) for number in range(100)]
    divided = divide_by_name(documents, valid=0.1, test=0.2)
    assert sorted(document.name for parts in divided.values() for document in parts) == sorted(document.name for document in documents)
    sizes = {split: sum(document.num_characters for document in parts) for split, parts in divided.items()}
    assert 0.2 <= sizes["test"] / sum(sizes.values()) < 0.22
    assert 0.1 <= sizes["valid"] / (sizes["train"] + sizes["valid"]) < 0.12
    backwards = divide_by_name(documents[::-1], valid=0.1, test=0.2)["test"]
    assert backwards == divided["test"][::-1]


@pytest.mark.parametrize("tokenizer", ["byte", "character", "word", "bpe"])
def test_a_long_document_is_read_in_pieces_without_another_token(tmp_path, monkeypatch, tokenizer):
    draw = random.Random(3)
    ends = ("\n", "\n\n", " \n", "\n ", "\t", " ", "  ", ".\n", "\r\n", "é\n", "\n\u0301")
    write(tmp_path / "a" / "a.txt", "".join(draw.choice(("ab", "word", "9", "Ünder", "_x", "'s")) + draw.choice(ends) for _ in range(400)))
    fitted = {} if tokenizer == "byte" else {"vocabulary": 300, "min_count": 1}
    runs = []
    for sizes in ((corpus.PIECE_CHARACTERS, streams.BLOCK_BYTES), (20, 7)):
        monkeypatch.setattr(corpus, "PIECE_CHARACTERS", sizes[0])
        monkeypatch.setattr(streams, "BLOCK_BYTES", sizes[1])
        prepared = run(tmp_path / "a", tmp_path, tokenizer=tokenizer, normalization=["nfkc", "lowercase"], **fitted)
        runs.append((prepared.spec, {split: tokens_of(prepared, split) for split in prepared.splits}))
    assert runs[0] == runs[1]
    assert len(list(Document.of("a", "ab\ncd" * 20).pieces())) > 1


def test_a_large_corpus_is_tokenized_in_processes_and_its_tokenizer_fitted_to_a_part(tmp_path, monkeypatch, capsys):
    draw = random.Random(5)
    for name in "abc":
        write(tmp_path / "a" / f"{name}.txt", "".join(draw.choice(("ab", "word", "9")) + draw.choice((" ", "\n")) for _ in range(400)))
    monkeypatch.setattr(corpus, "PIECE_CHARACTERS", 20)
    bpe = {"tokenizer": "bpe", "vocabulary": 300, "min_count": 1}
    alone = run(tmp_path / "a", tmp_path, **bpe)
    monkeypatch.setattr(corpus, "MANY_CHARACTERS", 1)
    prepare(params(tmp_path / "a", **bpe), Paths(tmp_path), Environment(PIPELINE_WORKERS=2))
    beside = Prepared.open(Paths(tmp_path).prepared)
    assert beside.digest == alone.digest
    monkeypatch.setattr(corpus, "MOST_FITTED", 500)
    monkeypatch.setattr(corpus, "MANY_CHARACTERS", 2**25)
    part = run(tmp_path / "a", tmp_path, **bpe)
    assert part.spec.inputs.tokenizer != alone.spec.inputs.tokenizer
    assert "tokens, fitted to one of 5 pieces of train" in capsys.readouterr().out


def test_characters_that_train_lacks_are_unknown_and_counted(tmp_path, capsys):
    prepared = run(write(tmp_path / "a", "ab" * 10 + "xbxb"), tmp_path, **CHARACTER, valid=0.0, max_length=4)
    assert prepared.spec.inputs.tokenizer.vocabulary == ("a", "b")
    assert tokens_of(prepared, "test") == [END, 4, UNKNOWN, 4, UNKNOWN, 4, PAD, PAD]
    output = capsys.readouterr().out
    assert "prepare: test: 1 document, 6 tokens, 2 of them not in the vocabulary\n" in output
    assert "prepare: train: 1 document, 20 tokens\n" in output


LONG = "ab" * 40
REFUSED = {
    "no file": (
        {"a.md": LONG},
        {},
        "source.pattern: ",
        "no file with text whose path matches `*.txt`: change source.pattern, or add files",
    ),
    "a corpus shorter than a row": ({"a.txt": "abcdefghij"}, {}, "source.max_length: train has 7 tokens, but a row needs 8", "add text"),
    "two files in three": ({"a.txt": LONG, "b.txt": LONG}, {"divide": "files"}, "source.test: ", "nothing is left for train"),
    "a share of no character": ({"a.txt": LONG}, {"test": 0.001}, "source.test: ", "nothing is left for test"),
    "no token": (
        {"a.txt": "a b " * 30 + " " * 60},
        {**CHARACTER, "tokenizer": "word"},
        "source.test: ",
        "the documents of test have no tokens",
    ),
    "a NUL": ({"a.txt": "abc\n\n\0"}, {}, "source.root: ", "a.txt:3: has a NUL character"),
}


@pytest.mark.parametrize(("contents", "changes", "start", "end"), REFUSED.values(), ids=REFUSED)
def test_a_corpus_that_cannot_be_used_is_refused_with_the_remedy(tmp_path, contents, changes, start, end):
    for name, content in contents.items():
        write(tmp_path / "data" / name, content)
    message = refusal(tmp_path / "data", tmp_path, **changes)
    assert message.startswith(start)
    assert end in message
