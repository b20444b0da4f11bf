"""What no count answers is judged on all rows by a real Spark Connect server, if there is one."""

import importlib.util
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from perennial.contracts.errors import PerennialError
from perennial.contracts.validation import ValidationReport
from ports import get_free_port

HAS_SPARK = importlib.util.find_spec("pyspark") is not None
SUITE = """{"name": "own", "expectations": [
{"type": "expect_column_value_z_scores_to_be_less_than",
 "kwargs": {"column": "amount", "threshold": 6, "double_sided": true}},
{"type": "expect_column_sum_to_be_between", "kwargs": {"column": "amount", "max_value": 1000,
 "row_condition": {"column": {"name": "city"}, "operator": "==", "parameter": "Ulm",
 "type": "comparison"}}, "severity": "warning"}]}"""


@pytest.fixture
def spark(tmp_path):
    """The address of a Spark Connect server of this machine."""
    home = Path(importlib.util.find_spec("pyspark").origin).parent
    port = get_free_port()
    process = subprocess.Popen(
        [
            str(home / "bin/spark-submit"), "--master", "local[1]",
            "--conf", f"spark.connect.grpc.binding.port={port}", "--conf", "spark.ui.enabled=false",
            "--conf", "spark.driver.bindAddress=127.0.0.1",
            "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
        ],
        env=os.environ | {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline and process.poll() is None:
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.5)
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.full
@pytest.mark.skipif(not HAS_SPARK, reason="pyspark is not installed")
@pytest.mark.filterwarnings("ignore")
def test_all_rows_are_judged_on_spark(spark, healthy, snapshot_of, validate, monkeypatch):
    monkeypatch.setenv("PERENNIAL_SPARK", spark)
    validate(snapshot_of(healthy), suite=SUITE, suite_sample_rows=1_000)
    own = [e for e in ValidationReport.read(validate.out / "validation").expectations if e.basis]
    assert [each.basis for each in own] == ["all rows, on Spark"] * 2
    assert [each.outcome for each in own] == ["passed", "failed"]


@pytest.mark.skipif(HAS_SPARK, reason="pyspark is installed")
def test_without_pyspark_the_run_ends_with_what_to_install(
    healthy, snapshot_of, validate, monkeypatch
):
    monkeypatch.setenv("PERENNIAL_SPARK", "sc://spark:15002")
    with pytest.raises(PerennialError, match=r"pip install 'perennial\[spark\]'"):
        validate(snapshot_of(healthy), suite=SUITE)
