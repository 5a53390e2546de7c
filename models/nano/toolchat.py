# SPDX-License-Identifier: Apache-2.0
"""Synthetic chats about the tools of toolgen.py, and extraction of random fields as JSON. Samples have the form of tasks.sample."""

import json

import toolgen
from tasks import assistant, call_text, copying, joined, maybe_system, pick, sample, tool_call, turn, user
from toolgen import CLOSERS, OPENERS, SLOTS, Call, Gen, Param, human

NOFIT = ("I am sorry, none of my tools can do that.", "I have no tool for that, sorry.")
MODES = (("call", 44), ("parallel", 24), ("answer", 16), ("chain", 6), ("chat", 5), ("nofit", 1))


def chained(g):
    """Two tools of which the second needs a result of the first: (tools, first call, second call)"""
    r = g.r
    nouns, verbs, _ = pick(r, toolgen.HELD_DOMAINS if g.held else toolgen.DOMAINS)
    noun, verb = pick(r, nouns), pick(r, verbs)
    by, found = SLOTS[pick(r, ("title", "person", "email", "city", "date"))], SLOTS[pick(r, ("code", "int_id"))]
    getter = pick(r, ("find", "search", "lookup", "get"))
    key = pick(r, ("id", f"{noun}_id", "number"))
    ps = [Param(g, by)]
    a = toolgen.Tool(g, toolgen.styled(r, [getter, *noun.split("_")]), f"Find a {human(noun)} by its {human(ps[0].name)}.", ps)
    q = Param(g, found, key)
    b = toolgen.Tool(g, toolgen.styled(r, [*verb.split("_"), *noun.split("_")]), f"{human(verb).capitalize()} a {human(noun)} by its id.", [q])
    a.noun, a.group, b.noun, b.group = noun, f"find_{noun}", noun, f"{verb}_{noun}"
    v, t = by.draw(g)
    ident, _ = found.draw(g)
    text = pick(
        r,
        (
            "Find the {n} {l} {v} and {b} it.",
            "Look up the {n} with {l} {v}, then {b} it.",
            "{B} the {n} with the {l} {v}. You have to look up its id first.",
            "Please {b} the {n} whose {l} is {v}.",
        ),
    ).format(n=human(noun), l=human(ps[0].name), v="\0", b=human(verb), B=human(verb).capitalize())
    first, second = Call.__new__(Call), Call.__new__(Call)
    first.tool, first.text, first.args = a, text.replace("\0", t), {ps[0].name: v}
    first.result, first.answer = json.dumps(pick(r, ({key: ident}, {key: ident, "status": "open"}, {ps[0].name: v, key: ident}))), ""
    second.tool, second.text, second.args = b, "", {key: ident}
    second.result, second.answer = b.answered(g)
    return [a, b], first, second


def asked(calls, thought=None):
    """The assistant's turn with these calls, and the tools' answers."""
    out = [assistant("", tool_calls=[tool_call(*c.gold()) for c in calls], **({"reasoning_content": thought} if thought else {}))]
    return out + [{"role": "tool", "content": c.result} for c in calls]


def polite(r, text):
    head = pick(r, OPENERS)
    return head + text + pick(r, CLOSERS)


def small_talk(r):
    if r.random() < 0.85:
        return turn(r)
    s = copying(r)
    return s["messages"][-1]["content"], s["target"]


def session(g, mode=None, rounds=None):
    """Turns of one chat with the same tools; the last one ends in what `mode` says."""
    r = g.r
    mode = mode or r.choices([m for m, _ in MODES], [w for _, w in MODES])[0]
    rounds = rounds if rounds is not None else r.choice((0, 0, 0, 1, 1, 2, 3, 4))
    chain = chained(g) if mode == "chain" else None
    wanted = chain[0] if chain else [toolgen.any_tool(g)]
    tools = toolgen.offer(g, wanted, r.choice((0, 1, 1, 2, 2, 3, 3, 4, 5, 7) if not chain else (0, 1, 2)))
    usable = [t for t in tools if not chain or t not in chain[0]] or None
    messages = []
    many = lambda: r.choice((2, 2, 2, 3, 3, 4))  # noqa: E731
    for _ in range(rounds):
        k = r.random()
        if k < 0.1 or not usable:
            q, a = small_talk(r)
            messages += [user(q), assistant(a)]
        elif k < 0.11:
            other = toolgen.any_tool(g)
            if toolgen.distinct(other, tools):
                messages += [user(polite(r, Call(other, g).text)), assistant(pick(r, NOFIT))]
        else:
            calls, text = toolgen.request(g, usable, many() if k < 0.35 else 1)
            messages += [user(polite(r, text)), *asked(calls), assistant(" ".join(c.answer for c in calls))]
    schemas = [t.schema for t in tools]
    done = lambda q: maybe_system(r, messages + [user(q)], 0.2)  # noqa: E731
    if mode == "chat":
        q, a = small_talk(r)
        return sample(done(q), a, "tool_chat", a, schemas, "No tool is needed here." if r.random() < 0.25 else None)
    if mode == "nofit":
        other = toolgen.any_tool(g)
        while not toolgen.distinct(other, tools):
            other = toolgen.any_tool(g)
        q = polite(r, Call(other, g).text)
        return sample(done(q), pick(r, NOFIT), "tool_nofit", None, schemas, "None of the tools fits this request." if r.random() < 0.25 else None)
    thinks = r.random() < 0.25
    if mode == "chain":
        _, a, b = chain
        thought = f"I need two steps: first {a.tool.fn}, then {b.tool.fn}." if thinks else None
        k = r.random()
        now = done(polite(r, a.text))
        if k < 0.25:
            return sample(now, call_text(*a.gold()), "tool_call", [a.gold()], schemas, thought)
        now += asked([a], thought)
        if k < 0.75:
            return sample(now, call_text(*b.gold()), "tool_chain", [b.gold()], schemas, "I have the id. Now the second step." if thinks else None)
        now += asked([b], "I have the id. Now the second step." if thinks else None)
        return sample(now, b.answer, "tool_answer", b.answer, schemas, "I have the result and can answer now." if thinks else None)
    calls, text = toolgen.request(g, usable, 1 if mode == "call" or (mode == "answer" and r.random() < 0.65) else many())
    gold = [c.gold() for c in calls]
    thought = None
    if thinks:
        thought = (
            f"The user wants something that {gold[0][0]} can do. I call it."
            if len(gold) == 1
            else f"I need {len(gold)} calls: " + ", ".join(f for f, _ in gold) + "."
        )
    now = done(polite(r, text))
    if mode == "answer":
        answer = " ".join(c.answer for c in calls)
        return sample(
            now + asked(calls, thought), answer, "tool_answer", answer, schemas, "I have the result and can answer now." if thinks else None
        )
    kind = "tool_call" if len(gold) == 1 else "tool_parallel"
    return sample(now, "\n".join(call_text(f, a) for f, a in gold), kind, gold, schemas, thought)


# ----------------------------------------------------------------------------------------------------------------- fields


def stated(r, g, p, value, text):
    """A sentence that gives one field."""
    label = human(p.name if p.odd or r.random() < 0.7 else pick(r, p.slot.train))
    if p.slot.type == "b":
        return f"{label.capitalize()}: {'yes' if value else 'no'}."
    form = pick(
        r, ("The {l} is {v}.", "The {l} is {v}.", "{L}: {v}.", "It has the {l} {v}.", "As {l} we have {v}.", "{L} = {v}.", "We noted {v} as the {l}.")
    )
    return form.format(l=label, L=label[0].upper() + label[1:], v="\0").replace("\0", text)


def empty(p):
    return {"s": "", "e": "", "i": 0, "n": 0, "b": False, "S": [], "I": []}[p.slot.type]


def fields(g):
    """Random fields in a text, wanted as a JSON object: by keys, by a JSON schema, or by an example."""
    r = g.r
    nouns, _, keys = pick(r, toolgen.HELD_DOMAINS if g.held else toolgen.DOMAINS)
    chosen = toolgen.choose_slots(r, keys if r.random() < 0.5 else [k for k in SLOTS if SLOTS[k].held], r.randint(2, 6))
    ps = {}
    for key in chosen:
        p = Param(g, SLOTS[key], None, True, 0.5)
        ps.setdefault(p.name, p)
    ps = list(ps.values())
    out, lines = {}, []
    for p in ps:
        v, t = p.slot.draw(g, p.choices)
        if r.random() < 0.06:
            out[p.name] = None
            continue
        out[p.name] = v
        lines.append(stated(r, g, p, v, t))
    r.shuffle(lines)
    for _ in range(r.choice((0, 0, 1, 2, 3))):
        lines.insert(r.randrange(len(lines) + 1), g.sentence())
    noun = human(pick(r, nouns))
    body = pick(r, ("", f"This is about a {noun}. ", f"{noun.capitalize()}. ")) + pick(r, (" ", " ", "\n")).join(lines)
    listed = ", ".join(p.name for p in ps)
    style = r.choice((0, 0, 0, 1, 2))
    schema = json.dumps({"type": "object", "properties": {p.name: p.schema(g, style) for p in ps}, "required": [p.name for p in ps]})
    example = json.dumps({p.name: empty(p) for p in ps})
    k = r.random()
    system = []
    if k < 0.4:
        q = pick(
            r,
            (
                "Extract {k} from the text as JSON.\n\n{b}",
                "Return a JSON object with the keys {k}.\n\nText: {b}",
                "{b}\n\nGive me {k} as a JSON object.",
                "Read the {n} below and answer with JSON. Keys: {k}\n\n{b}",
            ),
        ).format(k=listed, b="\0", n=noun)
    elif k < 0.65:
        q = pick(
            r,
            (
                "Answer with a JSON object that matches this schema:\n{s}\n\n{b}",
                "{b}\n\nExtract the data as JSON. Schema: {s}",
                "JSON schema:\n{s}\n\nText:\n{b}",
            ),
        ).format(s=schema, b="\0")
    elif k < 0.8:
        q = pick(r, ("Fill this object from the text: {e}\n\n{b}", "{b}\n\nWrite the same as JSON in this form: {e}")).format(e=example, b="\0")
    else:
        system = [
            {
                "role": "system",
                "content": pick(r, ("Answer only with JSON that follows this schema: {s}", "You extract data as JSON. Schema: {s}")).format(s=schema),
            }
        ]
        q = "\0"
    q = q.replace("\0", body)
    thought = f"The keys are {listed}. I read each value from the text." if r.random() < 0.12 else None
    return sample(system + [user(q)], json.dumps(out, ensure_ascii=False), "json", out, think=thought)


def offered(r, prose):
    """Schemas of some tools, for a chat that needs none of them."""
    g = Gen(r, prose)
    return [t.schema for t in toolgen.offer(g, [], r.choice((1, 1, 2, 3, 4)))]
