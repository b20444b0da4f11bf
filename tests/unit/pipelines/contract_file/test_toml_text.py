"""Files that no editor of contracts meant to write get one clear message, whatever is in them."""

import json
import os
import re

import pytest

from minimal_contract import MINIMAL
from perennial.contract import Contract, load_contract
from perennial.contract_file.likely_values import sections_in
from perennial.contract_file.sections import ContractError
from perennial.contracts.errors import PerennialError

pytestmark = pytest.mark.hostile


def write(folder, content):
    path = folder / "contract.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# what is wrong with the file → its content, and what the message must contain
FILES = {
    "utf-16": (MINIMAL.encode("utf-16"), ["UTF-16", "save it as UTF-8"]),
    "latin-1": (MINIMAL.replace("clicks", "clés").encode("latin-1"), ["line 2", "0xe9", "UTF-8"]),
    "binary": (os.urandom(64) + b"\xff", ["UTF-8"]),
    "ten megabytes": (MINIMAL + "# x\n" * 2_500_000, ["longer than 1 MiB", "10,000"]),
    "nested lists": (MINIMAL + "[model.options]\na = " + "[" * 5000 + "]" * 5000, ["levels"]),
    "nested tables": (MINIMAL + "[model.options]\n" + ".".join("a" * 400) + " = 1\n", ["levels"]),
    "a long integer": (MINIMAL + "[training]\nsteps = " + "9" * 5000, ["5,000 digits", ":9"]),
    "a long hexadecimal": (MINIMAL + "[training]\nsteps = 0x" + "f" * 5000, ["64 bits", "steps"]),
    "65 bits": (MINIMAL + "[model.options]\na = 36893488147419103232\n", ["64 bits"]),
    "infinity in options": (MINIMAL + "[model.options]\na = [{ b = inf }]\n", ["finite", "options"]),
    "not a number": (MINIMAL + "[gate]\nmin_improvement = nan\n", ["nan", "finite", ":9"]),
    "NUL in the address": (MINIMAL.replace('"data"', '"da\\u0000ta"'), ["control characters", ":5"]),
    "escape in a name": (MINIMAL.replace('"clicked"', '"\\u001b[2J"'), ["control characters"]),
    "control in a key": (MINIMAL + '[model.options]\n"a\\u0007" = 1\n', ["control characters"]),
    "a date for a text": (MINIMAL + "[registry]\ndescription = 2026-01-01\n", ["no date", "a text is meant"]),
    "only a comment": ("# nothing\n", ["[model]", "required"]),
    "empty": ("", ["[model]", "required"]),
}  # fmt: skip


@pytest.mark.parametrize("mistake", FILES)
def test_file_is_refused_with_the_place_and_what_to_do(tmp_path, mistake):
    content, expected = FILES[mistake]
    with pytest.raises(PerennialError) as caught:
        load_contract(write(tmp_path, content))
    for words in expected:
        assert words in str(caught.value)
    assert len(str(caught.value)) < 3000


@pytest.mark.parametrize("name", ["a folder", "a pipe", "nothing", "a\0name"])
def test_what_is_not_a_file_is_refused_at_once(tmp_path, name):
    path = tmp_path / name
    if name == "a folder":
        path.mkdir()
    if name == "a pipe":
        os.mkfifo(path)
    with pytest.raises(PerennialError, match=r"cannot be read|not a regular file"):
        load_contract(path)


def test_thousands_of_mistakes_are_counted_and_twenty_shown(tmp_path):
    lines = "".join(f"wrong_{number} = 1\n" for number in range(5000))
    with pytest.raises(ContractError, match="20 mistakes or more") as caught:
        load_contract(write(tmp_path, MINIMAL + "[training]\n" + lines))
    assert "wrong_19" in str(caught.value)
    assert "wrong_20 " not in str(caught.value)


@pytest.mark.parametrize("name", ["clicks-", "-clicks", "Clicks", "c" * 64, "1clicks", "clicks\\n"])
def test_model_name_that_kubernetes_refuses_is_refused_here(tmp_path, name):
    text = MINIMAL.replace('"clicks"', f'"{name}"')
    with pytest.raises(ContractError, match="model"):
        load_contract(write(tmp_path, text))


def options_of(section, prefix=()):
    for name, field in section.model_fields.items():
        yield (*prefix, name)
        for inner in sections_in(field.annotation):
            yield from options_of(inner, (*prefix, name))


def with_option(path, value):
    """The minimal contract with one option set."""
    section, *rest = path
    line = f"{'.'.join(rest)} = {value}\n"
    text = re.sub(rf"(?m)^{rest[0]} = .*\n", "", MINIMAL) if f"[{section}]" in MINIMAL else MINIMAL
    head = f"[{section}]\n"
    return text.replace(head, head + line) if head in text else text + head + line


VALUES = ("inf", "nan", "9" * 5000, "36893488147419103232", '"\\u0000"', "[[[]]]", "07:32:00", "{ a = nan }")  # fmt: skip
OPTIONS = [path for path in options_of(Contract) if len(path) > 1]


@pytest.mark.parametrize("path", OPTIONS, ids=".".join)
def test_no_option_takes_a_value_that_cannot_be_carried(tmp_path, path):
    """Whatever is accepted can be written as JSON again; whatever is not gets a clear message."""
    for value in VALUES:
        try:
            contract = load_contract(write(tmp_path, with_option(path, value)))
        except PerennialError:
            continue
        assert Contract.from_json(contract.to_json()) == contract, value
        assert value in ("[[[]]]", "07:32:00"), value


def test_healthy_files_of_all_editors_are_read(tmp_path):
    expected = load_contract(write(tmp_path, MINIMAL))
    with_mark = b"\xef\xbb\xbf" + MINIMAL.encode()
    assert load_contract(write(tmp_path, with_mark)) == expected
    assert load_contract(write(tmp_path, MINIMAL.replace("\n", "\r\n"))) == expected
    link = tmp_path / "link.toml"
    link.symlink_to(write(tmp_path, MINIMAL))
    assert load_contract(link) == expected


def test_texts_and_dates_of_a_task_stay_as_they_were_written(tmp_path):
    lines = '[model.options]\nsince = 2026-01-01\nwords = "tab\\tline\\nüñî"\n'
    contract = load_contract(write(tmp_path, MINIMAL + lines))
    assert contract.model.options == {"since": "2026-01-01", "words": "tab\tline\nüñî"}


@pytest.mark.parametrize(
    "address",
    [
        "s3://AKIA7:hunter2@bucket/rows",
        "s3://hunter2@bucket/rows",
        "s3://bucket/rows?X-Amz-Signature=hunter2",
        "https://bucket/rows?sig=hunter2&x=1",
        "https://me:hunter2@[bad/rows",
    ],
)
@pytest.mark.parametrize("option", ["data.uri", "model.options.source", "expectations.suite"])
def test_an_address_with_a_password_is_refused_and_not_repeated(tmp_path, option, address):
    with pytest.raises(ContractError, match="address without user") as caught:
        load_contract(write(tmp_path, with_option(option.split("."), json.dumps(address))))
    assert "hunter2" not in str(caught.value)
    assert option.rpartition(".")[2] in str(caught.value)


@pytest.mark.parametrize(
    "address",
    ["s3://bucket/a:b@c/rows?v=1", "rows@home:8/x", "file:///a@b/c", "mail me@x.org: [now"],
)
def test_addresses_and_texts_without_a_password_are_taken(tmp_path, address):
    lines = f"[model.options]\nsource = {json.dumps(address)}\n"
    assert load_contract(write(tmp_path, MINIMAL + lines)).model.options == {"source": address}
