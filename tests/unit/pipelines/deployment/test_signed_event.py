"""An event is taken once, soon, unchanged, and only from who has the key."""

import hashlib
import hmac
import json
import shutil
import subprocess
import threading
from datetime import UTC, datetime, timedelta

import pytest

from perennial import cli
from perennial.clients.object_store import LocalObjectStore
from perennial.contracts.errors import PerennialError
from perennial.deployment.signed_event import (
    WINDOW_SECONDS,
    Event,
    Gate,
    RefusedEventError,
    checked_key,
    sign,
)

pytestmark = pytest.mark.hostile

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
KEY = b"0123456789abcdef" * 4
EVENT = Event(model="clicks", reason="labels ü $(KEY)", evidence={"rows": 120, "x": [1.5, None]})


@pytest.fixture
def gate(tmp_path):
    return Gate("clicks", KEY, LocalObjectStore(tmp_path))


def later(seconds):
    return NOW + timedelta(seconds=seconds)


def test_a_signed_event_is_accepted_with_its_reason_and_evidence(gate):
    assert gate.accept(sign(EVENT, KEY, NOW), "job", later(10)) == EVENT


@pytest.mark.parametrize("seconds", [-WINDOW_SECONDS, 0, WINDOW_SECONDS])
def test_an_event_within_the_window_is_accepted(gate, seconds):
    gate.accept(sign(EVENT, KEY, NOW), "job", later(seconds))


@pytest.mark.parametrize("seconds", [-WINDOW_SECONDS - 1, WINDOW_SECONDS + 1, 86400 * 365])
def test_an_expired_event_or_one_of_the_future_is_refused(gate, seconds):
    with pytest.raises(RefusedEventError, match="is outside of the time window") as caught:
        gate.accept(sign(EVENT, KEY, NOW), "job", later(seconds))
    assert f"{seconds:+d} s" in caught.value.evidence


def test_a_repeated_event_is_refused_and_the_same_handler_may_come_again(gate):
    body = sign(EVENT, KEY, NOW)
    gate.accept(body, "job-1", NOW)
    for seconds in (0, WINDOW_SECONDS * 3):  # a Job tries again for longer than the window
        assert gate.accept(body, "job-1", later(seconds)).reason == EVENT.reason
        with pytest.raises(RefusedEventError, match="was accepted before"):
            gate.accept(body, "job-2", later(seconds))
    gate.accept(sign(EVENT, KEY, later(1)), "job-2", later(1))


def test_of_many_at_once_one_is_accepted(gate):
    body, taken = sign(EVENT, KEY, NOW), []
    start = threading.Barrier(8)

    def attempt(number):
        start.wait()
        try:
            gate.accept(body, f"job-{number}", NOW)
        except RefusedEventError:
            return
        taken.append(number)

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 1


@pytest.mark.parametrize("part", ["event", "timestamp", "signature"])
def test_a_body_that_was_changed_is_refused_and_leaves_the_event_free(gate, part):
    body = json.loads(sign(EVENT, KEY, NOW))
    changed = {
        "event": body["event"].replace("120", "121"),
        "timestamp": body["timestamp"] + 1,
        "signature": "0" * 64,
    }
    with pytest.raises(RefusedEventError, match="signature does not fit"):
        gate.accept(json.dumps(body | {part: changed[part]}), "thief", NOW)
    gate.accept(json.dumps(body), "job", NOW)


def test_another_key_is_refused(gate):
    with pytest.raises(RefusedEventError, match="signature does not fit"):
        gate.accept(sign(EVENT, KEY[::-1], NOW), "job", NOW)


def test_an_event_about_another_model_is_refused(gate):
    other = EVENT.model_copy(update={"model": "flights"})
    with pytest.raises(RefusedEventError, match="about the model 'flights'"):
        gate.accept(sign(other, KEY, NOW), "job", NOW)


@pytest.mark.parametrize(
    ("timestamp", "evidence", "message"),
    [
        (int(NOW.timestamp()), "NaN", "not JSON compliant"),
        (10**400, "1", "timestamp: Input should"),
    ],
)
def test_a_signed_event_that_no_run_can_carry_is_refused_and_claims_nothing(
    gate, timestamp, evidence, message
):
    text = f'{{"model": "clicks", "reason": "drift", "evidence": {{"psi": {evidence}}}}}'
    signature = hmac.new(KEY, f"{timestamp}.{text}".encode(), hashlib.sha256).hexdigest()
    body = json.dumps({"event": text, "timestamp": timestamp, "signature": signature})
    with pytest.raises(RefusedEventError, match="is not a signed event") as caught:
        gate.accept(body, "job", NOW)
    assert message in caught.value.evidence
    assert gate.store.list() == []


def test_time_and_text_cannot_be_cut_differently(gate):
    """`1.2x` is neither 1 and `2x` nor 12 and `x`: the time is a number, and ends at the dot."""
    body = json.loads(sign(EVENT, KEY, NOW))
    moved = {
        "timestamp": body["timestamp"] // 10,
        "event": f"{body['timestamp'] % 10}.{body['event']}",
    }
    with pytest.raises(RefusedEventError, match="signature does not fit"):
        gate.accept(json.dumps(body | moved), "job", NOW)


@pytest.mark.parametrize(
    "body",
    ["", "null", "[]", "{}", "<html>", '{"reason": "labels corrected"}', "[" * 100_000, "\0",
     '{"event": 1, "timestamp": 1, "signature": "x"}', '{"event": "{}", "timestamp": "1", "signature": ""}',
     '{"event": "{}", "timestamp": 1e400, "signature": ""}', '{"event": "\\ud800", "timestamp": 1, "signature": "é"}'],
)  # fmt: skip
def test_what_is_not_a_signed_event_is_refused_with_its_form(gate, body):
    with pytest.raises(RefusedEventError) as caught:
        gate.accept(body, "job", NOW)
    assert caught.value.evidence
    assert caught.value.action


@pytest.mark.parametrize(
    "event", ["{}", "x", '{"model":"clicks"}', '{"model":"clicks","reason":1}']
)
def test_a_signed_text_that_is_not_an_event_is_refused(gate, event):
    import hashlib
    import hmac

    stamp = int(NOW.timestamp())
    signature = hmac.new(KEY, f"{stamp}.{event}".encode(), hashlib.sha256).hexdigest()
    body = json.dumps({"event": event, "timestamp": stamp, "signature": signature})
    with pytest.raises(RefusedEventError, match="the event is not a signed event"):
        gate.accept(body, "job", NOW)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_the_signature_of_the_pages_shell_lines_fits(gate):
    page = (cli.Path(__file__).resolve().parents[4] / "k8s" / "README.md").read_text()
    (line,) = (each for each in page.splitlines() if each.startswith("signature=$(printf"))
    event = EVENT.to_json()
    stamp = str(int(NOW.timestamp()))
    script = f"{line}\nprintf %s $signature"
    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, check=True,
        env={"PATH": "/usr/bin:/bin", "event": event, "timestamp": stamp, "KEY": KEY.decode()},
    )  # fmt: skip
    body = {"event": event, "timestamp": int(stamp), "signature": done.stdout}
    gate.accept(json.dumps(body), "job", NOW)


def test_the_verb_signs_what_the_gate_takes(gate, tmp_path, capsys):
    (tmp_path / "key").write_bytes(KEY + b"\n")
    arguments = [
        "sign",
        "clicks",
        "--key",
        str(tmp_path / "key"),
        "--reason",
        "-5%",
        "--evidence",
        '{"a":1}',
    ]
    assert cli.main(arguments) == 0
    accepted = gate.accept(capsys.readouterr().out, "job", datetime.now(UTC))
    assert (accepted.reason, accepted.evidence) == ("-5%", {"a": 1})


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 31 + b"\n"])
def test_a_key_that_can_be_guessed_is_refused(content):
    with pytest.raises(PerennialError, match="signing key has"):
        checked_key(content)


def test_an_event_that_the_wrong_receiver_refused_is_free_for_the_right_one(gate):
    """Both receivers share the key and the store."""
    body = sign(EVENT, KEY, NOW)
    with pytest.raises(RefusedEventError, match="is about the model 'clicks'"):
        Gate("flights", KEY, gate.store).accept(body, "job-1", NOW)
    assert gate.accept(body, "job-2", NOW) == EVENT
