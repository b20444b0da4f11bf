"""Logging in as Kubeflow's login page wants it: redirects, a form, and cookies that are kept."""

import ssl
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import certifi
import pytest

from deployments import profile
from fake_api_server import FakeCluster
from perennial.contracts.errors import PerennialError
from perennial.deployment.credentials import connect

NAME, WORD = "someone@example.com", "right"


class LoginPage(BaseHTTPRequestHandler):
    """An authentication proxy with Dex behind it, as far as a browser sees them."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = urllib.parse.urlsplit(self.path).path
        inside = "session=opened" in self.headers.get("Cookie", "")
        match path:
            case "/" if not inside:
                self._go("/dex/auth?client_id=kubeflow")
            case "/dex/auth/local":
                self._go("/dex/auth/local/login?req=abc")
            case "/oauth2/callback":
                self._go("/", "session=opened; Path=/")
            case _ if path.startswith("/apis/"):
                self._say(200 if inside else 401, b"{}", "application/json")
            case _:  # the dashboard, a choice of connectors, the form
                self._say(200, b"<html>")

    def do_POST(self):
        form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        if form.get("login") == [NAME] and form.get("password") == [WORD]:
            return self._go("/dex/approval?req=abc")
        if form.get("approval") == ["approve"]:
            return self._go("/oauth2/callback?code=1")
        return self._say(401, b"Invalid")

    def _go(self, where, cookie=""):
        self.send_response(303)
        self.send_header("Location", where)
        self.send_header("Content-Length", "0")
        if cookie:
            self.send_header("Set-Cookie", cookie)
        self.end_headers()

    def _say(self, status, body, kind="text/html"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def url():
    server = ThreadingHTTPServer(("127.0.0.1", 0), LoginPage)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def dex(url, monkeypatch, word):
    monkeypatch.setenv("DEX_USERNAME", NAME)
    monkeypatch.setenv("DEX_PASSWORD", word)
    return connect(profile(url, auth={"kind": "dex"}))


def test_the_session_of_the_login_page_opens_the_server(url, monkeypatch):
    assert dex(url, monkeypatch, WORD).find_experiment("flights") is None


def test_without_the_session_the_server_stays_shut(url):
    with pytest.raises(PerennialError, match="missing or expired"):
        connect(profile(url)).find_experiment("flights")


def test_a_wrong_password_is_reported_without_repeating_it(url, monkeypatch):
    with pytest.raises(PerennialError, match="name or password is wrong") as caught:
        dex(url, monkeypatch, "a-secret-word")
    assert "a-secret-word" not in str(caught.value)


@pytest.mark.parametrize(("kind", "name"), [("dex", "DEX_USERNAME"), ("token", "KFP_TOKEN")])
def test_a_missing_variable_is_named(url, monkeypatch, kind, name):
    monkeypatch.delenv(name, raising=False)
    with pytest.raises(PerennialError, match=f"the environment variable {name} is not set"):
        connect(profile(url, auth={"kind": kind})).find_experiment("flights")


@pytest.fixture
def encrypted(url, tmp_path):
    """A server under TLS that sends whoever comes to the login page without."""

    class Away(LoginPage):
        def do_GET(self):
            self._go(f"{url}/dex/auth/local")

    FakeCluster(tmp_path / "tls").close()  # for its certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls" / "ca.crt", tmp_path / "tls" / "key.pem")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Away)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}", str(tmp_path / "tls" / "ca.crt")
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_password_is_not_sent_in_the_clear_where_the_server_itself_is_encrypted(
    encrypted, monkeypatch
):
    address, ca_file = encrypted
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", certifi.where())  # the profile's certificate wins
    monkeypatch.setenv("DEX_USERNAME", NAME)
    monkeypatch.setenv("DEX_PASSWORD", WORD)
    with pytest.raises(PerennialError, match="would get the password unencrypted"):
        connect(profile(address, server={"ca_file": ca_file}, auth={"kind": "dex"}))
