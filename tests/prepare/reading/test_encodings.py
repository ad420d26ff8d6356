"""Texts that are not UTF-8: what is recognised, and that the command in the refusal works."""
# ruff: noqa: RUF001  # the texts are in other scripts

import re
import subprocess
from pathlib import Path

import pytest

from pipeline.core.refusal import Refusal
from pipeline.prepare.reading import tables

TEXTS = {
    "CP1252": "une soirée très agréable à l’hôtel, déjà\nnaïve Größe über straße\n",
    "CP1250": "bardzo zły dzień, źdźbło\n",
    "CP1251": "очень хороший день, Москва и погода\nплохо, но быстро\n",
    "GBK": "这个电影很好，我们都喜欢看。\n不好 a very dull day\n",
    "BIG5": "這個電影很好，我們都喜歡看。\n不好的天氣\n",
    "CP932": "この映画はとても良かったです。\nカメラは悪い\n",
    "CP949": "이 영화는 정말 좋았습니다\n나쁜 하루\n",
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_command_for_an_encoding_converts_the_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,label\n" + TEXTS[name].encode(name))
    with pytest.raises(Refusal, match=r"a\.csv:2: is not UTF-8 ") as caught:
        tables.read_text(path)
    foreign = re.findall(r"[^\x00-\x7f].*", TEXTS[name])[0][:20]
    assert f'{name} if it says "{foreign}' in str(caught.value)
    [command] = re.findall("`(iconv -f .*?)`", str(caught.value))
    converted = subprocess.run(command.replace("ENCODING", name).split(), input=path.read_bytes(), capture_output=True, check=True).stdout
    assert converted.decode() == "text,label\n" + TEXTS[name]


def test_a_byte_order_mark_says_the_encoding(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for codec in ("utf-16", "utf-32", "utf-8-sig"):
        path.write_bytes("text,é\n".encode(codec))
        assert tables.read_text(path) == "text,é\n"


def test_bytes_of_no_known_encoding_name_none(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(bytes(range(128, 256)) * 3)
    with pytest.raises(Refusal, match=r"byte 0x80\): convert the file by `iconv -f ENCODING -t UTF-8`$"):
        tables.read_text(path)
