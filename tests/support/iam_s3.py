"""A server of the S3 protocol that asks, as IAM does, whether the caller's policy allows a call.

The store behind it is moto's; the caller is who its access key names. Policies are evaluated as
AWS documents it: denied unless a statement allows the action on the resource under its conditions.
"""

import re
import threading
from contextlib import contextmanager
from fnmatch import fnmatchcase
from urllib.parse import parse_qs, unquote

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

DENIED = b"<Error><Code>AccessDenied</Code><Message>no statement allows it</Message></Error>"


def call_of(environ):
    """(action, bucket, key or prefix) of a request, as IAM names it."""
    method = environ["REQUEST_METHOD"]
    path = unquote(environ["PATH_INFO"]).lstrip("/")
    query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
    bucket, _, key = path.partition("/")
    if not key:
        listed = {"uploads": "s3:ListBucketMultipartUploads", "list-type": "s3:ListBucket"}
        found = next((listed[each] for each in listed if each in query), "")
        return found or f"s3:{method} of a bucket", bucket, query.get("prefix", [""])[0]
    if method == "DELETE":
        action = "s3:AbortMultipartUpload" if "uploadId" in query else "s3:DeleteObject"
        return action, bucket, key
    return "s3:GetObject" if method in ("GET", "HEAD") else "s3:PutObject", bucket, key


def allows(policy, call):
    """The (action, resource) pairs of a policy that allow a call; none when it is denied."""
    action, bucket, key = call
    is_of_bucket = action.startswith("s3:List")
    resource = f"arn:aws:s3:::{bucket}" + ("" if is_of_bucket else f"/{key}")
    found = []
    for statement in policy["Statement"]:
        assert statement["Effect"] == "Allow"
        conditions = statement.get("Condition", {})
        assert set(conditions) <= {"StringLikeIfExists"}
        patterns = conditions.get("StringLikeIfExists", {}).get("s3:prefix", ["*"])
        held = [each for each in patterns if key is None or fnmatchcase(key, each)]
        if action not in statement["Action"] or not (held or not is_of_bucket):
            continue
        for target in statement["Resource"]:
            if fnmatchcase(resource, target):
                found.append((action, target, held[0] if is_of_bucket and held else ""))
    return found


@contextmanager
def enforcing_server(policies):
    """Yields (address, calls): role → the calls that it made; `policies` is role → policy or None.

    Args:
        policies: By access key. None allows everything; a key that is not named is refused.
    """
    calls, lock = {}, threading.Lock()
    moto = DomainDispatcherApplication(create_backend_app)

    def application(environ, start_response):
        found = re.search(r"Credential=([\w-]+)/", environ.get("HTTP_AUTHORIZATION", ""))
        role = found[1] if found else ""
        call = call_of(environ)
        with lock:
            calls.setdefault(role, []).append(call)
        policy = policies.get(role, {"Statement": []})

        def refuse():
            start_response("403 Forbidden", [("Content-Type", "application/xml")])
            return [DENIED]

        if policy is not None and not allows(policy, call):
            return refuse()
        answers = []
        body = moto(environ, lambda *answer: answers.append(answer))
        is_missing = answers[0][0].startswith("404") and call[0] == "s3:GetObject"
        # Who may not list does not get to know that there is no such object.
        if is_missing and policy and not allows(policy, ("s3:ListBucket", call[1], None)):
            return refuse()
        start_response(*answers[0])
        return body

    server = make_server("127.0.0.1", 0, application, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", calls
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
