#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command line from outside: the debug contract, exit codes, help, run, chat, bench, inspect, the first screen of serve."""
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness  # noqa: E402

MODELS = os.path.join(harness.ROOT, "tests", "vectors", "models")


def call(*args, stdin=b"", env=None):
    if isinstance(stdin, str):
        stdin = stdin.encode()
    p = subprocess.run([*harness.EMULATOR, harness.BINARY, *args], input=stdin, capture_output=True, timeout=120 * harness.PATIENCE, env=env)
    return p.returncode, p.stdout.decode("utf-8", "surrogateescape"), p.stderr.decode("utf-8", "replace")


def safetensors(path):
    with open(path, "rb") as f:
        raw = f.read()
    n = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        data = raw[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]
        flat = struct.unpack("<%d%s" % (len(data) // 4, "f" if t["dtype"] == "F32" else "i"), data)
        width = t["shape"][-1] if len(t["shape"]) > 1 else 0
        out[name] = [flat[i:i + width] for i in range(0, len(flat), width)] if width else list(flat)
    return out


def commas(ids):
    return ",".join(map(str, ids))


class Cli(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tmp = tempfile.TemporaryDirectory(prefix="m5-cli-")
        cls.model = os.path.join(cls.tmp.name, "tiny-chat")
        harness.make_chat_model.make(cls.model)

    @classmethod
    def tearDownClass(cls):
        cls.tmp.cleanup()

    def ok(self, *args, **kw):
        code, out, err = call(*args, **kw)
        self.assertEqual(code, 0, err)
        return out

    def file(self, name, text):
        path = os.path.join(self.tmp.name, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path


class TestUsage(Cli):
    def test_help(self):
        overview = self.ok("--help")
        for command in ("serve", "run", "chat", "inspect", "bench", "debug logits", "debug generate", "debug tokenize", "debug detokenize", "debug render"):
            self.assertIn(command.split()[0], overview)
            text = self.ok(*command.split(), "--help")
            self.assertIn("m5-infer " + command, text)
            self.assertEqual(self.ok("help", *command.split()), text)
        self.assertIn("logits", self.ok("debug", "--help"))
        self.assertRegex(self.ok("--version"), r"^m5-infer \d+\.\d+\.\d+\n$")

    def test_wrong_usage(self):
        for args, said in (
            (["srve"], "serve"), (["--modle", "x"], "--model"), (["run", "--max-token", "4"], "--max-tokens"), (["run", "--port", "1"], "serve"),
            (["debug"], "--help"), (["debug", "tokenise"], "debug tokenize"), (["x/model.gguf"], "--model x/model.gguf"), (["run", "--temp", "warm"], "warm"),
            (["run", "--temp"], "value"), (["run", "--top-p", "2"], "range"), (["run", "--seed", "-1"], "-1"), (["bench"], "--model"), (["inspect"], "MODEL"),
            (["debug", "logits", "--ids", "1"], "--model"), (["debug", "render"], "--template"), (["serve", "--model", "a", "b"], "b"), ([], "--model"),
            (["run", "--model", self.model, "--isa", "mmx", "x"], "mmx"), (["run", "--model", self.model, "--kv", "q1", "x"], "q1"),
            (["debug", "generate", "--model", self.model, "--ids", "5,x"], "5,x"), (["run", "-Z"], "-Z"), (["chat", "--help=1"], "no value"),
        ):
            code, out, err = call(*args)
            self.assertEqual((code, out), (2, ""), (args, err))
            self.assertIn(said, err, args)

    def test_failures(self):
        for args in (["inspect", "/nonexistent"], ["run", "--model", "/nonexistent.gguf", "x"], ["debug", "tokenize", "--tokenizer", "/nonexistent"],
                     ["debug", "logits", "--model", self.model, "--ids", "1000000"]):
            code, out, err = call(*args)
            self.assertEqual(code, 1, (args, err))
            self.assertRegex(err, r"^m5-infer: .*\n$")
        bare = os.path.join(self.tmp.name, "no-tokenizer")
        os.mkdir(bare)
        for name in ("config.json", "model.safetensors"):
            os.symlink(os.path.join(self.model, name), os.path.join(bare, name))
        for args in (["run", "--model", bare, "x"], ["chat", "--model", bare], ["serve", "--model", bare, "--port", "0"]):
            code, _, err = call(*args, stdin="x")
            self.assertEqual(code, 1, err)
            self.assertIn("no tokenizer", err)
        self.assertIn('"ids"', self.ok("debug", "generate", "--model", bare, "--ids", "1,2", "-n", "2"))


class TestDebug(Cli):
    def test_logits_and_generate(self):
        for name in ("qwen3_5", "llama3", "gemma3", "smollm2"):
            folder = os.path.join(MODELS, name)
            want = safetensors(os.path.join(folder, "expected.safetensors"))
            with open(os.path.join(folder, "expected.json"), encoding="utf-8") as f:
                about = json.load(f)
            ids = commas(want["ids_short"])
            j = json.loads(self.ok("debug", "logits", "--model", folder, "--ids", ids, "--all", "--f32"))
            self.assertEqual(list(j), ["n_vocab", "logits"])
            self.assertEqual((len(j["logits"]), len(j["logits"][0])), (len(want["ids_short"]), j["n_vocab"]))
            worst = max(abs(a - b) for x, y in zip(j["logits"], want["logits_short"]) for a, b in zip(x, y))
            self.assertLess(worst, 5e-4, name)
            last = json.loads(self.ok("debug", "logits", "--model", folder, "--ids", ids, "--f32"))
            self.assertEqual(last["logits"], [j["logits"][-1]])
            g = json.loads(self.ok("debug", "generate", "--model", folder, "--ids", ids, "-n", str(len(about["greedy_tokens"])), "--f32"))
            self.assertEqual(g, {"ids": about["greedy_tokens"]}, name)

    def test_same_bits(self):
        folder = os.path.join(MODELS, "qwen3_5")
        ids = commas(i * 7 % 250 for i in range(100))
        for f32 in ([], ["--f32"], ["--kv", "f16"], ["--kv", "q8_0"]):
            base = self.ok("debug", "logits", "--model", folder, "--ids", ids, "--all", *f32)
            for other in (["--threads", "1"], ["--threads", "3"], ["--chunk", "1"], ["--chunk", "17"]):
                self.assertEqual(base, self.ok("debug", "logits", "--model", folder, "--ids", ids, "--all", *f32, *other), other)
            self.assertEqual(self.ok("debug", "generate", "--model", folder, "--ids", ids, "-n", "20", *f32),
                             self.ok("debug", "generate", "--model", folder, "--ids", ids, "-n", "20", "--threads", "1", "--chunk", "9", *f32))

    def test_kv_types(self):
        folder = os.path.join(MODELS, "qwen3_5")
        ids = commas(i * 7 % 250 for i in range(100))
        rows = {kv: json.loads(self.ok("debug", "logits", "--model", folder, "--ids", ids, "--f32", "--kv", kv))["logits"][0]
                for kv in ("f32", "i16", "f16", "bf16", "q8_0")}
        worst = {kv: max(abs(a - b) for a, b in zip(rows[kv], rows["f32"])) for kv in rows}
        self.assertTrue(0 < worst["f16"] < worst["bf16"] and 0 < worst["i16"] < worst["bf16"] and worst["f16"] < worst["q8_0"] < 0.1, worst)

    def test_tokenize(self):
        tokenizer = os.path.join(self.model, "tokenizer.json")
        text = "hello the world, <|im_start|>user é\n\n 12"
        ids = json.loads(self.ok("debug", "tokenize", "--tokenizer", tokenizer, stdin=text))["ids"]
        self.assertEqual(ids, json.loads(self.ok("debug", "tokenize", "--model", self.model, stdin=text))["ids"])
        with open(tokenizer, encoding="utf-8") as f:
            special = {t["content"]: t["id"] for t in json.load(f)["added_tokens"]}
        self.assertIn(special["<|im_start|>"], ids)
        self.assertEqual(self.ok("debug", "detokenize", "--model", self.model, "--ids", commas(ids)), text)
        user = json.loads(self.ok("debug", "tokenize", "--tokenizer", tokenizer, "--user-text", stdin=text))["ids"]
        self.assertNotIn(special["<|im_start|>"], user)
        self.assertEqual(self.ok("debug", "detokenize", "--model", self.model, "--ids", commas(user)), text)
        lines = self.ok("debug", "tokenize", "--tokenizer", tokenizer, "--jsonl", stdin="\n".join(json.dumps(t) for t in (text, "", "a\nb\u0000c")) + "\n")
        rows = [json.loads(line)["ids"] for line in lines.split("\n")[:-1]]
        self.assertEqual((rows[0], rows[1], len(rows)), (ids, [], 3))
        back = self.ok("debug", "detokenize", "--tokenizer", tokenizer, "--jsonl", stdin="\n".join(map(json.dumps, rows)))
        self.assertEqual([json.loads(line) for line in back.split("\n")[:-1]], [text, "", "a\nb\u0000c"])
        code, _, err = call("debug", "tokenize", "--tokenizer", tokenizer, "--jsonl", stdin='"a"\n{"b": 1}\n')
        self.assertEqual(code, 1)
        self.assertIn("line 2", err)

    def test_render(self):
        template = self.file("t.jinja", "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
                                        "{% if add_generation_prompt %}>{% endif %}{{ mood }}{% if boom %}{{ raise_exception('no such role') }}{% endif %}"
                                        "{% if day %}{{ strftime_now('%d %b %Y %H:%M') }}{% endif %}")
        case = {"messages": [{"role": "user", "content": "h\u00e9\n"}], "add_generation_prompt": True, "mood": "!"}
        args = ["debug", "render", "--template", template, "--bos", "<s>", "--eos", "</s>"]
        self.assertEqual(self.ok(*args, "--input", self.file("a.json", json.dumps(case))), "<s>[user]h\u00e9\n</s>>!")
        code, out, err = call(*args, "--input", self.file("b.json", json.dumps({**case, "boom": True})))
        self.assertEqual((code, out), (3, ""))
        self.assertIn("no such role", err)
        code, _, err = call("debug", "render", "--template", self.file("bad.jinja", "{% for %}"), "--input", self.file("a.json", json.dumps(case)))
        self.assertEqual(code, 3, err)
        for endless in ("{% for i in range(10**9) %}{% endfor %}", "{{ " + "(" * 1000 + "1" + ")" * 1000 + " }}", "{{ 'ab' * 10**10 }}"):
            code, out, err = call("debug", "render", "--template", self.file("big.jinja", endless), "--input", self.file("a.json", json.dumps(case)))
            self.assertEqual((code, out), (3, ""), err)
        code, _, err = call(*args, "--input", self.file("c.json", "{"))
        self.assertEqual(code, 1, err)
        day = self.file("d.json", json.dumps({"messages": [], "day": True}))
        for zone in ("UTC", "Asia/Tokyo"):
            out = self.ok(*args, "--input", day, "--now", "2026-07-26T12:34:00", env={**os.environ, "TZ": zone})
            self.assertEqual(out, "<s>26 Jul 2026 12:34", zone)
        self.assertEqual(call(*args, "--input", day, "--now", "yesterday")[0], 2)


class TestAnswers(Cli):
    def test_run(self):
        args = ["run", "--model", self.model, "-n", "12", "--ignore-eos"]
        first = self.ok(*args, "--seed", "5", "hello")
        self.assertEqual(first, self.ok(*args, "--seed", "5", "hello"))
        self.assertEqual(first, self.ok(*args, "--seed", "5", "--threads", "1", "--chunk", "3", stdin="hello"))
        self.assertNotEqual(first, self.ok(*args, "--seed", "6", "hello"))
        self.assertNotEqual(first, self.ok(*args, "--seed", "5", "--system", "x", "hello"))
        self.assertTrue(first.endswith("\n"))
        raw = self.ok(*args, "--raw", "--temp", "0", "hello the world")
        ids = json.loads(self.ok("debug", "tokenize", "--model", self.model, stdin="hello the world"))["ids"]
        more = json.loads(self.ok("debug", "generate", "--model", self.model, "--ids", commas(ids), "-n", "12"))["ids"]
        text = self.ok("debug", "detokenize", "--model", self.model, "--ids", commas(more))
        self.assertTrue(any(t in text for t in ("<|", "</")) or raw.rstrip("\n") == text.rstrip("\n"), (raw, text))
        stop = [c for c in raw[1:-1] if c.isascii() and not c.isspace()]
        if stop:
            cut = self.ok(*args, "--raw", "--temp", "0", "--stop", stop[0], "hello the world")
            self.assertEqual(cut.rstrip("\n"), raw[:raw.index(stop[0])].rstrip("\n"))
        code, _, err = call(*args, "--stats", "hello")
        self.assertEqual(code, 0)
        self.assertRegex(err, r"prompt tokens.*12 answer tokens")
        code, _, err = call("run", "--model", self.model, "--ctx", "4", "hello")
        self.assertEqual(code, 1)
        self.assertIn("context", err)

    def test_chat_piped(self):
        args = ["chat", "--model", self.model, "--temp", "0", "-n", "5"]
        out = self.ok(*args, stdin="hello\n/help\n/system be kind\nhello\n/reset\n\n/nonsense\n/quit\nnever said\n")
        self.assertIn("/system TEXT", out)
        self.assertIn("with this system message", out)
        self.assertIn("'/nonsense' is not known", out)
        self.assertEqual(self.ok(*args, stdin=""), "")

    # The editor takes the terminal out of line mode while it waits for keys; keys written at the change are lost. So each line waits for the mode.
    @unittest.skipIf(harness.EMULATOR, "an emulator hides the terminal's mode")
    def test_chat_terminal(self):
        state = os.path.join(self.tmp.name, "state")
        pid, fd = pty.fork()
        if pid == 0:
            os.environ["XDG_STATE_HOME"] = state
            os.environ["TERM"] = "xterm"
            command = [*harness.EMULATOR, harness.BINARY, "chat", "--model", self.model, "--max-tokens", "20"]
            os.execvp(command[0], command)
        seen = bytearray()

        def until(what, seconds=60):
            end = time.monotonic() + seconds * harness.PATIENCE
            while what not in seen:
                self.assertLess(time.monotonic(), end, bytes(seen))
                if select.select([fd], [], [], 0.1)[0]:
                    seen.extend(os.read(fd, 65536))
            del seen[:seen.index(what) + len(what)]

        def say(line):
            end = time.monotonic() + 60 * harness.PATIENCE
            while termios.tcgetattr(fd)[3] & termios.ICANON:
                self.assertLess(time.monotonic(), end, bytes(seen))
                if select.select([fd], [], [], 0.05)[0]:
                    seen.extend(os.read(fd, 65536))
            os.write(fd, line)

        until(b"> ")
        say(b"/reset\n")
        until(b"new conversation")
        say(b"hello\n")
        until(b"hello")
        time.sleep(0.3 * harness.PATIENCE)  # the line is taken: from here on line mode means that the answer is being written
        say(b"/help\n")
        until(b"forget the conversation")
        say(b"")
        os.write(fd, b"\x04")
        end = time.monotonic() + 20 * harness.PATIENCE
        status = (0, 0)
        while status[0] == 0 and time.monotonic() < end:
            status = os.waitpid(pid, os.WNOHANG)
            try:
                if select.select([fd], [], [], 0.05)[0]:
                    os.read(fd, 65536)
            except OSError:
                pass
        self.assertEqual(status, (pid, 0))
        os.close(fd)
        with open(os.path.join(state, "m5-infer", "history"), encoding="utf-8") as f:
            self.assertIn("hello", f.read())
        self.assertEqual(os.stat(os.path.join(state, "m5-infer")).st_mode & 0o777, 0o700)


class TestDescriptions(Cli):
    def test_inspect(self):
        text = self.ok("inspect", self.model, "--tensors")
        self.assertIn("qwen3_5", text)
        self.assertIn("BF16", text)
        j = json.loads(self.ok("inspect", "--json", self.model))
        self.assertEqual((j["config"]["n_layer"], j["config"]["n_layer_gdn"], j["format"]), (4, 3, "safetensors"))
        self.assertEqual(sum(t["n"] for t in j["types"]), len(j["matrices"]))
        self.assertTrue(all(t["runs"] in ("packed", "direct", "slow") for t in j["types"]))
        self.assertIn("im_start", j["chat_template"])
        self.assertEqual(json.loads(self.ok("inspect", "--json", os.path.join(MODELS, "llama3")))["config"]["n_layer_gdn"], 0)

    def test_bench(self):
        args = ["bench", "--model", self.model, "-p", "8,16", "-n", "4", "-d", "0,10", "-r", "2", "-t", "1,2"]
        self.assertIn("pp16 @10", self.ok(*args))
        j = json.loads(self.ok(*args, "--json"))
        self.assertEqual([(r["test"], r["n_tokens"], r["depth"], r["threads"]) for r in j["results"]],
                         [(t, n, d, c) for c in (1, 2) for d in (0, 10) for t, n in (("pp", 8), ("pp", 16), ("tg", 4))])
        self.assertTrue(all(r["tokens_per_s"] > 0 for r in j["results"]))
        rows = self.ok("bench", "--model", self.model, "-p", "0", "-n", "4", "--parallel", "3", "--csv").splitlines()
        self.assertEqual((len(rows), rows[0].split(",")[0]), (2, "model"))
        j = json.loads(self.ok("bench", "--model", self.model, "-p", "0", "-n", "4", "--rows", "5", "-r", "1", "--json"))
        self.assertEqual([(r["test"], r["rows"], r["tokens_per_s"] > 0) for r in j["results"]], [("tg", 5, True)])

    def test_ceilings(self):
        j = json.loads(self.ok("bench", "--ceilings", "--json", "-t", "2"))
        self.assertEqual([c["threads"] for c in j["ceilings"]], [1, 2])
        self.assertTrue(all(c[k] > 1e6 for c in j["ceilings"] for k in ("read_bytes_s", "int_ops_s", "fma_flops_s")))
        self.assertIn("memory read", self.ok("bench", "--ceilings", "-t", "2"))
        # With a model: by turns with it, and each test has the ceiling that bounds it.
        pp, tg = json.loads(self.ok("bench", "-m", self.model, "--ceilings", "--json", "-t", "2", "-p", "8", "-n", "2", "-r", "1"))["results"]
        self.assertTrue(pp["int_ops_s"] > 1e6 and tg["read_bytes_s"] > 1e6 and "read_bytes_s" not in pp and "int_ops_s" not in tg, (pp, tg))
        code, _, err = call("bench", "-m", self.model, "--ceilings", "--accept", "70")
        self.assertTrue(code == 2 and "--accept" in err, (code, err))
        plain = json.loads(self.ok("bench", "-m", self.model, "--json", "-t", "2", "-p", "8", "-n", "2", "-r", "1"))["results"]
        self.assertFalse(any("read_bytes_s" in r or "int_ops_s" in r for r in plain), plain)
        self.assertIn("reads ", self.ok("bench", "-m", self.model, "--ceilings", "-t", "2", "-p", "0", "-n", "2", "-r", "1"))

    def test_first_screen(self):
        p = subprocess.Popen([*harness.EMULATOR, harness.BINARY, "--model", self.model, "--port", "0", "--ctx", "512"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        screen = ""
        for line in p.stdout:
            screen += line
            if "Ctrl-C" in line:
                break
        p.send_signal(signal.SIGINT)
        rest, err = p.communicate(timeout=30 * harness.PATIENCE)
        self.assertEqual(p.returncode, 0, err)
        for word in ("tiny-chat", "qwen3_5", "512 tokens", "memory", "http://127.0.0.1:", "curl "):
            self.assertIn(word, screen)


if __name__ == "__main__":
    unittest.main(verbosity=1)
