"""A pod's log is complete, whatever the connection and the machine's clock do."""

import pytest
from urllib3.exceptions import HTTPError

from perennial.training_jobs.attempt_watch import PodLogs
from perennial.training_jobs.status import PodView

POD = {
    "metadata": {"name": "prices-master-0", "uid": "0123456789"},
    "status": {
        "phase": "Succeeded",
        "containerStatuses": [{"name": "pytorch", "state": {"terminated": {"exitCode": 0}}}],
    },
}
FIRST = [
    "2026-03-29T01:59:59.123456789+02:00 one",
    "failed to watch file: too many open files",
    "2026 is not a time",
    "2026-03-29T01:59:59.223456789+02:00 two",
]
REST = [
    FIRST[0], FIRST[3],
    "2026-03-29T02:00:01.1+02:00 three",
    "2026-03-29T01:00:02.1+01:00 four",
]  # fmt: skip


class LosesItsConnection:
    """Gives the beginning, then what it is asked for."""

    def __init__(self):
        self.asked = []

    def log_lines(self, pod, container, since=""):
        self.asked.append(since)
        if since:
            yield from REST
        else:
            yield from FIRST
            raise HTTPError("connection lost")


@pytest.mark.parametrize("machine", [0, 1])
def test_lines_are_taken_once_over_two_connections_on_a_machine_east_of_greenwich(
    tmp_path, machine
):
    server = LosesItsConnection()
    logs = PodLogs(server, "pytorch", tmp_path, tmp_path / "job.log", pause_seconds=0.01)
    logs.follow([(machine, PodView.of(POD, "pytorch"))])
    logs.close()
    assert server.asked == ["", "2026-03-28T23:59:59Z"]
    assert [file.read_text() for file in logs.files] == ["one\ntwo\nthree\nfour\n"]
    assert (tmp_path / "job.log").exists() is (machine == 0)
