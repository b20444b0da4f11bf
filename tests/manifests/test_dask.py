"""The Dask cluster of k8s/ runs as it is written, over TLS, and nobody else reaches it."""

import datetime

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cluster_manifests import K8S
from dask_cluster import DaskCluster, running
from partition_work import summarize
from perennial.contracts.environment import DASK_SCHEDULER, DASK_TLS
from perennial.contracts.errors import OutageError
from perennial.data import executor as executors
from perennial.data.executor import open_executor
from ports import get_free_port

COMPONENT = K8S / "components" / "dask"
MOUNT = "/etc/perennial/dask"


def write_certificates(folder):
    """A certificate authority and one certificate, as the guide's commands make them."""
    folder.mkdir()
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in ("ca", "dask")]
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in names]
    now = datetime.datetime.now(datetime.UTC)
    for name, key, file in zip(names, keys, ("ca.crt", "tls.crt"), strict=True):
        certificate = (
            x509.CertificateBuilder().subject_name(name).issuer_name(names[0])
            .public_key(key.public_key()).serial_number(x509.random_serial_number())
            .not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=file == "ca.crt", path_length=None), critical=True)
            .sign(keys[0], hashes.SHA256())
        )  # fmt: skip
        (folder / file).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "tls.key").write_bytes(
        keys[1].private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )  # fmt: skip
    return folder


def container_of(name):
    deployment = yaml.safe_load((COMPONENT / f"deployment-{name}.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return container


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The manifests' own commands and variables, at other addresses and folders."""
    folder = tmp_path_factory.mktemp("dask")
    certificates = write_certificates(folder / "certificates")
    port = str(get_free_port())
    cluster = DaskCluster(f"tls://127.0.0.1:{port}", folder)
    places = {
        "tls://perennial-dask-scheduler:8786": cluster.address, "8786": port,
        "8788": str(get_free_port()), "8789": str(get_free_port()), "/tmp": str(folder),
    }  # fmt: skip
    with running(cluster):
        for name in ("scheduler", "workers"):
            container = container_of(name)
            variables = {each["name"]: each["value"] for each in container["env"]}
            assert container["command"][0] == "dask"
            cluster.start(
                *[places.get(each, each) for each in container["command"][1:]],
                *["--host", "tls://127.0.0.1" if name == "scheduler" else "127.0.0.1"],
                **{
                    key: value.replace(MOUNT, str(certificates)) for key, value in variables.items()
                },
            )
        yield cluster


def test_steps_work_on_it_with_the_certificates_of_the_secret(cluster, monkeypatch, caplog):
    monkeypatch.setenv(DASK_SCHEDULER, cluster.address)
    monkeypatch.setenv(DASK_TLS, str(cluster.folder / "certificates"))
    with open_executor(4) as executor:
        assert list(executor.map(summarize, range(4))) == [summarize(each) for each in range(4)]
    assert "not encrypted" not in caplog.text


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_without_its_certificates_nobody_is_let_in(cluster, monkeypatch, tmp_path, scheme):
    monkeypatch.setattr(executors, "_PROMPT_SECONDS", 2.0)
    monkeypatch.setenv(DASK_SCHEDULER, cluster.address.replace("tls:", f"{scheme}:"))
    monkeypatch.setenv(DASK_TLS, str(write_certificates(tmp_path / "own")))
    with pytest.raises(OutageError, match="does not answer"), open_executor(1):
        pass


def policies():
    for path in COMPONENT.glob("network-policy-*.yaml"):
        yield path.stem, yaml.safe_load(path.read_text())["spec"]


def test_steps_reach_the_scheduler_and_only_it_reaches_the_workers():
    found = dict(policies())
    component = "app.kubernetes.io/component"
    sources = {
        name: [
            peer["podSelector"]["matchLabels"].get(component, "step")
            for rule in spec.get("ingress", ())
            for peer in rule["from"]
        ]
        for name, spec in found.items()
    }
    assert sources == {
        "network-policy-scheduler": ["step", "dask-worker"],
        "network-policy-workers": ["dask-scheduler", "dask-worker"],
        "network-policy-steps": [],
    }
    step = found["network-policy-steps"]["podSelector"]
    assert found["network-policy-scheduler"]["ingress"][0]["from"][0]["podSelector"] == step
    (rule,) = found["network-policy-steps"]["egress"]
    assert [peer["podSelector"] for peer in rule["to"]] == [
        found["network-policy-scheduler"]["podSelector"]
    ]


def test_ports_of_commands_containers_service_and_policies_agree():
    command = container_of("workers")["command"]
    ports = {str(each["containerPort"]) for each in container_of("workers")["ports"]}
    assert {command[command.index(f"--{name}-port") + 1] for name in ("worker", "nanny")} == ports
    allowed = {
        str(each["port"])
        for each in dict(policies())["network-policy-workers"]["ingress"][0]["ports"]
    }
    assert allowed == ports
    service = yaml.safe_load((COMPONENT / "service.yaml").read_text())
    assert f"tls://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}" in command


def test_a_worker_is_ended_by_its_nanny_before_the_kernel_does_it():
    container = container_of("workers")
    limit = container["command"][container["command"].index("--memory-limit") + 1]
    assert int(limit.removesuffix("MiB")) < 1024 * int(
        container["resources"]["limits"]["memory"].removesuffix("Gi")
    )
