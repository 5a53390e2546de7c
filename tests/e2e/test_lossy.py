#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`calibrate`, then serving with --lossy-layer-skip: what is measured, what is refused, and that every answer names what is left out."""
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness  # noqa: E402

TEXT = "The quick brown fox jumps over the lazy dog. " * 3


def call(*args, stdin=""):
    p = subprocess.run([*harness.EMULATOR, harness.BINARY, *args], input=stdin.encode(), capture_output=True, timeout=120 * harness.PATIENCE)
    return p.returncode, p.stdout.decode("utf-8", "replace"), p.stderr.decode("utf-8", "replace")


def log_softmax(x):
    top = max(x)
    z = top + math.log(sum(math.exp(v - top) for v in x))
    return [v - z for v in x]


class Lossy(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tmp = tempfile.TemporaryDirectory(prefix="m5-lossy-")
        cls.model = os.path.join(cls.tmp.name, "tiny-chat")
        cls.dir = os.path.join(cls.tmp.name, "state")
        cls.text = os.path.join(cls.tmp.name, "text")
        harness.make_chat_model.make(cls.model)
        with open(cls.text, "w") as f:
            f.write(TEXT)
        code, out, err = call("calibrate", cls.model, "--text", cls.text, "--tokens", "48", "--cache-dir", cls.dir, "--threads", "2", "--json")
        assert code == 0, err
        cls.record = json.loads(out)
        cls.file = os.path.join(cls.dir, [n for n in os.listdir(cls.dir) if n.endswith(".m5calib")][0])
        assert "this takes about" in err, err

    @classmethod
    def tearDownClass(cls):
        cls.tmp.cleanup()

    def test_record_and_table(self):
        code, out, err = call("calibrate", self.model, "--tokens", "32", "--calibration", os.path.join(self.tmp.name, "mine"), "--threads", "2")
        self.assertEqual(code, 0, err)
        for word in ("early exit", "one layer left out", "--lossy-layer-skip", "exit:", "skip:", "kept in"):
            self.assertIn(word, out)
        self.assertTrue(os.path.exists(os.path.join(self.tmp.name, "mine")))
        self.assertEqual(call("calibrate")[0], 2)
        code, out, err = call("calibrate", os.path.join(self.tmp.name, "nothing"), "--cache-dir", self.dir)
        self.assertEqual((code, out), (1, ""))

    def test_cache(self):
        """`cache` lists, shows, checks and clears the record; a file that the user named stays."""
        folder = os.path.join(self.tmp.name, "cleared")
        os.makedirs(folder)
        name = os.path.basename(self.file)
        for target in (name, "mine.m5calib"):
            with open(self.file, "rb") as f, open(os.path.join(folder, target), "wb") as g:
                g.write(f.read())
        leftover = os.path.join(folder, name + ".Ab12Cd")
        with open(leftover, "w") as f:
            f.write("M5CALIB")
        os.utime(leftover, (1e9, 1e9))
        listed = json.loads(call("cache", "list", "--json", "--cache-dir", folder)[1])
        self.assertEqual([(c["name"], c["model"], c["whole"]) for c in listed["calibrations"]], [(name, self.record["model"], True)])
        self.assertIn(name, call("cache", "list", "--cache-dir", folder)[1])
        self.assertIn("layers left out for good", call("cache", "show", name, "--cache-dir", folder)[1])
        self.assertEqual(json.loads(call("cache", "show", name, "--json", "--cache-dir", folder)[1]), self.record)
        self.assertEqual(call("cache", "verify", "--cache-dir", folder)[0], 0)
        self.assertIn("calibrations too", call("cache", "--help")[1])
        code, out, err = call("cache", "clear", "--bad", "--cache-dir", folder)
        self.assertEqual((code, sorted(os.listdir(folder))), (0, sorted([name, "mine.m5calib"])), out + err)
        code, out, err = call("cache", "clear", "--cache-dir", folder)
        self.assertEqual((code, os.listdir(folder)), (0, ["mine.m5calib"]), out + err)
        self.assertIn("1 of calibrations", out)
        with open(os.path.join(folder, name), "w") as f:
            f.write("M5CALIB 1 torn")
        code, out, err = call("cache", "verify", "--cache-dir", folder)
        self.assertEqual(code, 1)
        self.assertIn("clear --bad", out)
        self.assertIn("damaged", call("cache", "list", "--cache-dir", folder)[1])
        self.assertEqual(call("cache", "show", name, "--cache-dir", folder)[0], 1)

    def test_figures(self):
        """The mean KL in the record is the one of the logits that `debug logits` prints."""
        cut = self.record["cuts"][-1]
        ids = json.loads(call("debug", "tokenize", "-m", self.model, "--special", stdin=TEXT)[1])["ids"]
        window = len(ids) // 4
        each = min(48 // 4 + 1, window)
        total, same, n = 0, 0, 0
        for w in range(4):
            part = ",".join(map(str, ids[w * window:w * window + each - 1]))
            rows = []
            for lossy in ([], ["--lossy-layer-skip", "1000", "--calibration", self.file]):
                code, out, err = call("debug", "logits", "-m", self.model, "--ids", part, "--all", "--threads", "2", *lossy)
                self.assertEqual(code, 0, err)
                self.assertEqual(bool(lossy), "left out" in err)
                rows.append(json.loads(out)["logits"])
            for x, y in zip(*rows):
                a, b = log_softmax(x), log_softmax(y)
                total += sum(math.exp(p) * (p - q) for p, q in zip(a, b))
                same += x.index(max(x)) == y.index(max(y))
                n += 1
        self.assertEqual(n, cut["n_tok"])
        self.assertAlmostEqual(total / n, cut["kl_mean"], delta=1e-5 + 1e-4 * cut["kl_mean"])
        self.assertAlmostEqual(same / n, cut["top1"], delta=1e-9)

    def test_bench_says_so(self):
        for lossy in ([], ["--lossy-layer-skip", "1000", "--calibration", self.file]):
            code, out, err = call("bench", "-m", self.model, "-p", "8", "-n", "2", "-r", "1", "--json", *lossy)
            self.assertEqual(code, 0, err)
            self.assertEqual(json.loads(out).get("layers_left_out"), self.record["cuts"][-1]["out"] if lossy else None)

    def test_refused_without_record(self):
        none = os.path.join(self.tmp.name, "none")
        for command in (["run", "-m", self.model, "hello", "-n", "2"], ["serve", "-m", self.model, "--port", "0"],
                        ["bench", "-m", self.model, "-p", "8", "-n", "2", "-r", "1", "--calibration", none]):
            extra = [] if command[0] == "bench" else ["--cache-dir", none]
            code, _, err = call(*command, *extra, "--lossy-layer-skip", "0.1")
            self.assertEqual(code, 1, command)
            self.assertIn("m5-infer calibrate", err)
        self.assertEqual(call("run", "-m", self.model, "hello", "--lossy-layer-skip", "0")[0], 2)

    def answers(self, server):
        chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0}
        text = {"prompt": "hi", "max_tokens": 4, "temperature": 0}
        for path, body in (("/v1/chat/completions", chat), ("/v1/completions", text)):
            status, whole, _ = server.request("POST", path, body)
            self.assertEqual(status, 200)
            yield whole
            status, raw, _ = server.request("POST", path, {**body, "stream": True})
            self.assertEqual(status, 200)
            events = [json.loads(e[6:]) for e in raw.decode().split("\n\n") if e.startswith("data: {")]
            self.assertFalse([e for e in events[:-1] if "lossy_layer_skip" in e])
            yield events[-1]

    def test_named_everywhere(self):
        cut = self.record["cuts"][-1]
        s = harness.Server("--cache-dir", self.dir, "--lossy-layer-skip", "1000", model=self.model)
        try:
            props = s.get("/props")[1]
            self.assertEqual(props["lossy"], ["lossy_layer_skip"])
            told = props["lossy_layer_skip"]
            self.assertEqual((told["layers"], told["kl"], told["top1"], told["wanted_kl"]), (cut["out"], cut["kl_mean"], cut["top1"], 1000))
            for answer in self.answers(s):
                self.assertEqual(answer["lossy_layer_skip"], told)
            self.assertIn("m5_lossy_layers %d\n" % len(cut["out"]), s.get("/metrics")[1].decode())
            self.assertIn("LOSSY", s.output())
        finally:
            s.stop()

    def test_nothing_so_close(self):
        s = harness.Server("--cache-dir", self.dir, "--lossy-layer-skip", "1e-9", model=self.model)
        try:
            self.assertIn("no layer is left out", s.output())
            for answer in self.answers(s):
                self.assertEqual((answer["lossy_layer_skip"]["layers"], answer["lossy_layer_skip"]["kl"]), ([], 0))
        finally:
            s.stop()

    def test_off_by_default(self):
        s = harness.Server("--cache-dir", self.dir, model=self.model)
        try:
            self.assertEqual(s.get("/props")[1]["lossy"], [])
            for answer in self.answers(s):
                self.assertNotIn("lossy_layer_skip", answer)
            self.assertIn("m5_lossy_layers 0\n", s.get("/metrics")[1].decode())
        finally:
            s.stop()


if __name__ == "__main__":
    unittest.main()
