"""Every alert fires when it should and is quiet beside it, as Prometheus' own promtool evaluates it."""

import json
import shutil
import subprocess

import pytest

from cluster_manifests import rule_groups

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="rules are evaluated by promtool (Debian: prometheus), which is not here",
)
POD = 'kube_pod_labels{namespace="n",pod="p",label_app_kubernetes_io_managed_by="perennial"} 1x200'
STEP = 'kube_pod_labels{namespace="n",pod="p",label_app_kubernetes_io_part_of="perennial"} 1x200'
UP = 'up{namespace="kubeflow",service="ml-pipeline"} %s'
PULL = 'kube_pod_container_status_waiting_reason{namespace="n",pod="%s",reason="ImagePullBackOff"} 1x200'
KILLED = 'kube_pod_container_status_%s{namespace="n",pod="%s",reason="OOMKilled"} 1x200'
CRON = 'kube_cronjob_%s{namespace="n",cronjob="perennial-watcher"} %s'
DISK = 'kubelet_volume_stats_%s_bytes{namespace="perennial",persistentvolumeclaim="v"} %sx60'
QUOTA = (
    'kube_resourcequota{namespace="n",resourcequota="perennial",resource="pods",type="%s"} %sx60'
)
LOOKS = 'perennial_schedule_enabled{kind="monitoring",model="m"} %s'
AGE = 'perennial_champion_registered_timestamp_seconds{model="m",version="1"} %s'
RUN = 'perennial_run_state{kind="training",model="m",state="%s"} 1x60'
# Alert → seconds between samples, when it is asked (in samples), series on which it fires, series on which it does not.
CASES = {
    "PerennialPodUnschedulable": (60, 40, [POD, 'kube_pod_status_unschedulable{namespace="n",pod="p"} 1x60'],
                                  [POD, 'kube_pod_status_unschedulable{namespace="n",pod="foreign"} 1x60']),
    "PerennialPodCannotStart": (60, 20, [STEP, PULL % "p"], [STEP, PULL % "foreign"]),
    "PerennialPodOutOfMemory": (60, 5, [POD, KILLED % ("last_terminated_reason", "p")], [POD, KILLED % ("terminated_reason", "foreign")]),
    "PerennialPodEvicted": (60, 5, [POD, 'kube_pod_status_reason{namespace="n",pod="p",reason="Evicted"} 1x9'],
                            [POD, 'kube_pod_status_reason{namespace="n",pod="p",reason="Evicted"} 0x9']),
    "PerennialLabelsNotCollected": (3600, 30, ['kube_pod_labels{namespace="n",pod="p"} 1x60'], [POD]),
    "PerennialCronJobFails": (60, 140, [CRON % ("created", "0x200")], [CRON % ("created", "0x200"), CRON % ("status_last_successful_time", "0+60x200")]),
    "PerennialCronJobSuspended": (3600, 30, [CRON % ("spec_suspend", "1x60")], [CRON % ("spec_suspend", "0x60")]),
    "PerennialPipelinesDown": (60, 30, [UP % "0x60"], [UP % "1x60"]),
    "PerennialTrackingDown": (60, 30, ['kube_deployment_status_replicas_available{namespace="perennial",deployment="mlflow"} 0x60'],
                              ['kube_deployment_status_replicas_available{namespace="perennial",deployment="mlflow"} 1x60']),
    "PerennialVolumeFills": (60, 30, [DISK % ("available", 9), DISK % ("capacity", 100)], [DISK % ("available", 11), DISK % ("capacity", 100)]),
    "PerennialWorkflowErrors": (60, 90, ["argo_workflows_error_count 0+1x200"], ["argo_workflows_error_count 0+0.1x200"]),
    "PerennialQuotaNearlyUsed": (60, 40, [QUOTA % ("used", 95), QUOTA % ("hard", 100)], [QUOTA % ("used", 80), QUOTA % ("hard", 100)]),
    "PerennialExporterDown": (60, 30, ['up{job="n/perennial-exporter"} 0x60'], ['up{job="n/perennial-exporter"} 1x60']),
    "PerennialChampionDecays": (3600, 30, ['perennial_look_decayed{model="m"} 1x60'], ['perennial_look_decayed{model="m"} 1x20 0 1x20']),
    "PerennialDriftLasts": (86400, 8, ['perennial_look_drifted{model="m"} 1x200'], ['perennial_look_drifted{model="m"} 1x6 0 1x20']),
    "PerennialMonitoringStale": (3600, 50, [LOOKS % "1x60", 'perennial_look_timestamp_seconds{model="m"} 0x60'],
                                 [LOOKS % "0x60", 'perennial_look_timestamp_seconds{model="m"} 0x60']),
    "PerennialChampionOld": (86400, 92, [AGE % "0x200"], [AGE % "0x40 3456000x60"]),
    "PerennialNoChampion": (3600, 30, [LOOKS % "1x60"], [LOOKS % "1x60", AGE % "0x60"]),
    "PerennialRunFailed": (60, 20, [RUN % "failed"], [RUN % "cancelled"]),
    "PerennialSchedulePaused": (86400, 8, [LOOKS % "0x200"], [LOOKS % "1x200"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def rules(tmp_path_factory):
    """The rule groups as Prometheus reads them, out of the operator's objects."""
    path = tmp_path_factory.mktemp("rules") / "rules.json"
    path.write_text(json.dumps({"groups": rule_groups()}))
    return path


def promtool(*arguments):
    done = subprocess.run(
        ["promtool", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def case(alert, samples, series, *, fires, every):
    """One of promtool's tests: is the alert firing then?"""
    split = [each.rpartition("}") if "}" in each else each.partition(" ") for each in series]
    asked = {
        "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
        "eval_time": f"{every * samples}s",
        "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
    }
    given = [
        {"series": f"{name}{sign}".strip(), "values": values.strip()}
        for name, sign, values in split
    ]
    return {"interval": f"{every}s", "input_series": given, "promql_expr_test": [asked]}


def verdict(rules, every, tests):
    """Whether promtool agrees with the tests, and what it says."""
    content = {
        "rule_files": [str(rules)],
        "evaluation_interval": f"{every}s",
        "tests": list(tests),
    }
    path = rules.parent / "test.json"
    path.write_text(json.dumps(content))
    return promtool("test", "rules", path)


def test_every_alert_has_a_case():
    rules = [rule for group in rule_groups() for rule in group["rules"]]
    assert set(CASES) == {rule["alert"] for rule in rules if "alert" in rule}


def test_prometheus_takes_the_rules(rules):
    code, message = promtool("check", "rules", rules)
    assert code == 0, message


@pytest.mark.parametrize("every", [60, 3600, 86400])
def test_an_alert_fires_on_what_it_is_about_and_on_nothing_else(every, rules):
    cases = [(alert, *rest) for alert, (step, *rest) in CASES.items() if step == every]
    tests = [
        case(alert, samples, series, fires=fires, every=every)
        for alert, samples, bad, good in cases
        for series, fires in ((bad, True), (good, False))
    ]
    code, message = verdict(rules, every, tests)
    assert code == 0, message


@pytest.mark.parametrize("fires", [True, False])
def test_promtool_notices_an_alert_that_does_the_opposite(fires, rules):
    _, samples, bad, good = CASES["PerennialPipelinesDown"]
    series = good if fires else bad
    test = case("PerennialPipelinesDown", samples, series, fires=fires, every=60)
    assert verdict(rules, 60, [test])[0] != 0
