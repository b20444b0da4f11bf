"""Outages are waited for within a budget, and logged; other errors are raised at once."""

import logging
from contextlib import nullcontext

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    EndpointConnectionError,
    HTTPClientError,
)
from mlflow.exceptions import MlflowException, RestException
from requests import HTTPError, Response

from perennial.clients.cluster import ApiError
from perennial.clients.object_store import ConflictError, open_store
from perennial.clients.outages import (
    OUTAGE_SECONDS,
    Persistence,
    is_outage,
    outage_seconds,
    outlast,
    outlast_once,
    single_attempts,
    waiting_out_outages,
)
from perennial.clients.s3_store import S3ObjectStore
from perennial.contracts.errors import OutageError, PerennialError


class Time:
    """A clock that only moves when somebody waits."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Service:
    def __init__(self, clock, error, until):
        self.clock, self.error, self.until, self.calls = clock, error, until, 0

    def __call__(self):
        self.calls += 1
        if self.clock.now < self.until:
            raise self.error
        return "answer"


def client_error(status, code="Some"):
    answer = {"ResponseMetadata": {"HTTPStatusCode": status}, "Error": {"Code": code}}
    return ClientError(answer, "GetObject")


def database_error(message):
    """What MLflow's client raises where the server's database failed."""
    return RestException({"error_code": "TEMPORARILY_UNAVAILABLE", "message": message})


def file_error(status):
    answer = Response()
    answer.status_code = status
    return HTTPError(f"{status} for url: http://m/api/2.0/mlflow-artifacts/x", response=answer)


def explained_by(error):
    try:
        try:
            raise error
        except Exception as cause:
            raise PerennialError("cannot read") from cause
    except PerennialError as found:
        return found


PASSING = {
    "refused": ConnectionRefusedError("no"),
    "time is over": TimeoutError("no"),
    "no endpoint": EndpointConnectionError(endpoint_url="http://s3"),
    "a server's error": client_error(500),
    "unavailable": client_error(503, "ServiceUnavailable"),
    "throttled": client_error(400, "SlowDown"),
    "too many": client_error(429),
    "explained": explained_by(client_error(502)),
    "MLflow is silent": MlflowException("API request to http://m/api failed with exception x"),
    "MLflow's 503": MlflowException("API request to endpoint /x failed with error code 503 != 200"),
    "MLflow's database restarts": database_error("FATAL: the database system is starting up"),
    "MLflow's 503 for a file": file_error(503),
    "a locked database": MlflowException("(sqlite3.OperationalError) database is locked"),
    "the API server": ApiError("GET /x", 503, "starting"),
}
STAYING = {
    "forbidden": client_error(403, "AccessDenied"),
    "missing": client_error(404, "NoSuchKey"),
    "explained": explained_by(client_error(403)),
    "a mistake": ValueError("x"),
    "a key": KeyError("x"),
    "MLflow's refusal": MlflowException("no such run", error_code=1),
    "MLflow's damaged database": database_error("(sqlite3.OperationalError) no such table: runs"),
    "MLflow's lack of a file": file_error(404),
    "the API server's refusal": ApiError("GET /x", 403, "no"),
    "a key with a line's end": HTTPClientError(error="Invalid header value b'Credential=A\\n/s3'"),
    "a wrong name": EndpointConnectionError(endpoint_url="[Errno -2] Name or service not known"),
}


@pytest.mark.parametrize("error", PASSING.values(), ids=PASSING)
def test_an_outage_shorter_than_the_budget_costs_time_alone(error, caplog):
    clock = Time()
    service = Service(clock, error, until=500.0)
    with caplog.at_level(logging.WARNING):
        assert outlast(service, Persistence(budget_seconds=600.0), clock) == "answer"
    assert 500.0 <= clock.now < 520.0
    logged = [record.message for record in caplog.records]
    assert 10 < len(logged) <= 18  # every half minute
    assert all(each.startswith("waiting until ") for each in logged)


@pytest.mark.parametrize("error", PASSING.values(), ids=PASSING)
def test_an_outage_longer_than_the_budget_is_an_error_of_its_own(error):
    clock = Time()
    with pytest.raises(OutageError, match="after 600 s of waiting"):
        outlast(Service(clock, error, until=1e9), Persistence(budget_seconds=600.0), clock)
    assert clock.now == pytest.approx(600.0)


@pytest.mark.parametrize("error", STAYING.values(), ids=STAYING)
def test_what_does_not_pass_is_raised_at_once(error):
    clock = Time()
    service = Service(clock, error, until=1.0)
    with pytest.raises(type(error)):
        outlast(service, Persistence(budget_seconds=600.0), clock)
    assert service.calls == 1
    assert not is_outage(error)


def test_an_outage_that_was_waited_for_inside_is_not_waited_for_again():
    clock = Time()
    inner = Service(clock, TimeoutError(), until=1e9)
    persistence = Persistence(budget_seconds=600.0)
    with pytest.raises(OutageError):
        outlast(lambda: outlast(inner, persistence, clock), persistence, clock)
    assert clock.now == pytest.approx(600.0)


def test_only_a_run_waits_and_not_for_what_is_not_worth_it(monkeypatch):
    monkeypatch.setenv(OUTAGE_SECONDS, "600")
    clock = Time()
    for is_run, is_single, expected in (
        (False, False, 1), (True, True, 1), (True, False, 3),
    ):  # fmt: skip
        clock.now = 0.0
        service = Service(clock, TimeoutError(), until=0.6)

        def ask(service=service):
            return outlast(service, clock=clock)

        def once(ask=ask):
            with single_attempts():
                return ask()

        def of_run(ask=once if is_single else ask):
            with waiting_out_outages():
                return ask()

        attempt = of_run if is_run else ask
        if expected == 1:
            with pytest.raises(TimeoutError):
                attempt()
        else:
            assert attempt() == "answer"
        assert service.calls >= min(expected, 2)
        assert (service.calls == 1) is (expected == 1)


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_a_budget_that_is_no_number_of_seconds_is_refused(monkeypatch, text):
    monkeypatch.setenv(OUTAGE_SECONDS, text)
    with pytest.raises(PerennialError, match="not a number of seconds"):
        outage_seconds()


def test_a_write_whose_answer_was_lost_is_not_made_twice():
    written, clock = [], Time()

    def write():
        written.append(1)
        raise ConnectionResetError

    with waiting_out_outages():
        outlast_once(write, lambda: bool(written))
    assert written == [1]
    assert clock.now == 0.0


def test_a_write_that_arrives_during_its_second_attempt_is_no_conflict():
    stored, calls = [], []

    def write():
        calls.append(1)
        if len(calls) == 1:
            raise TimeoutError
        stored.append(1)  # the first one, on its way until now
        raise ConflictError("key")

    with waiting_out_outages():
        outlast_once(write, lambda: bool(stored))
    assert len(calls) == 2


def test_a_conflict_with_another_writer_is_one_in_the_second_attempt_too():
    calls = []

    def write():
        calls.append(1)
        raise TimeoutError if len(calls) == 1 else ConflictError("key")

    with waiting_out_outages(), pytest.raises(ConflictError):
        outlast_once(write, lambda: False)


@pytest.mark.parametrize("how", ["refuse", "reset", "error"])
@pytest.mark.parametrize(
    "use",
    [
        lambda store, tmp: store.list(),
        lambda store, tmp: store.read("a"),
        lambda store, tmp: store.write("b", b"b"),
        lambda store, tmp: store.replace("c", b"c", previous=None),
        lambda store, tmp: store.delete("a"),
        lambda store, tmp: store.fetch("a", tmp),
        lambda store, tmp: store.upload("d", tmp / "file"),
        lambda store, tmp: store.download("a", tmp / "a"),
        lambda store, tmp: store.discard_uploads("x"),
    ],
    ids=["list", "read", "write", "replace", "delete", "fetch", "upload", "download", "discard"],
)
def test_every_call_of_the_store_outlasts_an_outage(bucket, road, tmp_path, how, use):
    (tmp_path / "file").write_bytes(b"d")
    store = open_store(f"{bucket}/p")
    store.write("a", b"a")
    road.close_for(0.3, how)
    with waiting_out_outages():
        use(store, tmp_path)
    assert {item.key for item in store.list()} <= {"a", "b", "c", "d"}


def test_a_store_that_stays_away_is_an_outage_and_at_a_prompt_at_once(bucket, road, monkeypatch):
    monkeypatch.setenv(OUTAGE_SECONDS, "0.2")
    store = open_store(bucket)
    road.close()
    with pytest.raises(OutageError, match=r"after 0\.2 s of waiting"), waiting_out_outages():
        store.read("a")
    with pytest.raises(PerennialError, match="cannot read from") as raised:
        store.read("a")
    assert "waiting" not in str(raised.value)


def test_a_conditional_write_whose_answer_is_lost_has_been_made(bucket, road, monkeypatch):
    store = S3ObjectStore(bucket.removeprefix("s3://"))
    put = store._client.put_object

    def lose_the_answer(**arguments):
        put(**arguments)
        store._client.put_object = put
        raise EndpointConnectionError(endpoint_url="http://s3")

    store._client.put_object = lose_the_answer
    with waiting_out_outages():
        store.replace("a", b"mine", previous=None)
    assert store.read("a") == b"mine"
    with pytest.raises(ConflictError), waiting_out_outages():
        store.replace("a", b"other", previous=None)


@pytest.mark.parametrize(("between", "is_first"), [(b"mine", True), (b"another", False)])
def test_boto3_repeats_a_conditional_write_whose_answer_is_lost(bucket, between, is_first):
    store = S3ObjectStore(bucket.removeprefix("s3://"))
    session = store._client._endpoint.http_session
    send = session.send

    def lose_the_answer(request):
        answer = send(request)
        if request.method != "PUT":
            return answer
        session.send = send
        if not is_first:
            store.write("a", between)
        raise ConnectionClosedError(endpoint_url="http://s3")

    session.send = lose_the_answer
    with nullcontext() if is_first else pytest.raises(ConflictError):
        store.replace("a", b"mine", previous=None)
    assert store.read("a") == between


def test_a_missing_bucket_is_no_outage(road, monkeypatch):
    with pytest.raises(PerennialError) as raised, waiting_out_outages():
        open_store("s3://there-is-no-such-bucket").list()
    assert not isinstance(raised.value, OutageError)
    assert road.refused == 0
