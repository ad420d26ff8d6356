"""Texts that are not UTF-8: what the refusal shows, and that the encoding that is named reads them."""
# ruff: noqa: RUF001  # the texts are in other scripts

import re
from pathlib import Path

import pytest

from pipeline.core.refusal import Refusal
from pipeline.prepare.reading import encodings, tables

TEXTS = {
    "cp1252": "une soirée très agréable à l’hôtel, déjà\nnaïve Größe über straße\n",
    "cp1250": "bardzo zły dzień, źdźbło\n",
    "cp1251": "очень хороший день, Москва и погода\nплохо, но быстро\n",
    "gbk": "这个电影很好，我们都喜欢看。\n不好 a very dull day\n",
    "big5": "這個電影很好，我們都喜歡看。\n不好的天氣\n",
    "cp932": "この映画はとても良かったです。\nカメラは悪い\n",
    "cp949": "이 영화는 정말 좋았습니다\n나쁜 하루\n",
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_encoding_whose_text_reads_right_reads_the_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,label\n" + TEXTS[name].encode(name))
    with pytest.raises(Refusal, match=r"a\.csv:2: is not UTF-8 ") as caught:
        tables.read_text(path)
    foreign = re.findall(r"[^\x00-\x7f].*", TEXTS[name])[0][:10]
    assert f'{name}` for "{foreign}' in str(caught.value)
    assert tables.read_text(path, encoding=name) == "text,label\n" + TEXTS[name]


def test_a_byte_order_mark_says_the_encoding(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for codec in ("utf-16", "utf-32", "utf-8-sig"):
        path.write_bytes("text,é\n".encode(codec))
        assert tables.read_text(path) == tables.read_text(path, encoding="gbk") == "text,é\n"


def test_bytes_of_no_known_encoding_name_none(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(bytes(range(128, 256)) * 3)
    with pytest.raises(Refusal, match=r"byte 0x80\): name its encoding by `python -m pipeline set source.encoding=NAME`, an encoding"):
        tables.read_text(path)


def test_only_encodings_of_files_that_python_knows_are_names() -> None:
    assert [encodings.known(name) for name in ("GB18030", "latin-1", "utf-16-le")] == ["GB18030", "latin-1", "utf-16-le"]
    for name in ("gbkk", "", "a\0", "base64", "undefined", "idna", "unicode_escape"):
        with pytest.raises(ValueError, match="is no encoding that Python knows: write utf-8, or for example cp1252"):
            encodings.known(name)
