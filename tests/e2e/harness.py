# SPDX-License-Identifier: Apache-2.0
"""Starts m5-infer on a tiny chat model made on the spot, and talks to it. Standard library only."""
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import make_chat_model  # noqa: E402

BINARY = os.environ.get("M5_BINARY", os.path.join(ROOT, "build", "release", "m5-infer"))
EMULATOR = os.environ.get("M5_EMULATOR", "").split()
# Sanitizers and emulation are slow: every wait is multiplied.
PATIENCE = float(os.environ.get("M5_PATIENCE", "1"))


def free_port():
    with contextlib.closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    def __init__(self, *options, model=None, wait=True, thinking=False):
        self.tmp = tempfile.TemporaryDirectory(prefix="m5-e2e-")
        if model is None:
            model = os.path.join(self.tmp.name, "tiny-chat")
            make_chat_model.make(model, thinking=thinking)
        self.port = free_port()
        self.log = open(os.path.join(self.tmp.name, "log"), "w+b")
        command = [*EMULATOR, BINARY, "serve", "--model", model, "--port", str(self.port), "--threads", "2", "--cache-dir", os.path.join(self.tmp.name, "state"), *options]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        if wait:
            self.wait_ready()

    def wait_ready(self):
        end = time.monotonic() + 30 * PATIENCE
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError("the server ended: " + self.output())
            try:
                if self.get("/health")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise AssertionError("the server never became ready: " + self.output())

    def output(self):
        self.log.flush()
        with open(self.log.name, encoding="utf-8", errors="replace") as f:
            return f.read()

    def connect(self, timeout=60):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * PATIENCE)

    def request(self, method, path, body=None, headers=None):
        c = self.connect()
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        try:
            c.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            r = c.getresponse()
            raw = r.read()
        finally:
            c.close()
        try:
            value = json.loads(raw)
        except ValueError:
            value = raw
        return r.status, value, dict(r.getheaders())

    def get(self, path, **kw):
        return self.request("GET", path, **kw)

    def post(self, path, body, **kw):
        return self.request("POST", path, body, **kw)

    def stream(self, path, body):
        """Yields the data of each event; checks the framing."""
        c = self.connect()
        try:
            c.request("POST", path, json.dumps({**body, "stream": True}).encode(), {"Content-Type": "application/json"})
            r = c.getresponse()
            assert r.status == 200, r.read()
            assert r.getheader("Content-Type", "").startswith("text/event-stream")
            done = False
            for line in r:
                line = line.rstrip(b"\r\n")
                if not line or line.startswith(b":"):
                    continue
                assert line.startswith(b"data: "), line
                assert not done, "data after [DONE]"
                if line == b"data: [DONE]":
                    done = True
                else:
                    yield json.loads(line[6:])
            assert done, "the stream ended without [DONE]"
        finally:
            c.close()

    def running(self):
        return self.get("/health")[1]["running"]

    def wait_idle(self, seconds):
        """Whether nothing runs and nothing waits to run, within the time given."""
        end = time.monotonic() + seconds * PATIENCE
        while time.monotonic() < end:
            health = self.get("/health")[1]
            if health["running"] + health["waiting"] == 0:
                return True
            time.sleep(0.02)
        return False

    def stop(self, sig=signal.SIGINT):
        if self.process.poll() is None:
            self.process.send_signal(sig)
            try:
                self.process.wait(10 * PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
        self.tmp.cleanup()
        return self.process.returncode
