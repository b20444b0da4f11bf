"""What the fake API server holds, and what goes wrong with it and until when."""

import datetime
import json
import random
import threading
import time
from collections import Counter, deque

PLURALS = {"experiments", "pods", "pytorchjobs", "trainjobs", "workflows", "workloads"}
MOST_IN_A_ROW = 3  # as often a request fails at random; a client gives up after five or six


class Store:
    """Objects, their versions, and what happened to them."""

    def __init__(self):
        self.lock = threading.Condition()
        self.objects = {plural: {} for plural in PLURALS}
        self.version = 100
        self.events = deque(maxlen=5000)  # (version, plural, type, object)
        self.forgotten = 0  # versions up to this one are gone: 410
        self.logs = {}  # pod → [lines]
        self.closed_logs = set()
        self.created = []
        self.deleted = []

    def put(self, plural, body):
        with self.lock:
            self.version += 1
            name = body["metadata"]["name"]
            kind = "MODIFIED" if name in self.objects[plural] else "ADDED"
            body = json.loads(json.dumps(body))
            body["metadata"]["resourceVersion"] = str(self.version)
            self.objects[plural][name] = body
            self.events.append((self.version, plural, kind, body))
            self.lock.notify_all()
            return body

    def drop(self, plural, name):
        with self.lock:
            body = self.objects[plural].pop(name, None)
            if body is not None:
                self.version += 1
                gone = json.loads(json.dumps(body))
                gone["metadata"]["resourceVersion"] = str(self.version)
                self.events.append((self.version, plural, "DELETED", gone))
                self.lock.notify_all()

    def get(self, plural, name):
        with self.lock:
            return self.objects[plural].get(name)

    def all(self, plural):
        with self.lock:
            return list(self.objects[plural].values())

    def write_log(self, pod, line):
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"
        with self.lock:
            self.logs.setdefault(pod, []).append(f"{stamp} {line}")
            self.lock.notify_all()

    def close_log(self, pod):
        with self.lock:
            self.closed_logs.add(pod)
            self.lock.notify_all()


class Faults:
    """What goes wrong, and until when."""

    def __init__(self):
        self.down_until = 0.0
        self.dropped = 0  # requests while it was down
        self.next = deque()  # statuses of the next answers, or pages; 0 drops the connection
        self.rate = 0.0  # share of requests that fail at random
        self.failed = Counter()  # by request, since it was last answered
        self.drop_streams = False
        self.tokens = {"token-0"}
        self.hides_discovery = False
        self.quota = {}  # plural → how many may exist
        self.forbidden = set()  # plurals that the account may not touch

    def pick(self, request):
        if time.monotonic() < self.down_until:
            self.dropped += 1
            return 0
        if self.next:
            return self.next.popleft()
        if random.random() < self.rate and self.failed[request] < MOST_IN_A_ROW:
            self.failed[request] += 1
            return random.choice([0, 429, 500, 503])
        self.failed[request] = 0
        return None
