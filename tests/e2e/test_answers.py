#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Answers from outside: thoughts and their budgets, tool calls, structured output. Once with a model of random weights, whose text is noise and must be held in form all
the same, once with the trained m5-nano, which knows what to do."""
import json
import os
import re
import subprocess
import sys
import threading
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness  # noqa: E402

CHAT = "/v1/chat/completions"
NANO = os.path.join(harness.ROOT, "models", "nano", "m5-nano.gguf")
HELLO = [{"role": "user", "content": "hello world"}]
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}
PICK = {"type": "function", "function": {"name": "pick", "parameters": {
    "type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}, "color": {"enum": ["red", "green"]}, "ok": {"type": "boolean"}},
    "required": ["n", "color", "ok"], "additionalProperties": False}}}
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
                                           "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}},
          "required": ["name", "age", "tags"], "additionalProperties": False}


def as_person(text):
    v = json.loads(text)
    assert set(v) == {"name", "age", "tags"} and isinstance(v["name"], str) and 0 <= v["age"] <= 120 and all(t in "ab" for t in v["tags"]), v
    return v


def collect(chunks):
    """One message from the deltas of a stream, as a client builds it."""
    message, calls, finish, last = {"content": "", "reasoning_content": ""}, [], None, None
    for c in chunks:
        for choice in c["choices"]:
            d = choice["delta"]
            for key in ("content", "reasoning_content"):
                message[key] += d.get(key) or ""
            for t in d.get("tool_calls", []):
                if "id" in t:
                    assert t["index"] == len(calls) and t["type"] == "function", t
                    calls.append({"id": t["id"], "name": t["function"]["name"], "arguments": ""})
                calls[t["index"]]["arguments"] += t["function"]["arguments"]
            if choice["finish_reason"]:
                assert finish is None
                finish, last = choice["finish_reason"], choice
    return message, calls, finish, last


class Base(unittest.TestCase):
    def ask(self, body, status=200):
        got, answer, _ = self.s.post(CHAT, body)
        self.assertEqual(got, status, (body, answer))
        return answer if status != 200 else answer["choices"][0]

    def both(self, body):
        """The whole answer, after checking that the streamed one is the same."""
        whole = self.s.post(CHAT, body)
        self.assertEqual(whole[0], 200, whole[1])
        choice = whole[1]["choices"][0]
        chunks = list(self.s.stream(CHAT, {**body, "stream_options": {"include_usage": True}}))
        message, calls, finish, last = collect(chunks)
        self.assertEqual(message["content"], choice["message"]["content"] or "")
        self.assertEqual(message["reasoning_content"], choice["message"].get("reasoning_content", ""))
        self.assertEqual([(c["name"], c["arguments"]) for c in calls], [(c["function"]["name"], c["function"]["arguments"]) for c in choice["message"].get("tool_calls", [])])
        self.assertEqual(finish, choice["finish_reason"])
        self.assertEqual(last.get("thinking"), choice.get("thinking"))
        self.assertEqual(chunks[-1]["usage"]["completion_tokens_details"], whole[1]["usage"]["completion_tokens_details"])
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"], whole[1]["usage"]["completion_tokens"])
        return choice, whole[1]["usage"]


class NoiseTest(Base):
    """Random weights: what comes must be in form because nothing else may."""

    @classmethod
    def setUpClass(cls):
        cls.s = harness.Server("--parallel", "2", thinking=True)

    @classmethod
    def tearDownClass(cls):
        code = cls.s.stop()
        assert code == 0, "exit code %s" % code

    def test_props(self):
        p = self.s.get("/props")[1]
        self.assertEqual((p["tool_format"], p["thinking"]["open"], p["thinking"]["close"], p["thinking"]["budget"]), ("qwen_xml", "<think>", "</think>", 32768))
        self.assertEqual(p["lossy"], [])

    def test_budget_in_every_spelling(self):
        base = {"messages": HELLO, "max_tokens": 20, "temperature": 1.2, "seed": 3, "ignore_eos": True, "loop_guard": "off"}
        first = None
        for extra in ({"reasoning_budget": 40}, {"thinking_budget": 40}, {"thinking_budget_tokens": 40}, {"reasoning_budget_tokens": 40}, {"thinking_token_budget": 40},
                      {"reasoning_max_tokens": 40}, {"thinking": {"type": "enabled", "budget_tokens": 40}}, {"reasoning": {"max_tokens": 40}},
                      {"chat_template_kwargs": {"thinking_budget": 40}}, {"custom_params": {"thinking_budget": 40}}, {"reasoning_budget": 40, "thinking_budget_tokens": 40}):
            choice, usage = self.both({**base, **extra})
            n = usage["completion_tokens_details"]["reasoning_tokens"]
            self.assertEqual(choice["thinking"]["budget"], 40, extra)
            self.assertLessEqual(n, 40)
            self.assertEqual(choice["thinking"]["tokens"], n)
            first = first or (choice["message"], usage["completion_tokens"])
            self.assertEqual((choice["message"], usage["completion_tokens"]), first, extra)
        for effort, budget in (("minimal", 1024), ("low", 4096), ("medium", 16384), ("high", 32768)):
            self.assertEqual(self.ask({**base, "max_completion_tokens": 8, "reasoning_effort": effort})["thinking"]["budget"], budget)

    def test_no_thinking_in_every_spelling(self):
        base = {"messages": HELLO, "max_tokens": 6, "temperature": 0}
        for extra in ({"reasoning_budget": 0}, {"enable_thinking": False}, {"chat_template_kwargs": {"enable_thinking": False}}, {"chat_template_kwargs": {"thinking": False}},
                      {"think": False}, {"thinking": False}, {"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}, {"reasoning": {"effort": "none"}},
                      {"reasoning": {"enabled": False}}):
            choice, usage = self.both({**base, **extra})
            self.assertEqual(usage["completion_tokens_details"]["reasoning_tokens"], 0, extra)
            self.assertNotIn("reasoning_content", choice["message"])
            prompt = self.s.post("/apply-template", {"messages": HELLO, **extra})[1]["prompt"]
            self.assertTrue(prompt.endswith("<think>\n\n</think>\n\n"), extra)

    def test_budgets_are_exact(self):
        base = {"messages": HELLO, "temperature": 1.2, "seed": 3, "ignore_eos": True, "loop_guard": "off"}
        for budget in (0, 1, 2, 17):
            for max_tokens in (1, 2, 30):
                choice, usage = self.both({**base, "reasoning_budget": budget, "max_tokens": max_tokens})
                n = usage["completion_tokens_details"]["reasoning_tokens"]
                self.assertLessEqual(n, budget)
                if choice["thinking"]["ended_by"] == "budget" and budget:
                    self.assertEqual(n, budget)
                    self.assertEqual(choice["finish_reason"], "length")
                    # A line break (only behind other text), the tag and two line breaks close it; four more may frame the answer.
                    self.assertIn(usage["completion_tokens"] - n - max_tokens, range(3, 9))
                    self.assertTrue(choice["message"]["content"] or max_tokens < 3)

    def test_common_limit(self):
        base = {"messages": HELLO, "temperature": 1.2, "seed": 3, "ignore_eos": True, "loop_guard": "off"}
        choice, usage = self.both({**base, "max_completion_tokens": 60})
        self.assertEqual(usage["completion_tokens"], 60)
        self.assertEqual(choice["finish_reason"], "length")
        self.assertTrue(choice["message"]["content"])
        # Without a limit of its own the answer would go on to the end of the context; the thought would not keep it from beginning.
        s = harness.Server("--ctx", "300", "--max-tokens-includes-thinking", thinking=True)
        try:
            answer = s.post(CHAT, {**base, "max_tokens": 50})[1]
            self.assertEqual(answer["usage"]["completion_tokens"], 50)
            answer = s.post(CHAT, base)[1]
            self.assertEqual(answer["usage"]["total_tokens"], 300)
            self.assertTrue(answer["choices"][0]["message"]["content"])
        finally:
            s.stop()

    def test_formats(self):
        base = {"messages": HELLO, "temperature": 1.2, "seed": 3, "reasoning_budget": 20, "max_tokens": 20, "ignore_eos": True, "loop_guard": "off"}
        split = self.ask(base)["message"]
        self.assertTrue(split["reasoning_content"])
        text = self.ask({**base, "reasoning_format": "none"})["message"]
        self.assertNotIn("reasoning_content", text)
        self.assertEqual(text["content"], split["reasoning_content"] + "\n</think>\n\n" + split["content"])
        hidden = self.ask({**base, "reasoning": {"exclude": True}})["message"]
        self.assertEqual((hidden["content"], "reasoning_content" in hidden), (split["content"], False))
        self.assertEqual(self.ask({**base, "include_reasoning": False})["message"], hidden)
        s = harness.Server("--reasoning-field", "both", "--reasoning", "off", thinking=True)
        try:
            quiet = s.post(CHAT, base | {"reasoning_budget": None})[1]["choices"][0]
            self.assertEqual(quiet["thinking"]["tokens"], 0)
            both = s.post(CHAT, base | {"enable_thinking": True})[1]["choices"][0]["message"]
            self.assertEqual(both["reasoning"], both["reasoning_content"])
        finally:
            s.stop()

    def test_contradictions_are_refused(self):
        for extra, param in (({"reasoning_budget": 5, "thinking_budget": 6}, "thinking_budget"), ({"enable_thinking": False, "reasoning_effort": "high"}, "reasoning_effort"),
                             ({"enable_thinking": True, "thinking": {"type": "disabled"}}, "thinking"), ({"enable_thinking": False, "reasoning_budget": 10}, "reasoning_budget"),
                             ({"reasoning_budget": -2}, "reasoning_budget"), ({"reasoning_budget": "many"}, "reasoning_budget"), ({"reasoning_effort": "huge"}, "reasoning_effort"),
                             ({"thinking": {"type": "maybe"}}, "thinking"), ({"reasoning_format": "xml"}, "reasoning_format"), ({"escape_hints": "yes"}, "escape_hints"),
                             ({"auto_think": "always"}, "auto_think"), ({"loop_guard": 1}, "loop_guard"), ({"enable_thinking": 1}, "enable_thinking"),
                             ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"), ({"tool_choice": "required"}, "tool_choice"),
                             ({"tools": [WEATHER], "tool_choice": "sometimes"}, "tool_choice"), ({"tools": [WEATHER, WEATHER]}, "tools"), ({"tools": [{"type": "function"}]}, "tools"),
                             ({"response_format": {"type": "xml"}}, "response_format"), ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
                             ({"response_format": {"type": "json_schema", "json_schema": {"schema": False}}}, "response_format"),
                             ({"grammar": "root ::= ("}, "grammar"), ({"regex": "(a"}, "regex"), ({"guided_choice": []}, "guided_choice"), ({"guided_choice": "a"}, "guided_choice"),
                             ({"regex": "a", "grammar": 'root ::= "b"'}, "regex"), ({"json_schema": "{"}, "json_schema")):
            error = self.ask({"messages": HELLO, "max_tokens": 2, **extra}, 400)["error"]
            self.assertEqual((error["param"], error["type"]), (param, "invalid_request_error"), (extra, error))

    def test_schemas_hold(self):
        for thinking in (False, True):
            for seed in range(6):
                body = {"messages": HELLO, "temperature": 1.5, "seed": seed, "max_tokens": 400, "reasoning_budget": 10 if thinking else 0,
                        "response_format": {"type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": PERSON}}}
                choice, _ = self.both(body)
                self.assertEqual(choice["finish_reason"], "stop")
                as_person(choice["message"]["content"])

    def test_other_forms_hold(self):
        base = {"messages": HELLO, "temperature": 1.5, "seed": 1, "max_tokens": 300, "reasoning_budget": 5}
        for extra, pattern in (({"grammar": 'root ::= "x" [0-9]+ "y"'}, r"x[0-9]+y"), ({"regex": "[a-c]{3}-\\d\\d"}, r"[a-c]{3}-\d\d"), ({"guided_regex": "ab?c"}, "ab?c"),
                               ({"guided_choice": ["yes", "no", "perhaps"]}, "yes|no|perhaps"), ({"structured_outputs": {"choice": ["left", "right"]}}, "left|right"),
                               ({"structured_outputs": {"regex": "q{2}"}}, "qq"), ({"guided_grammar": 'root ::= "k"'}, "k"), ({"choice": ["ä", "ö"]}, "ä|ö")):
            choice, _ = self.both({**base, **extra})
            if choice["finish_reason"] == "stop":
                self.assertRegex(choice["message"]["content"], "^(%s)$" % pattern)
            else:
                self.assertIn("grammar", extra)
        for extra in ({"json_schema": PERSON}, {"guided_json": PERSON}, {"guided_json": json.dumps(PERSON)}, {"structured_outputs": {"json": PERSON}},
                      {"response_format": {"type": "json_object", "schema": PERSON}}):
            as_person(self.ask({**base, "max_tokens": 400, **extra})["message"]["content"])
        text = self.s.post("/v1/completions", {"prompt": "x", "max_tokens": 50, "temperature": 1.5, "regex": "[a-c]{5}"})[1]["choices"][0]["text"]
        self.assertRegex(text, "^[a-c]{5}$")

    def test_logprobs_change_nothing(self):
        for extra in ({"json_schema": PERSON}, {"tools": [PICK], "tool_choice": "required"}):
            body = {"messages": HELLO, "temperature": 1.5, "seed": 9, "max_tokens": 400, "reasoning_budget": 6, **extra}
            plain = self.ask(body)["message"]
            told = self.ask({**body, "logprobs": True, "top_logprobs": 2})
            for m in (plain, told["message"]):
                for c in m.get("tool_calls", []):
                    c.pop("id")
            self.assertEqual(plain, told["message"])
            self.assertTrue(all(t["logprob"] <= 0 for t in told["logprobs"]["content"]))
            if plain["content"]:
                self.assertEqual(b"".join(bytes(t["bytes"]) for t in told["logprobs"]["content"]).decode(), plain["content"])

    def test_drafts_and_company_change_nothing(self):
        """The rules see each token once, whatever was drafted, and whoever shares the batch."""
        bodies = [{"json_schema": PERSON}, {"tools": [PICK], "tool_choice": "required"}, {"reasoning_budget": 30}, {"stop": ["e", "the"], "reasoning_budget": 9},
                  {"grammar": 'root ::= ("Wait, let me check it again. "){20}', "loop_guard": "all"}, {"max_completion_tokens": 50}]
        bodies = [{"messages": HELLO, "temperature": 0.4, "seed": 5, "max_tokens": 200, "reasoning_budget": 12, **b} for b in bodies]
        wanted, together = [], [None] * len(bodies)

        def told(body):
            answer = self.ask(body)
            for c in answer["message"].get("tool_calls", []):
                c.pop("id")
            return answer

        for body in bodies:
            wanted.append(told({**body, "speculative": False}))
            for spec in ("auto", "ngram", {"mode": "ngram", "n_max": 7}):
                self.assertEqual(told({**body, "speculative": spec}), wanted[-1], (body, spec))

        def one(i):
            together[i] = told(bodies[i])

        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(bodies))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(together, wanted)

    def test_required_calls(self):
        for choice, tools in (("required", [PICK]), ("any", [WEATHER, PICK]), ({"type": "function", "function": {"name": "pick"}}, [WEATHER, PICK])):
            for seed in range(4):
                body = {"messages": HELLO, "temperature": 1.5, "seed": seed, "max_tokens": 3000, "reasoning_budget": 8, "tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
                answer, _ = self.both(body)
                calls = answer["message"].get("tool_calls", [])
                self.assertEqual(len(calls), 1, answer)
                self.assertFalse(answer["message"]["content"])
                name, args = calls[0]["function"]["name"], json.loads(calls[0]["function"]["arguments"])
                if answer["finish_reason"] == "length":
                    continue
                self.assertEqual(answer["finish_reason"], "tool_calls")
                if isinstance(choice, dict) or len(tools) == 1:
                    self.assertEqual(name, "pick")
                if name == "pick":
                    self.assertTrue(1 <= args["n"] <= 9 and args["color"] in ("red", "green") and isinstance(args["ok"], bool), args)
                else:
                    self.assertIsInstance(args["city"], str)

    def test_form_or_call(self):
        """tools beside a schema: the answer is one or the other."""
        for seed in range(6):
            choice, _ = self.both({"messages": HELLO, "temperature": 1.5, "seed": seed, "max_tokens": 500, "reasoning_budget": 0, "tools": [PICK], "json_schema": PERSON})
            if choice["message"].get("tool_calls"):
                self.assertIn(json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])["color"], ("red", "green"))
            else:
                as_person(choice["message"]["content"])

    def test_no_tools_no_calls(self):
        for extra in ({}, {"tools": [PICK], "tool_choice": "none"}, {"tools": []}, {"tools": [{"type": "web_search"}]}):
            for seed in range(3):
                choice, _ = self.both({"messages": HELLO, "temperature": 1.5, "seed": seed, "max_tokens": 60, "reasoning_budget": 0, **extra})
                self.assertNotIn("tool_calls", choice["message"])

    def test_what_is_loosened_is_told(self):
        schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"enum": [1]}, "uniqueItems": True, "maxItems": 2}}, "required": ["a"], "additionalProperties": False}
        choice, _ = self.both({"messages": HELLO, "max_tokens": 200, "temperature": 0, "reasoning_budget": 0, "json_schema": schema})
        self.assertIn("uniqueItems", " ".join(choice["loosened"]))

    def test_loops(self):
        """A grammar that allows one sentence over and over is the source of a loop."""
        body = {"messages": HELLO, "max_tokens": 2000, "reasoning_budget": 0, "grammar": 'root ::= ("Wait, let me check it again. "){400}', "temperature": 0}
        choice, _ = self.both({**body, "loop_guard": "all"})
        self.assertEqual(choice["finish_reason"], "repetition")
        self.assertGreater(choice["loop_period"], 3)
        self.assertEqual(self.ask({**body, "max_tokens": 500})["finish_reason"], "length")


@unittest.skipIf(harness.EMULATOR, "a trained model under emulation takes hours")
@unittest.skipUnless(os.path.exists(NANO), "m5-nano is not here")
class NanoTest(Base):
    @classmethod
    def setUpClass(cls):
        cls.s = harness.Server("--parallel", "2", "--ctx", "4096", "--auto-think", "needle", "--escape-hints", "auto", model=NANO)

    @classmethod
    def tearDownClass(cls):
        code = cls.s.stop()
        assert code == 0, "exit code %s" % code

    def test_thought_and_answer(self):
        body = {"messages": [{"role": "user", "content": "What is 23 + 48?"}], "temperature": 0, "max_tokens": 60}
        choice, usage = self.both({**body, "enable_thinking": True})
        self.assertIn("71", choice["message"]["content"])
        self.assertTrue(choice["message"]["reasoning_content"])
        self.assertNotIn("think>", choice["message"]["content"] + choice["message"]["reasoning_content"])
        self.assertEqual(choice["thinking"]["ended_by"], "model")
        self.assertGreater(usage["completion_tokens_details"]["reasoning_tokens"], 5)
        self.assertNotIn("reasoning_content", self.ask(body)["message"])
        cut, usage = self.both({**body, "enable_thinking": True, "reasoning_budget": 4})
        self.assertEqual((cut["thinking"]["ended_by"], usage["completion_tokens_details"]["reasoning_tokens"]), ("budget", 4))
        self.assertTrue(cut["message"]["content"])

    def test_history_takes_all_names(self):
        prompts = set()
        for key in ("reasoning_content", "reasoning", "thinking"):
            talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", key: "I call it.", "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}]},
                {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}]
            prompts.add(self.s.post("/apply-template", {"messages": talk, "tools": [WEATHER]})[1]["prompt"])
        self.assertEqual(len(prompts), 1)
        self.assertIn("I call it.", prompts.pop())

    def test_call_and_result(self):
        talk = [{"role": "user", "content": "What is the weather in Paris?"}]
        body = {"messages": talk, "tools": [WEATHER], "temperature": 0, "max_tokens": 100}
        choice, _ = self.both(body)
        call = choice["message"]["tool_calls"][0]
        self.assertEqual((call["function"]["name"], json.loads(call["function"]["arguments"])["city"]), ("get_weather", "Paris"))
        self.assertEqual(choice["finish_reason"], "tool_calls")
        self.assertIsNone(choice["message"]["content"])
        pieces = [t for c in self.s.stream(CHAT, body) for ch in c["choices"] for t in ch["delta"].get("tool_calls", [])]
        self.assertGreater(len(pieces), 2, "arguments come as they are written")
        talk = [*talk, choice["message"], {"role": "tool", "tool_call_id": call["id"], "content": '{"weather": "sunny", "temperature": 21}'}]
        answer = self.ask({**body, "messages": talk})
        self.assertTrue(answer["message"]["content"])
        legacy = self.ask({"messages": body["messages"], "functions": [WEATHER["function"]], "temperature": 0, "max_tokens": 100})
        self.assertEqual((legacy["finish_reason"], legacy["message"]["function_call"]["name"]), ("function_call", "get_weather"))

    def test_cache_over_turns(self):
        """The second turn computes its own tokens only, and says what it would say without the first."""
        talk = [{"role": "system", "content": "You are a kind helper. " * 12}, {"role": "user", "content": "Name three fruits."}]
        body = {"temperature": 0, "max_tokens": 40}
        first = self.s.post(CHAT, {**body, "messages": talk})[1]
        talk += [first["choices"][0]["message"], {"role": "user", "content": "And two animals?"}]
        second = self.s.post(CHAT, {**body, "messages": talk})[1]
        self.assertGreater(second["usage"]["prompt_tokens_details"]["cached_tokens"], first["usage"]["prompt_tokens"] - 16)
        fresh = harness.Server("--cache-ram", "0", "--ctx", "4096", model=NANO)
        self.addCleanup(fresh.stop)
        alone = fresh.post(CHAT, {**body, "messages": talk})[1]
        self.assertEqual(alone["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(alone["choices"][0]["message"]["content"], second["choices"][0]["message"]["content"])

    def test_own_head_drafts(self):
        """The next-token head is right often, and never changes a word, drawn or greedy. Whether a server drafts depends on what it costs just then."""
        body = {"messages": [{"role": "user", "content": "Write a short poem about the sea."}], "max_tokens": 80, "logprobs": True}
        for sampling in ({"temperature": 0}, {"temperature": 0.8, "seed": 5}):
            plain = self.s.post(CHAT, {**body, **sampling, "speculative": False})[1]
            drafted = self.s.post(CHAT, {**body, **sampling, "speculative": {"mode": "mtp", "n_max": 2}})[1]
            self.assertEqual(plain["choices"], drafted["choices"])
            self.assertEqual(plain["timings"]["draft_n"], 0)
        prompt = self.s.post("/apply-template", {"messages": body["messages"]})[1]["prompt"]
        ids = ",".join(map(str, self.s.post("/tokenize", {"content": prompt})[1]["tokens"]))
        command = [harness.BINARY, "debug", "generate", "--model", NANO, "--ids", ids, "-n", "64"]
        plain, drafted = (json.loads(subprocess.run([*command, "--spec", spec, "--spec-k", "1"], check=True, capture_output=True).stdout) for spec in ("off", "mtp"))
        self.assertEqual(plain["ids"], drafted["ids"])
        self.assertGreater(drafted["draft_n_accepted"], 20)
        self.assertGreater(drafted["draft_n_accepted"], 0.5 * drafted["draft_n"])
        guesses = json.loads(subprocess.run([*command, "--guesses"], check=True, capture_output=True).stdout)
        self.assertEqual([guesses[s]["n"] for s in ("mtp", "exit", "skip")], [64, 64, 64])
        self.assertTrue(all(g["first"] + g["second"] <= g["n"] for g in guesses.values()) and guesses["mtp"]["first"] > 32, guesses)
        for spec in (["exit", "--exit-layer", "26"], ["exit", "--draft-confidence", "0.5"], ["skip"], ["skip", "--skip-layers", "12,14"]):
            drafted = json.loads(subprocess.run([*command, "--spec", *spec, "--spec-k", "3"], check=True, capture_output=True).stdout)
            self.assertEqual((drafted["ids"], drafted["draft_n"] > 0), (plain["ids"], True), spec)

    def test_required_and_schema(self):
        body = {"messages": [{"role": "user", "content": "Tell me a joke."}], "tools": [WEATHER], "temperature": 0, "max_tokens": 120}
        for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
            answer, _ = self.both({**body, "tool_choice": choice})
            self.assertEqual(answer["message"]["tool_calls"][0]["function"]["name"], "get_weather")
            self.assertIn("city", json.loads(answer["message"]["tool_calls"][0]["function"]["arguments"]))
        self.assertNotIn("tool_calls", self.ask({**body, "tool_choice": "none"})["message"])
        choice, _ = self.both({"messages": [{"role": "user", "content": "Describe Anna, 31, as JSON."}], "temperature": 0, "max_tokens": 100, "enable_thinking": True,
                               "reasoning_budget": 30, "json_schema": PERSON})
        as_person(choice["message"]["content"])

    def test_needle_rule(self):
        text = "The report goes on about the harbour and its ships. " * 70
        talk = [{"role": "system", "content": text + "The code of the safe is 7341. "}, {"role": "user", "content": "What is the code of the safe?"}]
        body = {"messages": talk, "temperature": 0, "max_tokens": 40, "reasoning_budget": 60}
        choice, usage = self.both(body)
        self.assertEqual(choice["thinking"].get("auto_think"), "needle")
        self.assertGreater(usage["completion_tokens_details"]["reasoning_tokens"], 0)
        self.assertNotIn("auto_think", self.ask({**body, "enable_thinking": False, "reasoning_budget": None})["thinking"])
        self.assertNotIn("auto_think", self.ask({**body, "auto_think": "off"})["thinking"])
        short = [{"role": "system", "content": text[:2000]}, talk[1]]
        self.assertNotIn("auto_think", self.ask({**body, "messages": short})["thinking"])

    def test_escape_hint(self):
        body = {"messages": [{"role": "user", "content": "Return the name and age of Anna, 31, as JSON."}], "temperature": 0, "max_tokens": 60, "enable_thinking": True, "reasoning_budget": 3}
        choice, _ = self.both(body)
        self.assertEqual((choice["thinking"]["ended_by"], choice["thinking"].get("escape_hint")), ("budget", "json"))
        self.assertTrue(choice["message"]["content"].startswith("```json\n"), choice)
        for extra in ({"escape_hints": "off"}, {"escape_hints": "format"}, {"tools": [WEATHER]}, {"json_schema": PERSON}, {"max_tokens": 5}):
            answer = self.ask({**body, **extra})
            self.assertNotIn("escape_hint", answer["thinking"], extra)
            self.assertFalse(re.match("```", answer["message"]["content"] or ""), extra)


if __name__ == "__main__":
    unittest.main(verbosity=1)
