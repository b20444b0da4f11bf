"""Long texts reach steps by an address that contains the digest."""

import pytest

from perennial.clients.object_store import open_store
from perennial.contracts.errors import PerennialError
from perennial.steps.parameters import CARRIED_BYTES, LargeParameter, resolve

LONG = '{"columns":"' + "ü" * CARRIED_BYTES + '"}'


@pytest.fixture(params=["a folder", "S3"])
def store_uri(request, tmp_path):
    if request.param == "a folder":
        return str(tmp_path / "store")
    return f"{request.getfixturevalue('bucket')}/team/store"


def test_what_kfp_can_carry_is_sent_as_itself_and_touches_no_store():
    parameter = LargeParameter("x" * CARRIED_BYTES, "s3://there-is/no-such-bucket")
    assert parameter.exists_in_store
    assert resolve(parameter.store()) == parameter.text


def test_a_long_text_is_sent_by_its_address_and_arrives_as_it_was(store_uri):
    parameter = LargeParameter(LONG, store_uri)
    assert not parameter.exists_in_store
    assert parameter.store() == parameter.value
    assert len(parameter.value) < len(store_uri) + 100
    assert parameter.exists_in_store
    assert resolve(parameter.value) == LONG


def test_the_limit_counts_bytes_and_equal_texts_have_one_address(store_uri):
    over = "ü" * (CARRIED_BYTES // 2 + 1)
    addresses = {
        LargeParameter(over, store_uri).store(),
        LargeParameter(over, f"{store_uri}/").store(),
    }
    assert len(addresses) == 1
    assert addresses != {over}
    assert LargeParameter(LONG, store_uri).value not in addresses


def test_a_missing_text_is_named_with_the_command_that_restores_it(store_uri):
    address = LargeParameter(LONG, store_uri).store()
    open_store(store_uri).delete(address.removeprefix(f"{store_uri}/"))
    with pytest.raises(PerennialError, match=r"there is no .*/parcels/") as caught:
        resolve(address)
    assert "`perennial deploy` or `submit`" in caught.value.action
    assert "--new" in caught.value.action


def test_another_text_under_the_address_is_noticed_and_replaced(store_uri):
    parameter = LargeParameter(LONG, store_uri)
    address = parameter.store()
    open_store(store_uri).write(address.removeprefix(f"{store_uri}/"), LONG.upper().encode())
    with pytest.raises(PerennialError, match="is not what was stored") as caught:
        resolve(address)
    assert "SHA-256" in caught.value.evidence
    assert not parameter.exists_in_store
    parameter.store()
    assert resolve(address) == LONG


@pytest.mark.parametrize("value", ["{}", "", "s3://b/other.json", "a\n/parcels/" + "0" * 64])
def test_nothing_else_is_taken_for_an_address(value):
    assert resolve(value) == value
