"""Outside a cluster, kubeconfig names the cluster and its namespace."""

import pytest
import yaml
from kubernetes.config import kube_config

from perennial.clients.cluster import Cluster
from perennial.contracts.errors import PerennialError


@pytest.fixture
def kubeconfig(tmp_path, monkeypatch):
    """Writes the file that KUBECONFIG names, with two contexts of which the second is active."""
    path = tmp_path / "config"
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(path))

    def write(**active):
        text = {
            "apiVersion": "v1", "kind": "Config", "current-context": "ours",
            "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
            "contexts": [
                {"name": "theirs", "context": {"cluster": "c", "user": "u", "namespace": "theirs"}},
                {"name": "ours", "context": {"cluster": "c", "user": "u", **active}},
            ],
        }  # fmt: skip
        path.write_text(yaml.safe_dump(text))

    return write


@pytest.mark.parametrize(
    ("active", "asked", "expected"),
    [
        ({"namespace": "forecasting"}, "", "forecasting"),
        ({"namespace": "forecasting"}, "kubeflow", "kubeflow"),
        ({}, "", "default"),
    ],
)
def test_the_namespace_is_the_one_asked_for_else_the_active_contexts(
    kubeconfig, active, asked, expected
):
    kubeconfig(**active)
    assert Cluster.connect(None, asked).namespace == expected


def test_without_a_kubeconfig_there_is_no_cluster_to_talk_to(kubeconfig):
    with pytest.raises(PerennialError, match="no Kubernetes cluster"):
        Cluster.connect(None)
