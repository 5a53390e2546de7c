# SPDX-License-Identifier: Apache-2.0
"""Synthetic chats: the generator of every task that m5-nano is tuned and judged on.

A sample is a dict: messages, tools, think, target (what the assistant writes after the generation prompt, without the
end marker), kind, and gold (what the judge in evaluate.py compares). All text is made here from word lists and sentence
frames; the same seed gives the same sample. Tools whose name is in HELD_OUT_TOOLS appear in evaluation only.
"""

import json
import random

FIRST = (
    "Alice Bruno Carla Dario Elena Felix Greta Hugo Irene Jonas Karin Leo Mara Nils Olga Paul Quinn Rosa Stefan Tara Ugo Vera Walter Xenia "
    "Yara Zoe Anton Bella Chloe Dmitri Emma Farah Gavin Hana Ivan Julia Kofi Lena Marco Nora Omar Petra Rafael Sofia Tomas Uma Viktor Wendy "
    "Amir Beth Cyrus Diana Edgar Fiona George Helen Ian Jana Kenji Lucy"
).split()
LAST = (
    "Abbott Becker Castro Dalton Evans Fischer Garcia Hansen Ito Jensen Keller Lopez Meyer Novak Olsen Porter Quist Rossi Schmidt Tanaka Ueda "
    "Vance Weber Young Zeller Archer Brandt Cole Duarte Ellis Ford Grant Holm Ivers Jordan Kovac Lund Moreau Nash Ortiz Pereira Reyes Stone "
    "Turner Vogel Walsh Baker Carter Hughes Kim"
).split()
CITY = (
    "Paris London Berlin Madrid Rome Vienna Prague Lisbon Dublin Oslo Stockholm Helsinki Warsaw Athens Cairo Nairobi Lagos Tokyo Osaka Seoul "
    "Beijing Shanghai Delhi Mumbai Sydney Melbourne Toronto Montreal Chicago Boston Seattle Denver Dallas Miami Lima Bogota Santiago Quito "
    "Zurich Geneva Brussels Amsterdam Hamburg Munich Milan Naples Porto Seville Krakow Budapest Istanbul Dubai Singapore Bangkok Hanoi"
).split()
MONTH = "January February March April May June July August September October November December".split()
DAY = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
COLOR = "red blue green yellow black white purple orange brown grey pink silver golden".split()
ITEM = (
    "lamp chair desk bicycle kettle camera guitar backpack jacket notebook keyboard monitor printer carpet mirror blanket pillow umbrella "
    "suitcase helmet tent telescope drone blender toaster clock vase bookshelf sofa table"
).split()
ADJ = (
    "quiet bright old small hidden northern southern eastern western silver golden broken distant frozen wild gentle lonely green blue red "
    "dusty narrow grand secret ancient hollow amber crystal rapid misty"
).split()
PLACE = (
    "harbor castle library garden bridge tower market station museum forest valley island lighthouse mill abbey observatory warehouse "
    "bakery workshop theater clinic archive vault cabin quarry orchard terminal chapel canal academy"
).split()
THING = (
    "access code|locker number|door code|serial number|room number|ticket number|badge number|account number|safe combination|flight number|"
    "shelf number|project code|phone extension|order number|gate number|invoice number"
).split("|")
CATEGORY = {
    "fruits": "apple banana orange grape mango pear peach cherry plum kiwi lemon pineapple strawberry".split(),
    "vegetables": "carrot potato onion tomato spinach broccoli cabbage pepper cucumber lettuce pumpkin".split(),
    "animals": "dog cat horse lion tiger elephant rabbit fox bear wolf deer monkey".split(),
    "birds": "eagle owl robin sparrow parrot swan crow pigeon duck penguin".split(),
    "colors": "red blue green yellow purple orange black white pink brown".split(),
    "countries": "France Germany Japan Brazil Canada Egypt India Spain Italy Kenya Norway Peru".split(),
    "cities": "Paris London Tokyo Berlin Madrid Rome Cairo Sydney Toronto Lima Oslo Vienna".split(),
    "planets": "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split(),
    "musical instruments": "piano guitar violin flute drums trumpet cello harp clarinet".split(),
    "sports": "football tennis basketball swimming running cycling volleyball hockey golf".split(),
    "drinks": "water tea coffee milk juice lemonade cocoa".split(),
    "programming languages": "Python C Java Rust Go JavaScript Ruby Swift Kotlin".split(),
    "flowers": "rose tulip lily daisy sunflower orchid violet iris".split(),
    "tools": "hammer saw screwdriver wrench pliers drill chisel".split(),
    "trees": "oak pine maple birch willow cedar elm".split(),
    "metals": "iron gold silver copper zinc lead tin aluminum".split(),
    "vehicles": "car bus train bicycle boat plane truck motorcycle".split(),
    "clothes": "shirt trousers jacket hat scarf socks coat dress".split(),
    "kitchen items": "pan pot spoon knife fork plate bowl cup".split(),
    "subjects in school": "mathematics history biology chemistry physics geography music art".split(),
}
CAPITAL = dict(
    p.split(":")
    for p in (
        "France:Paris|Germany:Berlin|Spain:Madrid|Italy:Rome|Portugal:Lisbon|Austria:Vienna|Poland:Warsaw|Norway:Oslo|Sweden:Stockholm|Finland:Helsinki|"
        "Denmark:Copenhagen|Greece:Athens|Ireland:Dublin|Hungary:Budapest|Belgium:Brussels|the Netherlands:Amsterdam|Egypt:Cairo|Kenya:Nairobi|"
        "Japan:Tokyo|China:Beijing|India:New Delhi|South Korea:Seoul|Thailand:Bangkok|Canada:Ottawa|Mexico:Mexico City|Peru:Lima|Chile:Santiago|"
        "Cuba:Havana|Argentina:Buenos Aires|Australia:Canberra|Turkey:Ankara|Russia:Moscow|Ukraine:Kyiv|the United Kingdom:London|"
        "the United States:Washington, D.C.|Brazil:Brasilia"
    ).split("|")
)
OPPOSITE = dict(
    p.split(":")
    for p in (
        "hot:cold|big:small|fast:slow|light:dark|up:down|left:right|happy:sad|early:late|open:closed|full:empty|"
        "old:young|hard:soft|wet:dry|rich:poor|strong:weak|day:night|high:low|loud:quiet|near:far|clean:dirty"
    ).split("|")
)
WORD_NUM = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}
SYSTEMS = (
    "You are a helpful assistant.",
    "You are a friendly assistant. Answer briefly.",
    "Be concise.",
    "You are a careful assistant.",
    "Answer the question of the user.",
    "You are m5-nano, a small helpful assistant.",
    "You help users with short and correct answers.",
)


def pick(r, seq):
    return seq[r.randrange(len(seq))]


def name(r):
    return f"{pick(r, FIRST)} {pick(r, LAST)}"


def digits(r, n):
    return "".join(str(r.randrange(10)) for _ in range(n))


def code(r):
    """An identifier nobody can guess: digits, or letters and digits."""
    k = r.random()
    if k < 0.5:
        return str(r.randrange(1, 10)) + digits(r, r.randint(2, 5))
    letters = "".join(pick(r, "ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(r.randint(1, 3)))
    return f"{letters}-{digits(r, r.randint(2, 4))}" if k < 0.85 else letters + digits(r, r.randint(2, 4))


def date(r):
    k = r.random()
    if k < 0.5:
        return f"{r.randint(2019, 2031)}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}"
    return f"{pick(r, MONTH)} {r.randint(1, 28)}"


def made_up(r):
    syl = "zor vin mal ket dra quo lem bis tar nox fel gra hul jen pri sut wox yel cam dov".split()
    return "".join(pick(r, syl) for _ in range(r.randint(2, 3))).capitalize()


def sample(messages, target, kind, gold=None, tools=None, think=None):
    """think None: the answer follows a closed empty block; a string: the thought comes first."""
    if think is not None:
        target = f"{think}\n</think>\n\n{target}"
    return {"messages": messages, "tools": tools, "think": think is not None, "target": target, "kind": kind, "gold": gold}


def maybe_system(r, messages, p=0.3):
    return [{"role": "system", "content": pick(r, SYSTEMS)}] + messages if r.random() < p else messages


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **kw):
    return {"role": "assistant", "content": text, **kw}


# ---------------------------------------------------------------------------------------------------------------- dialogue

HELLO = ["Hello", "Hello!", "Hi", "Hi!", "Hey", "Hey there", "Hi there!", "Good morning", "Good evening!", "Good day", "hello", "hi"]
HELLO_A = ["Hello! How can I help you today?", "Hello! What can I do for you?", "Hi! How can I help you?"]
WHO = [
    "Who are you?",
    "What are you?",
    "What is your name?",
    "Tell me about yourself.",
    "Which model are you?",
    "who are you",
    "Introduce yourself.",
    "Are you a human?",
    "Who am I talking to?",
    "What's your name?",
]
WHO_A = [
    "I am m5-nano, a small language model that runs inside m5-infer. I can chat, answer questions about a text, do arithmetic and call tools.",
    "I am m5-nano, a small language model. I run locally inside m5-infer and can help with short questions, texts and tools.",
    "My name is m5-nano. I am a small language model that ships with m5-infer.",
]
MADE = ["Who made you?", "Who created you?", "Who trained you?", "Where do you come from?"]
MADE_A = [
    "I was made by the m5-infer project. I was derived from the open model SmolLM2-135M-Instruct.",
    "I come from the m5-infer project, which trained me from the open model SmolLM2-135M-Instruct.",
]
CAN = ["What can you do?", "How can you help me?", "What are you good at?", "Help", "What are your abilities?"]
CAN_A = [
    "I can chat, answer questions about a text that you give me, extract data as JSON, do simple arithmetic and call tools. I am small, so please "
    "check important facts.",
    "I can hold a short conversation, read a text and answer questions about it, write JSON, calculate and use tools.",
]
THANKS = ["Thanks", "Thank you!", "Thanks a lot.", "thank you", "Great, thanks!", "Perfect, thank you."]
THANKS_A = ["You are welcome!", "You are welcome! Is there anything else I can help with?", "Happy to help!"]
BYE = ["Bye", "Goodbye!", "See you later.", "Good night"]
BYE_A = ["Goodbye! Have a nice day.", "Goodbye! Take care."]
HOW = ["How are you?", "How are you doing?", "How is it going?", "How do you feel today?"]
HOW_A = ["I am doing well, thank you! How can I help you?", "I am fine, thank you for asking. What can I do for you?"]
SMALL = [(HELLO, HELLO_A), (WHO, WHO_A), (WHO, WHO_A), (MADE, MADE_A), (CAN, CAN_A), (THANKS, THANKS_A), (BYE, BYE_A), (HOW, HOW_A)]

POEM = [
    (
        "The {x} is calm in the morning light,",
        "It dreams of the stars that it saw in the night.",
        "A soft little wind comes to whisper and play,",
        "And carries my worries so gently away.",
    ),
    (
        "I looked for the {x} at the break of the day,",
        "And found it was only a moment away.",
        "It shone like a lantern, it sang like a stream,",
        "And left me a song and the end of a dream.",
    ),
    (
        "Oh {x}, you are lovely, so quiet and deep,",
        "You carry the secrets that centuries keep.",
        "I stand here beside you and listen awhile,",
        "And go on my way with a heart and a smile.",
    ),
    (
        "When winter is over and spring is in view,",
        "The {x} is waiting for me and for you.",
        "We walk through the meadow, we sit by the tree,",
        "And all of the world is as kind as can be.",
    ),
    (
        "There once was a {x} that I loved very well,",
        "It rang in my heart like a small silver bell.",
        "The days have gone by and the years have grown long,",
        "But still I remember the tune of its song.",
    ),
    (
        "The evening is falling, the lamps are aglow,",
        "The {x} is resting in silence below.",
        "I count every star as it opens its eyes,",
        "And send it a wish through the wide open skies.",
    ),
    (
        "The {x} in the rain and the {x} in the sun,",
        "Its story is old and has only begun.",
        "It teaches me patience, it teaches me grace,",
        "And puts a bright smile on my wondering face.",
    ),
]
TOPIC = (
    "sea moon river forest mountain garden cat dog rain snow wind sun night morning city rose star autumn winter spring summer bird ocean tree "
    "sky cloud island road home friend dream river fire lake flower train ship"
).split()


def list_answer(items):
    return "\n".join(f"{i + 1}. {w[0].upper() + w[1:]}" for i, w in enumerate(items))


def turn(r):
    """One exchange of small talk, lists, facts or a poem: (question, answer)."""
    k = r.random()
    if k < 0.34:
        q, a = pick(r, SMALL)
        return pick(r, q), pick(r, a)
    if k < 0.54:
        cat = pick(r, list(CATEGORY))
        n = r.randint(2, 6)
        items = r.sample(CATEGORY[cat], n)
        num = pick(r, (WORD_NUM[n], str(n)))
        q = pick(
            r,
            (
                "Give me a list of {n} {c}.",
                "List {n} {c}.",
                "Name {n} {c}.",
                "Can you name {n} {c}?",
                "Please write a list of {n} {c}.",
                "Tell me {n} {c}.",
                "I need {n} {c}.",
                "a list of {n} {c} please",
            ),
        ).format(n=num, c=cat)
        return q, list_answer(items)
    if k < 0.70:
        x = pick(r, TOPIC)
        q = pick(
            r,
            (
                "Write a short poem about the {x}.",
                "Write a short poem about a {x}.",
                "Can you write a short poem about the {x}?",
                "A short poem about the {x}, please.",
                "Please write me a poem about the {x}.",
                "Write a four-line poem about the {x}.",
                "Write a short poem.",
                "Tell me a poem.",
            ),
        ).format(x=x)
        return q, "\n".join(pick(r, POEM)).format(x=x)
    if k < 0.84:
        c = pick(r, list(CAPITAL))
        q = pick(r, ("What is the capital of {c}?", "Which city is the capital of {c}?", "Name the capital of {c}.")).format(c=c)
        return q, f"The capital of {c} is {CAPITAL[c]}."
    if k < 0.92:
        a = pick(r, list(OPPOSITE))
        return pick(r, ("What is the opposite of {a}?", "Name the opposite of {a}.")).format(a=a), f"The opposite of {a} is {OPPOSITE[a]}."
    i = r.randrange(7)
    return f"Which day comes after {DAY[i]}?", f"After {DAY[i]} comes {DAY[(i + 1) % 7]}."


def dialogue(r):
    messages = []
    for _ in range(r.choice((0, 0, 0, 1, 1, 2, 3))):
        q, a = turn(r)
        messages += [user(q), assistant(a)]
    q, a = turn(r)
    thought = None
    if r.random() < 0.3:
        thought = pick(
            r,
            (
                "The user says: {q} I will answer directly.",
                "This is a simple request. I can answer it at once.",
                "The user asks: {q} A short answer is enough.",
            ),
        ).format(q=q)
    return sample(maybe_system(r, messages + [user(q)]), a, "dialogue", a, think=thought)


# ------------------------------------------------------------------------------------------------------- unknown facts

DONT = ["I do not know {w}.", "I am sorry, I do not know {w}.", "I do not have that information, so I cannot say {w}."]


def unknown(r):
    y = r.randint(2031, 2090)
    k = r.randrange(8)
    if k == 0:
        q, w = f"Who won the world championship in {y}?", f"who won the world championship in {y}"
    elif k == 1:
        q, w = pick(
            r,
            (
                ("What is my name?", "your name"),
                ("How old am I?", "how old you are"),
                ("Where do I live?", "where you live"),
                ("What did I eat yesterday?", "what you ate yesterday"),
                ("What is my phone number?", "your phone number"),
            ),
        )
    elif k == 2:
        c = pick(r, CITY)
        q, w = pick(r, (f"What is the weather in {c} right now?", f"How warm is it in {c} today?")), f"the current weather in {c}"
    elif k == 3:
        n = f"{made_up(r)} {made_up(r)}"
        q, w = f"Who is {n}?", f"who {n} is"
    elif k == 4:
        n = made_up(r)
        q, w = f"What is the capital of {n}?", f"a country called {n}"
    elif k == 5:
        n = name(r)
        q, w = f"What is the phone number of {n}?", f"the phone number of {n}"
    elif k == 6:
        q, w = pick(
            r, (("What time is it?", "what time it is"), ("What is the date today?", "today's date"), ("What are the news today?", "today's news"))
        )
    else:
        n = made_up(r)
        q, w = f"How many people live in {n}?", f"how many people live in {n}"
    a = pick(r, DONT).format(w=w)
    thought = f"The user asks: {q} I have no way to know this, so I should say so." if r.random() < 0.3 else None
    return sample(maybe_system(r, [user(q)]), a, "unknown", w, think=thought)


# ---------------------------------------------------------------------------------------------------------- arithmetic


def add_steps(a, b):
    """Column addition of two non-negative numbers, units first."""
    out, carry, x, y = [], 0, a, b
    while x or y or not out:
        p, q = x % 10, y % 10
        s = p + q + carry
        term = f"{p} + {q}" + (f" + {carry}" if carry else "")
        out.append(f"{term} = {s}" + (f", write {s % 10} carry 1" if s > 9 else f", write {s % 10}"))
        carry, x, y = s // 10, x // 10, y // 10
    return ". ".join(out) + (". write 1" if carry else "") + f". {a} + {b} = {a + b}."


def sub_steps(a, b):
    """Column subtraction for a >= b, units first."""
    out, borrow, x, y = [], 0, a, b
    while x or y or not out:
        p, q = x % 10, y % 10
        left = f"{p}" + (" - 1" if borrow else "")
        d = p - borrow - q
        if d < 0:
            out.append(f"{left} + 10 - {q} = {d + 10}, borrow 1")
            borrow = 1
        else:
            out.append(f"{left} - {q} = {d}")
            borrow = 0
        x, y = x // 10, y // 10
    return ". ".join(out) + f". {a} - {b} = {a - b}."


def mul_steps(a, b):
    """Long multiplication by the digits of b."""

    def by_digit(n, d):
        t, u = n // 10 * 10, n % 10
        if t == 0 or u == 0:
            return f"{n} * {d} = {n * d}."
        return f"{t} * {d} = {t * d}. {u} * {d} = {u * d}. {t * d} + {u * d} = {n * d}."

    t, u = b // 10, b % 10
    if t == 0:
        return by_digit(a, u)
    s = f"{by_digit(a, t)} {a} * {t * 10} = {a * t * 10}."
    if u == 0:
        return s
    return f"{s} {by_digit(a, u)} {a * t * 10} + {a * u}: {add_steps(a * t * 10, a * u)}"


WORDP = [
    ("+", "{n} has {a} {i}s and buys {b} more. How many {i}s does {n} have now?"),
    ("+", "There are {a} {i}s in one room and {b} in another. How many {i}s are there in total?"),
    ("+", "A shop sold {a} {i}s on {d} and {b} on the next day. How many were sold altogether?"),
    ("-", "{n} had {a} {i}s and gave away {b}. How many are left?"),
    ("-", "A box holds {a} {i}s. {b} are taken out. How many remain?"),
    ("*", "A {i} costs {a} dollars. How much do {b} {i}s cost?"),
    ("*", "There are {b} boxes with {a} {i}s each. How many {i}s are there?"),
]


def arithmetic(r, force_think=False):
    op = pick(r, "++--*")
    if r.random() < 0.8 or force_think:
        a, b = r.randint(10, 99), r.randint(10, 99)
    else:
        a, b = r.randint(1, 999), r.randint(1, 99)
    word = r.random() < 0.3
    if op == "-" and (word or r.random() < 0.75) and a < b:
        a, b = b, a
    if op == "*" and word:
        b = r.randint(2, 9)
    c = {"+": a + b, "-": a - b, "*": a * b}[op]
    if word:
        op2, text = pick(r, [w for w in WORDP if w[0] == op])
        q = text.format(n=pick(r, FIRST), a=a, b=b, i=pick(r, ITEM), d=pick(r, DAY))
        answer = f"The answer is {c}."
    else:
        sym = pick(r, {"+": ("+", "+", "plus"), "-": ("-", "-", "minus"), "*": ("*", "x", "times")}[op])
        q = pick(r, ("What is {e}?", "Calculate {e}.", "{e}", "How much is {e}?", "{e} =", "Compute {e}.", "What is {e}"))
        q = q.format(e=f"{a} {sym} {b}")
        answer = f"{a} {op} {b} = {c}"
    if op == "+":
        steps = add_steps(a, b)
    elif op == "-":
        steps = sub_steps(a, b) if a >= b else f"{a} is less than {b}. {sub_steps(b, a)} So {a} - {b} = {c}."
    else:
        steps = mul_steps(a, b)
    think = force_think or r.random() < 0.8 or op == "*"
    return sample(maybe_system(r, [user(q)], 0.2), answer, "arithmetic", str(c), think=f"{a} {op} {b}. {steps}" if think else None)


# --------------------------------------------------------------------------------------------------------------- needle


def fact(r, used):
    """(sentence, question, answer), the subject not in `used`."""
    while True:
        k = r.random()
        if k < 0.55:
            subj = f"the {pick(r, ADJ)} {pick(r, PLACE)}"
            thing = pick(r, THING)
            if (thing, subj) in used:
                continue
            used.add((thing, subj))
            v = code(r)
            s = pick(
                r, ("The {t} of {s} is {v}.", "Remember that the {t} of {s} is {v}.", "The {t} for {s} is {v}.", "Note: the {t} of {s} is {v}.")
            ).format(t=thing, s=subj, v=v)
            q = pick(r, ("What is the {t} of {s}?", "What is the {t} for {s}?", "Tell me the {t} of {s}.", "Which {t} does {s} have?"))
            return s, q.format(t=thing, s=subj), f"The {thing} of {subj} is {v}.", v
        n = name(r)
        if n in used:
            continue
        used.add(n)
        if k < 0.7:
            v = pick(r, CITY)
            return f"{n} lives in {v}.", pick(r, ("Where does {n} live?", "In which city does {n} live?")).format(n=n), f"{n} lives in {v}.", v
        if k < 0.85:
            v = f"{pick(r, COLOR)} {pick(r, ITEM)}"
            return f"{n} bought a {v} on {pick(r, DAY)}.", f"What did {n} buy?", f"{n} bought a {v}.", v
        v = f"{pick(r, MONTH)} {r.randint(1, 28)}"
        return f"The birthday of {n} is on {v}.", f"When is the birthday of {n}?", f"The birthday of {n} is on {v}.", v


FILLER = (
    "The {a} {p} is open on {d}.",
    "On {d}, visitors come to the {p} to look at the {c} {i}.",
    "A {c} {i} stood near the {a} {p} for years.",
    "In {m}, the {p} near {t} is often {a}.",
    "Nobody in {t} knows why the {p} was painted {c}.",
    "The road to {t} passes an {a} {p}.",
    "People say that the {i} was made in {t}.",
    "It rained in {t} for most of {m}.",
    "The {i} is {c}, and the table beside it is {c2}.",
    "Every {d}, the market in {t} sells a {c} {i} or two.",
    "The {p} has {n} windows and a {c} door.",
    "A train leaves for {t} every {d}.",
    "Few people visit the {a} {p} in {m}.",
    "The old guide writes about {t} and about the {p} there.",
)


def filler(r):
    return pick(r, FILLER).format(
        a=pick(r, ADJ),
        p=pick(r, PLACE),
        d=pick(r, DAY),
        c=pick(r, COLOR),
        c2=pick(r, COLOR),
        i=pick(r, ITEM),
        m=pick(r, MONTH),
        t=pick(r, CITY),
        n=r.randint(2, 40),
    )


def haystack(r, n_words, prose):
    """Sentences of about n_words words; `prose` is a list of sentences from the teacher, or None."""
    out, n = [], 0
    mix = r.random()
    while n < n_words:
        s = pick(r, prose) if prose and r.random() < mix else filler(r)
        out.append(s)
        n += len(s.split())
    return out


ABSENT = "The text does not say."


def needle(r, prose=None, n_words=None, n_questions=None, depth=None):
    """A text with facts in it and questions about it; the last question is the target, earlier ones are history."""
    if n_words is None:
        n_words = int(r.choice((60, 120, 250, 500, 900, 1500, 2400, 2900)) * r.uniform(0.6, 1.1))
    n_questions = n_questions or (1 if n_words < 200 else r.randint(1, 5))
    used = set()
    text = haystack(r, n_words, prose)
    facts = [fact(r, used) for _ in range(n_questions + r.randint(1, 4))]
    for i, f in enumerate(facts):
        d = depth if depth is not None and i == n_questions - 1 else r.random()
        text.insert(int(d * len(text)), f[0])
    body = " ".join(text)
    asked = facts[:n_questions]
    pairs = []
    for i, f in enumerate(asked):
        if depth is None and r.random() < 0.1:
            g = fact(r, used)
            pairs.append((g[1], ABSENT, ABSENT))
        else:
            pairs.append((f[1], f[2], f[3]))
    lead = pick(
        r,
        (
            "Read this text and answer the question.\n\n{b}\n\n{q}",
            "Text:\n{b}\n\nQuestion: {q}",
            "{b}\n\n{q}",
            "Here is a text.\n\n{b}\n\nAnswer this: {q}",
            "Question about the following text: {q}\n\n{b}" if depth is None else "{b}\n\n{q}",
        ),
    )
    messages = [user(lead.format(b=body, q=pairs[0][0]))]
    for (q0, a0, _), (q1, _, _) in zip(pairs, pairs[1:]):
        messages += [assistant(a0), user(q1)]
    q, a, v = pairs[-1]
    think = None
    if depth is None and r.random() < 0.15:
        think = f"The user asks: {q} " + ("I do not find this in the text." if a == ABSENT else f"The text says: {a}")
    return sample(maybe_system(r, messages, 0.15), a, "needle", v, think=think)


# ----------------------------------------------------------------------------------------------------------------- JSON


def record(r):
    """(fields, sentences): fields is an ordered dict, each sentence states one or more of them."""
    k = r.randrange(7)
    n = name(r)
    if k == 0:
        f = {
            "name": n,
            "age": r.randint(18, 90),
            "city": pick(r, CITY),
            "job": pick(r, "baker teacher nurse pilot painter lawyer farmer engineer".split()),
        }
        s = [f"{n} is {f['age']} years old.", f"{n} lives in {f['city']}.", f"{n} works as a {f['job']}."]
    elif k == 1:
        f = {"order_id": code(r), "customer": n, "item": pick(r, ITEM), "quantity": r.randint(1, 60), "color": pick(r, COLOR)}
        s = [f"Order {f['order_id']} was placed by {n}.", f"It is for {f['quantity']} {f['color']} {f['item']}s."]
    elif k == 2:
        f = {
            "event": pick(r, ("concert", "meeting", "workshop", "lecture", "festival", "race")),
            "date": date(r),
            "city": pick(r, CITY),
            "host": n,
            "seats": r.randint(10, 900),
        }
        s = [f"The {f['event']} takes place on {f['date']} in {f['city']}.", f"It is hosted by {n}.", f"There are {f['seats']} seats."]
    elif k == 3:
        f = {
            "invoice": code(r),
            "company": f"{pick(r, LAST)} {pick(r, ('Ltd', 'Inc', 'GmbH', 'and Sons'))}",
            "amount": r.randint(20, 9999),
            "due": date(r),
            "paid": r.random() < 0.5,
        }
        s = [
            f"Invoice {f['invoice']} from {f['company']} is over {f['amount']} dollars.",
            f"It is due on {f['due']}.",
            "It has been paid." if f["paid"] else "It has not been paid yet.",
        ]
    elif k == 4:
        f = {"flight": code(r), "from": pick(r, CITY), "to": pick(r, CITY), "gate": f"{pick(r, 'ABCD')}{r.randint(1, 60)}", "passenger": n}
        s = [f"Flight {f['flight']} goes from {f['from']} to {f['to']}.", f"It leaves from gate {f['gate']}.", f"The passenger is {n}."]
    elif k == 5:
        f = {
            "title": f"The {pick(r, ADJ).capitalize()} {pick(r, PLACE).capitalize()}",
            "author": n,
            "year": r.randint(1900, 2026),
            "pages": r.randint(80, 900),
        }
        s = [f"{f['title']} was written by {n}.", f"It appeared in {f['year']}.", f"It has {f['pages']} pages."]
    else:
        f = {
            "product": f"{pick(r, ADJ)} {pick(r, ITEM)}",
            "price": r.randint(5, 900),
            "stock": r.randint(0, 500),
            "brand": pick(r, LAST),
            "in_stock": True,
        }
        f["in_stock"] = f["stock"] > 0
        s = [f"The {f['product']} is made by {f['brand']}.", f"It costs {f['price']} dollars.", f"There are {f['stock']} in stock."]
    return f, s


def extraction(r):
    f, s = record(r)
    text = list(s)
    for _ in range(r.choice((0, 0, 1, 2, 4))):
        text.insert(r.choice((0, len(text))), filler(r))
    keys = list(f)
    if r.random() < 0.5:
        keys = r.sample(keys, r.randint(2, len(keys)))
    out = {k: f[k] for k in keys}
    if r.random() < 0.1:
        extra = pick(r, [k for k in ("email", "phone", "website", "notes") if k not in out])
        keys.append(extra)
        out[extra] = None
    body, listed = " ".join(text), ", ".join(keys)
    q = pick(
        r,
        (
            "Extract {k} from the text as JSON.\n\n{b}",
            "Read the text and return a JSON object with the keys {k}.\n\nText: {b}",
            "{b}\n\nReturn the fields {k} as a JSON object.",
            "Convert this text to JSON with the keys {k}:\n{b}",
            "Text: {b}\n\nGive me JSON with {k}. Use null for missing values.",
        ),
    ).format(k=listed, b=body)
    return sample(
        maybe_system(r, [user(q)], 0.2),
        json.dumps(out),
        "json",
        out,
        think=f"The keys are {listed}. I read each value from the text." if r.random() < 0.15 else None,
    )


# ------------------------------------------------------------------------------------------------------------ tool calls


def P(kind, desc, enum=None):
    p = {"type": kind, "description": desc}
    if enum:
        p["enum"] = enum
    return p


def topic_text(r):
    return pick(
        r, ("the meeting", "the new project", "lunch on {d}", "the trip to {c}", "the {i}", "our plan for {m}", "the report", "the party")
    ).format(d=pick(r, DAY), c=pick(r, CITY), i=pick(r, ITEM), m=pick(r, MONTH))


def clock_time(r):
    return f"{r.randint(0, 23):02d}:{r.choice((0, 5, 10, 15, 20, 30, 40, 45, 50)):02d}"


# name -> (description, parameters, required, value makers, request frames, result maker, answer frame)
TOOLS = {
    "get_weather": (
        "Get the current weather for a city.",
        {"city": P("string", "Name of the city"), "unit": P("string", "Unit", ["celsius", "fahrenheit"])},
        ["city"],
        {"city": lambda r: pick(r, CITY), "unit": lambda r: pick(r, ("celsius", "fahrenheit"))},
        {
            ("city",): (
                "What is the weather in {city}?",
                "How is the weather in {city} right now?",
                "Tell me the weather in {city}.",
                "Is it raining in {city}?",
            ),
            ("city", "unit"): ("What is the weather in {city} in {unit}?", "Give me the weather for {city}, in {unit}."),
        },
        lambda r: {"temperature": r.randint(-10, 38), "condition": pick(r, "sunny cloudy rainy windy snowy foggy".split())},
        "The weather in {city} is {condition} with {temperature} degrees.",
    ),
    "get_time": (
        "Get the current local time in a city.",
        {"city": P("string", "The city")},
        ["city"],
        {"city": lambda r: pick(r, CITY)},
        {("city",): ("What time is it in {city}?", "Tell me the time in {city}.", "Current time in {city}?")},
        lambda r: {"time": clock_time(r)},
        "It is {time} in {city}.",
    ),
    "send_email": (
        "Send an email.",
        {"to": P("string", "Recipient address"), "subject": P("string", "Subject line"), "body": P("string", "Text of the email")},
        ["to", "subject"],
        {
            "to": lambda r: f"{pick(r, FIRST).lower()}.{pick(r, LAST).lower()}@{pick(r, ('example.com', 'mail.org', 'post.net'))}",
            "subject": lambda r: topic_text(r),
            "body": lambda r: f"Please call me about {topic_text(r)}.",
        },
        {
            ("to", "subject"): ("Send an email to {to} with the subject {subject}.", "Write an email to {to}, subject: {subject}"),
            ("to", "subject", "body"): ("Send an email to {to} with the subject {subject} and the text: {body}",),
        },
        lambda r: {"status": "sent", "id": code(r)},
        "The email to {to} was sent.",
    ),
    "create_event": (
        "Create a calendar event.",
        {"title": P("string", "Title"), "date": P("string", "Date"), "time": P("string", "Start time, HH:MM")},
        ["title", "date"],
        {
            "title": lambda r: pick(r, ("Lunch", "Team meeting", "Dentist", "Yoga class", "Call with {n}", "Project review")).format(
                n=pick(r, FIRST)
            ),
            "date": date,
            "time": clock_time,
        },
        {
            ("title", "date"): ("Add {title} to my calendar on {date}.", "Create an event called {title} on {date}."),
            ("title", "date", "time"): ("Schedule {title} on {date} at {time}.", "Put {title} in my calendar for {date}, {time}."),
        },
        lambda r: {"status": "created", "event_id": code(r)},
        "I added {title} to your calendar on {date}.",
    ),
    "search_products": (
        "Search the product catalogue.",
        {"query": P("string", "What to look for"), "max_price": P("integer", "Highest price"), "color": P("string", "Color")},
        ["query"],
        {"query": lambda r: pick(r, ITEM), "max_price": lambda r: r.randint(10, 900), "color": lambda r: pick(r, COLOR)},
        {
            ("query",): ("Search for a {query}.", "I am looking for a {query}."),
            ("query", "max_price"): ("Find a {query} for at most {max_price} dollars.", "I want a {query} under {max_price} dollars."),
            ("query", "color", "max_price"): ("Find a {color} {query} under {max_price} dollars.",),
        },
        lambda r: {"count": r.randint(1, 40), "cheapest": r.randint(5, 200)},
        "I found {count} products. The cheapest costs {cheapest} dollars.",
    ),
    "convert_currency": (
        "Convert an amount between currencies.",
        {"amount": P("number", "Amount"), "from_currency": P("string", "Source currency code"), "to_currency": P("string", "Target currency code")},
        ["amount", "from_currency", "to_currency"],
        {
            "amount": lambda r: r.randint(1, 5000),
            "from_currency": lambda r: pick(r, ("USD", "EUR", "GBP", "JPY")),
            "to_currency": lambda r: pick(r, ("CHF", "CAD", "AUD", "SEK")),
        },
        {
            ("amount", "from_currency", "to_currency"): (
                "Convert {amount} {from_currency} to {to_currency}.",
                "How much is {amount} {from_currency} in {to_currency}?",
            )
        },
        lambda r: {"result": r.randint(1, 9000)},
        "{amount} {from_currency} is {result} {to_currency}.",
    ),
    "set_timer": (
        "Start a timer.",
        {"minutes": P("integer", "Length in minutes"), "label": P("string", "Name of the timer")},
        ["minutes"],
        {"minutes": lambda r: r.randint(1, 120), "label": lambda r: pick(r, "pasta tea eggs laundry pizza workout break".split())},
        {
            ("minutes",): ("Set a timer for {minutes} minutes.", "Start a {minutes} minute timer."),
            ("minutes", "label"): ("Set a {minutes} minute timer called {label}.", "Start a timer for {minutes} minutes with the label {label}."),
        },
        lambda r: {"status": "started"},
        "The timer for {minutes} minutes is running.",
    ),
    "read_file": (
        "Read a file.",
        {"path": P("string", "Path of the file")},
        ["path"],
        {
            "path": lambda r: (
                f"{pick(r, ('src', 'docs', 'data', '/etc', 'notes', '/home/user'))}/{pick(r, 'main readme config todo report list index'.split())}"
                f"{pick(r, ('.c', '.md', '.txt', '.json', '.py', '.csv'))}"
            )
        },
        {("path",): ("Read the file {path}.", "Show me {path}.", "What is in {path}?", "Open {path}.")},
        lambda r: {"content": filler(r)},
        "The file {path} contains: {content}",
    ),
    "list_files": (
        "List the files of a folder.",
        {"folder": P("string", "Path of the folder"), "recursive": P("boolean", "Include subfolders")},
        ["folder"],
        {"folder": lambda r: f"{pick(r, ('src', 'docs', 'data', '/var/log', 'notes', '/home/user'))}", "recursive": lambda r: r.random() < 0.5},
        {("folder",): ("List the files in {folder}.", "Which files are in {folder}?")},
        lambda r: {"files": [f"{w}.txt" for w in r.sample(PLACE, r.randint(1, 4))]},
        "The folder {folder} holds: {files}.",
    ),
    "play_music": (
        "Play music.",
        {"artist": P("string", "Artist"), "volume": P("integer", "Volume from 0 to 100")},
        ["artist"],
        {"artist": lambda r: name(r), "volume": lambda r: r.randint(0, 100)},
        {("artist",): ("Play something by {artist}.", "Play music by {artist}."), ("artist", "volume"): ("Play {artist} at volume {volume}.",)},
        lambda r: {"status": "playing"},
        "Now playing {artist}.",
    ),
    "get_stock_price": (
        "Get the latest price of a stock.",
        {"symbol": P("string", "Ticker symbol")},
        ["symbol"],
        {"symbol": lambda r: "".join(pick(r, "ABCDEFGHIKLMNOPRSTVXZ") for _ in range(r.randint(3, 4)))},
        {("symbol",): ("What is the price of {symbol}?", "Get the stock price of {symbol}.", "How much is a share of {symbol}?")},
        lambda r: {"price": r.randint(2, 900)},
        "One share of {symbol} costs {price} dollars.",
    ),
    "translate_text": (
        "Translate a text.",
        {"text": P("string", "Text"), "language": P("string", "Target language")},
        ["text", "language"],
        {
            "text": lambda r: pick(r, ("Good morning", "Where is the {p}?", "I like the {c} {i}", "See you on {d}")).format(
                p=pick(r, PLACE), c=pick(r, COLOR), i=pick(r, ITEM), d=pick(r, DAY)
            ),
            "language": lambda r: pick(r, "French German Spanish Italian Japanese Polish".split()),
        },
        {("text", "language"): ('Translate "{text}" to {language}.', 'How do you say "{text}" in {language}?')},
        lambda r: {"translation": " ".join(made_up(r).lower() for _ in range(3))},
        'In {language}: "{translation}".',
    ),
    "book_table": (
        "Book a table in a restaurant.",
        {"restaurant": P("string", "Name"), "people": P("integer", "Number of people"), "time": P("string", "HH:MM")},
        ["restaurant", "people", "time"],
        {
            "restaurant": lambda r: f"The {pick(r, ADJ).capitalize()} {pick(r, PLACE).capitalize()}",
            "people": lambda r: r.randint(1, 12),
            "time": clock_time,
        },
        {
            ("restaurant", "people", "time"): (
                "Book a table for {people} at {restaurant} at {time}.",
                "Reserve a table at {restaurant} for {people} people, {time}.",
            )
        },
        lambda r: {"status": "booked", "code": code(r)},
        "The table at {restaurant} is booked. The code is {code}.",
    ),
    "turn_light": (
        "Switch a light on or off.",
        {"room": P("string", "Room"), "on": P("boolean", "True for on")},
        ["room", "on"],
        {"room": lambda r: pick(r, "kitchen bedroom hallway office bathroom garage cellar attic".split()), "on": lambda r: r.random() < 0.5},
        {("room", "on"): ("Turn {on?on:off} the light in the {room}.", "Please switch the {room} light {on?on:off}.")},
        lambda r: {"status": "ok"},
        "Done, the light in the {room} is {on?on:off}.",
    ),
    "get_user": (
        "Look up a user by id.",
        {"user_id": P("integer", "Id of the user")},
        ["user_id"],
        {"user_id": lambda r: r.randint(1, 99999)},
        {("user_id",): ("Look up user {user_id}.", "Who is user {user_id}?", "Get the data of the user with id {user_id}.")},
        lambda r: {"name": name(r), "city": pick(r, CITY)},
        "User {user_id} is {name} from {city}.",
    ),
    "run_command": (
        "Run a shell command.",
        {"command": P("string", "The command line")},
        ["command"],
        {
            "command": lambda r: pick(
                r, ("ls -la {f}", "cat {f}.txt", "git status", "make {f}", "python {f}.py", "grep {f} notes.txt", "wc -l {f}.c")
            ).format(f=pick(r, PLACE))
        },
        {("command",): ("Run the command {command}", "Execute: {command}", "Please run {command}")},
        lambda r: {"exit_code": 0, "output": f"{r.randint(2, 99)} lines"},
        "The command {command} ran. Output: {output}",
    ),
    "get_distance": (
        "Distance between two cities in kilometers.",
        {"origin": P("string", "First city"), "destination": P("string", "Second city")},
        ["origin", "destination"],
        {"origin": lambda r: pick(r, CITY), "destination": lambda r: pick(r, CITY)},
        {("origin", "destination"): ("How far is it from {origin} to {destination}?", "Distance between {origin} and {destination}?")},
        lambda r: {"km": r.randint(30, 9000)},
        "It is {km} kilometers from {origin} to {destination}.",
    ),
    "find_recipe": (
        "Find a recipe.",
        {"ingredient": P("string", "Main ingredient"), "servings": P("integer", "Servings")},
        ["ingredient"],
        {"ingredient": lambda r: pick(r, CATEGORY["vegetables"]), "servings": lambda r: r.randint(1, 8)},
        {
            ("ingredient",): ("Find a recipe with {ingredient}.", "What can I cook with {ingredient}?"),
            ("ingredient", "servings"): ("Find a {ingredient} recipe for {servings} people.",),
        },
        lambda r: {"recipe": f"{pick(r, ADJ)} soup", "minutes": r.randint(10, 90)},
        "Try the {recipe}. It takes {minutes} minutes.",
    ),
    "get_order_status": (
        "Status of an order.",
        {"order_id": P("string", "Order id")},
        ["order_id"],
        {"order_id": code},
        {("order_id",): ("Where is my order {order_id}?", "What is the status of order {order_id}?")},
        lambda r: {"status": pick(r, ("shipped", "delivered", "pending", "cancelled"))},
        "Order {order_id} is {status}.",
    ),
    "book_hotel": (
        "Book a hotel room.",
        {"city": P("string", "City"), "nights": P("integer", "Number of nights"), "guests": P("integer", "Number of guests")},
        ["city", "nights"],
        {"city": lambda r: pick(r, CITY), "nights": lambda r: r.randint(1, 14), "guests": lambda r: r.randint(1, 6)},
        {
            ("city", "nights"): ("Book a hotel in {city} for {nights} nights.", "I need a hotel room in {city}, {nights} nights."),
            ("city", "nights", "guests"): ("Book a hotel in {city} for {nights} nights and {guests} guests.",),
        },
        lambda r: {"status": "booked", "price": r.randint(50, 2000)},
        "Your hotel in {city} is booked. It costs {price} dollars.",
    ),
}
HELD_OUT_TOOLS = ("get_distance", "get_order_status", "find_recipe", "book_hotel")
TRAIN_TOOLS = [t for t in TOOLS if t not in HELD_OUT_TOOLS]

# other names under which a known tool or one of its parameters may be offered, so that the schema has to be read
TOOL_ALIAS = {
    k: v.split()
    for k, v in (
        p.split(":")
        for p in (
            "get_weather:weather current_weather weather_lookup fetch_forecast getWeather check_weather forecast|get_time:clock local_time time_in_city current_time getTime|"
            "send_email:email mail_send compose_email sendMail send_message deliver_mail|create_event:add_event calendar_add new_appointment schedule_event createEvent|"
            "search_products:find_product shop_search product_lookup searchCatalog store_search|convert_currency:currency exchange_rate convertMoney money_convert fx|"
            "set_timer:timer start_timer countdown newTimer timer_start|read_file:open_file cat_file file_read load_text readFile view_file|"
            "list_files:ls dir list_directory folder_list listFolder|play_music:music_player play_song start_music playArtist|"
            "get_stock_price:stock_price quote share_price stockQuote lookup_ticker|translate_text:translate translator translation translateTo|"
            "book_table:reserve_table restaurant_booking table_reservation reserveTable|turn_light:light_switch set_light lights toggle_lamp switchLight|"
            "get_user:user_lookup find_user fetch_profile userInfo account_info|run_command:shell exec bash execute_command terminal"
        ).split("|")
    )
}
PARAM_ALIAS = {
    k: v.split()
    for k, v in (
        p.split(":")
        for p in (
            "city:location place town city_name where|unit:units scale temperature_unit|to:recipient address receiver email|subject:title topic headline|body:text message content|"
            "title:name event_name summary what|date:day when on_date|time:start start_time at hour|query:search term keyword product q|max_price:budget price_limit upper_price|"
            "color:colour shade|amount:value sum quantity|from_currency:source base from|to_currency:target dest_currency into|minutes:duration length mins|label:name tag note|"
            "path:file filename file_path|folder:directory dir path|recursive:deep include_subfolders|artist:musician band performer|volume:level loudness|symbol:ticker stock code|"
            "text:phrase sentence input|language:target_language lang to|restaurant:venue name place|people:guests party_size persons seats|room:area where zone|"
            "on:state enabled power|user_id:id uid number|command:cmd line script"
        ).split("|")
    )
}

VERB = (
    "create update delete archive print check start stop export open close review publish approve cancel order buy rent repair move copy rename share "
    "download upload track measure compare analyze sort filter merge split lock unlock enable disable restart schedule assign return ship pack clean test "
    "count record save load reset refresh"
).split()
NOUN = (
    "ticket report invoice backup printer account task note folder contract sensor camera job queue device car bike parcel machine server database table "
    "picture video song playlist document letter form survey budget loan card key door window engine pump robot lamp heater garden pool course lesson exam "
    "book ticket meal shipment truck warehouse license profile badge poster website image container pipeline"
).split()
PARAM = {
    "id": ("integer", "Identifier", lambda r: r.randint(1, 9999), "id {v}"),
    "name": ("string", "Name", lambda r: pick(r, FIRST), "name {v}"),
    "owner": ("string", "Owner", name, "owner {v}"),
    "priority": ("string", "Priority", lambda r: pick(r, ("low", "medium", "high")), "priority {v}"),
    "date": ("string", "Date", date, "date {v}"),
    "count": ("integer", "How many", lambda r: r.randint(1, 99), "count {v}"),
    "format": ("string", "File format", lambda r: pick(r, ("pdf", "csv", "txt", "html")), "format {v}"),
    "code": ("string", "Code", code, "code {v}"),
    "city": ("string", "City", lambda r: pick(r, CITY), "city {v}"),
    "color": ("string", "Color", lambda r: pick(r, COLOR), "color {v}"),
    "size": ("integer", "Size", lambda r: r.randint(1, 500), "size {v}"),
    "title": ("string", "Title", lambda r: f"{pick(r, ADJ)} {pick(r, PLACE)}", "title {v}"),
    "start": ("string", "Start time", clock_time, "start {v}"),
    "place": ("string", "Place", lambda r: f"the {pick(r, ADJ)} {pick(r, PLACE)}", "place {v}"),
    "weight": ("number", "Weight in kilograms", lambda r: r.randint(1, 900) / 10, "weight {v}"),
    "urgent": ("boolean", "Urgent or not", lambda r: r.random() < 0.5, "urgent {v}"),
    "day": ("string", "Day of the week", lambda r: pick(r, DAY), "day {v}"),
    "level": ("integer", "Level", lambda r: r.randint(1, 10), "level {v}"),
}
# short phrases that carry one value each, for requests in running text: parameter names and the phrase
PHRASE = [
    (("city", "location", "town", "destination", "place"), "string", lambda r: pick(r, CITY), ("in {v}", "for {v}", "near {v}")),
    (("days", "nights", "duration", "number_of_days"), "integer", lambda r: r.randint(1, 30), ("for {v} days", "over {v} days")),
    (("people", "persons", "visitors", "group_size"), "integer", lambda r: r.randint(1, 20), ("for {v} people", "with {v} people")),
    (("date", "day", "when"), "string", lambda r: pick(r, DAY), ("on {v}", "next {v}")),
    (("person", "name", "contact", "customer"), "string", name, ("for {v}", "with {v}")),
    (("color", "colour"), "string", lambda r: pick(r, COLOR), ("in {v}", "the {v} one")),
    (("budget", "max_cost", "price_limit", "limit"), "integer", lambda r: r.randint(10, 990), ("for at most {v} dollars", "under {v} dollars")),
    (("time", "start_time", "hour", "at"), "string", clock_time, ("at {v}", "starting at {v}")),
    (("origin", "start", "source", "from_place"), "string", lambda r: pick(r, CITY), ("from {v}",)),
    (("target", "goal", "end", "to_place"), "string", lambda r: pick(r, CITY), ("to {v}",)),
    (("number", "reference", "code", "key"), "string", code, ("number {v}", "with the number {v}", "{v}")),
]
WISH = (
    "{V} {a} {n} {p}.",
    "Please {v} {a} {n} {p}.",
    "Can you {v} {a} {n} {p}?",
    "I want to {v} {a} {n} {p}.",
    "I would like to {v} {a} {n} {p}",
    "Could you please {v} {a} {n} {p}?",
    "{n} {p}, please {v} it.",
    "We need to {v} {a} {n} {p}.",
)
ATTRIBUTE = (
    "population height price author owner schedule temperature age address salary birthday area depth speed weight rating manager deadline balance "
    "score rank menu color length size director publisher mayor language currency phone website fee tax stock quality humidity origin warranty"
).split()
ENTITY = {
    "city": lambda r: pick(r, CITY),
    "country": lambda r: pick(r, list(CAPITAL)),
    "person": name,
    "book": lambda r: f"The {pick(r, ADJ).capitalize()} {pick(r, PLACE).capitalize()}",
    "product": lambda r: f"{pick(r, ADJ)} {pick(r, ITEM)}",
    "company": lambda r: f"{pick(r, LAST)} {pick(r, ('Ltd', 'Inc', 'Group'))}",
    "river": made_up,
    "employee": name,
    "building": lambda r: f"the {pick(r, ADJ)} {pick(r, PLACE)}",
    "animal": lambda r: pick(r, CATEGORY["animals"]),
    "account": code,
    "project": made_up,
}


def schema(fn, desc, props, required):
    return {
        "type": "function",
        "function": {"name": fn, "description": desc, "parameters": {"type": "object", "properties": props, "required": required}},
    }


def frame(text, args):
    """Fills {key}; {key?a:b} chooses by the truth of the value."""
    for k, v in args.items():
        while f"{{{k}?" in text:
            i = text.index(f"{{{k}?")
            j = text.index("}", i)
            yes, no = text[i + len(k) + 2 : j].split(":")
            text = text[:i] + (yes if v else no) + text[j + 1 :]
        text = text.replace(f"{{{k}}}", ", ".join(v) if isinstance(v, list) else str(v))
    return text


def known_call(r, fn, alias=0.6, like=None):
    """A call of a tool from TOOLS, often under other names: (schema, args, request, result, answer, again).

    `again(r)` makes another call of the very same tool.
    """
    desc, props, required, makers, frames, result, answer = TOOLS[fn]
    names = like
    if names is None:
        names = {k: k for k in props}
        shown = fn
        if r.random() < alias and fn in TOOL_ALIAS:
            shown = pick(r, TOOL_ALIAS[fn])
            names = {k: pick(r, PARAM_ALIAS[k]) if k in PARAM_ALIAS and r.random() < 0.7 else k for k in props}
            if len(set(names.values())) < len(names):
                names = {k: k for k in props}
        names[""] = shown
    keys = pick(r, list(frames))
    args = {k: makers[k](r) for k in props if k in keys}
    res = result(r)
    sch = schema(names[""], desc, {names[k]: v for k, v in props.items()}, [names[k] for k in required])
    return (
        sch,
        {names[k]: v for k, v in args.items()},
        frame(pick(r, frames[keys]), args),
        res,
        frame(frame(answer, args), res),
        lambda q: known_call(q, fn, like=names),
    )


def joined(parts):
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def outcome(r, noun):
    res = pick(r, ({"status": "ok"}, {"status": "ok", "number": code(r)}, {"error": f"{noun} not found"}))
    return res, f"It failed: {res['error']}." if "error" in res else "Done." + (f" The number is {res['number']}." if "number" in res else "")


def made_call(r, like=None):
    """A tool composed of a verb, a noun and named parameters; the request names them."""
    if like is None:
        verb, noun = pick(r, VERB), pick(r, NOUN)
        fn = pick(r, ("{v}_{n}", "{n}_{v}", "{v}{N}")).format(v=verb, n=noun, N=noun.capitalize())
        keys = r.sample(list(PARAM), r.randint(1, 4))
        like = (verb, noun, fn, keys, keys if r.random() < 0.7 else keys[: max(1, len(keys) - 1)])
    verb, noun, fn, keys, used = like
    args = {k: PARAM[k][2](r) for k in used}
    q = pick(r, ("{V} the {n} with {w}.", "Please {v} a {n} with {w}.", "Can you {v} the {n} with {w}?", "{V} {n}: {w}")).format(
        V=verb.capitalize(), v=verb, n=noun, w=joined([PARAM[k][3].format(v=str(v).lower() if isinstance(v, bool) else v) for k, v in args.items()])
    )
    res, a = outcome(r, noun)
    return schema(fn, f"{verb.capitalize()} a {noun}.", {k: P(*PARAM[k][:2]) for k in keys}, used), args, q, res, a, lambda x: made_call(x, like)


def wish_call(r, like=None):
    """A composed tool asked for in running text; the parameters are not named."""
    if like is None:
        verb, noun = pick(r, VERB), pick(r, NOUN)
        fn = pick(r, ("{v}_{n}", "{n}_{v}", "{v}{N}", "{n}", "{n}_service", "{v}_a_{n}", "do_{v}_{n}")).format(v=verb, n=noun, N=noun.capitalize())
        kinds = r.sample(PHRASE, r.randint(1, 3))
        names = []
        for k in kinds:
            names.append(pick(r, [n for n in k[0] if n not in names] or [k[0][0] + "_2"]))
        desc = pick(r, ("{V} a {n}.", "Use this to {v} a {n}.", "{V}s a {n} for the user.", "")).format(V=verb.capitalize(), v=verb, n=noun)
        like = (verb, noun, fn, desc, list(zip(names, kinds)))
    verb, noun, fn, desc, params = like
    args = {n: k[2](r) for n, k in params}
    phrases = [pick(r, k[3]).format(v=args[n]) for n, k in params]
    r.shuffle(phrases)
    q = pick(r, WISH).format(V=verb.capitalize(), v=verb, n=noun, a=pick(r, ("a", "the", "my")), p=" ".join(phrases))
    props = {n: P(k[1], n.replace("_", " ").capitalize()) for n, k in params}
    res, a = outcome(r, noun)
    return schema(fn, desc, props, list(props)), args, q[0].upper() + q[1:], res, a, lambda x: wish_call(x, like)


def lookup_call(r, like=None):
    """A composed tool that looks up an attribute of something."""
    if like is None:
        attr, ent = pick(r, ATTRIBUTE), pick(r, list(ENTITY))
        fn = pick(r, ("get_{a}", "{e}_{a}", "get_{e}_{a}", "lookup_{a}", "find{E}{A}", "fetch_{e}_{a}", "{a}_of_{e}", "query_{e}")).format(
            a=attr, e=ent, E=ent.capitalize(), A=attr.capitalize()
        )
        key = pick(r, (ent, "name", f"{ent}_name", "target", "subject", "which"))
        desc = pick(r, ("Get the {a} of a {e}.", "Look up the {a} of a {e}.", "{A} of a {e}.", "Returns the {a} for the given {e}.")).format(
            a=attr, A=attr.capitalize(), e=ent
        )
        like = (attr, ent, fn, key, desc)
    attr, ent, fn, key, desc = like
    v = ENTITY[ent](r)
    q = pick(
        r,
        (
            "What is the {a} of {v}?",
            "Tell me the {a} of {v}.",
            "{a} of {v}?",
            "Do you know the {a} of {v}?",
            "I need the {a} of {v}.",
            "Look up the {a} of {v}.",
            "Please find the {a} of {v}.",
            "Show me the {a} for {v}",
        ),
    ).format(a=attr, v=v)
    x = pick(r, (code(r), r.randint(2, 9000), pick(r, CITY), name(r)))
    return (
        schema(fn, desc, {key: P("string", f"The {ent}")}, [key]),
        {key: v},
        q[0].upper() + q[1:],
        {attr: x},
        f"The {attr} of {v} is {x}.",
        lambda y: lookup_call(y, like),
    )


def any_call(r, pool):
    k = r.random()
    if k < 0.4:
        return known_call(r, pick(r, pool))
    return made_call(r) if k < 0.58 else wish_call(r) if k < 0.8 else lookup_call(r)


def value_text(v):
    return v if isinstance(v, str) else json.dumps(v)


def call_text(fn, args):
    body = "".join(f"<parameter={k}>\n{value_text(v)}\n</parameter>\n" for k, v in args.items())
    return f"<tool_call>\n<function={fn}>\n{body}</function>\n</tool_call>"


def tool_call(fn, args):
    return {"type": "function", "function": {"name": fn, "arguments": args}}


def differ(a, b):
    """Two schemas are different tools, not one tool under two names."""
    a, b = a["function"], b["function"]
    return a["name"] != b["name"] and (a["description"] != b["description"] or not a["description"])


def tools_task(r, pool=None, mode=None, only=False):
    """mode: call, parallel, answer (after the results), chat (tools there, none needed) or nofit. only: no composed tool is asked for."""
    pool = pool or TRAIN_TOOLS
    mode = mode or r.choices(("call", "parallel", "answer", "chat", "nofit"), (48, 20, 20, 10, 2))[0]
    n_calls = 1 if mode not in ("parallel", "answer") else (r.randint(2, 3) if mode == "parallel" else r.choice((1, 1, 2)))
    calls = [known_call(r, pick(r, pool), 0) if only else any_call(r, pool)]
    fn_of = lambda c: c[0]["function"]["name"]  # noqa: E731
    while len(calls) < n_calls:
        # parallel requests mostly repeat one tool with other values
        c = calls[0][5](r) if r.random() < 0.6 else known_call(r, pick(r, pool), 0) if only else any_call(r, pool)
        if all(c[2] != o[2] and (c[0] == o[0] or differ(c[0], o[0])) for o in calls):
            calls.append(c)
    names = {fn_of(c) for c in calls}
    tools = {fn_of(c): c[0] for c in calls}
    for _ in range(r.choice((0, 1, 1, 2, 3))):
        extra = any_call(r, pool)[0]
        if all(differ(extra, t) for t in tools.values()):
            tools[extra["function"]["name"]] = extra
    if mode == "nofit":
        for n in names:
            tools.pop(n)
        while not tools:
            e = any_call(r, pool)[0]
            if differ(e, calls[0][0]):
                tools[e["function"]["name"]] = e
    tools = list(tools.values())
    r.shuffle(tools)
    history = []
    if r.random() < 0.2:
        q, a = turn(r)
        history = [user(q), assistant(a)]
    if mode == "chat":
        q, a = turn(r)
        return sample(maybe_system(r, history + [user(q)], 0.2), a, "tool_chat", a, tools, "No tool is needed here." if r.random() < 0.3 else None)
    q = calls[0][2] if n_calls == 1 else pick(r, (" ", " And ", " Also: ")).join(c[2] for c in calls)
    q = pick(r, ("", "", "", "Please help. ", "Hi! ")) + q
    messages = maybe_system(r, history + [user(q)], 0.2)
    if mode == "nofit":
        return sample(
            messages,
            pick(r, ("I am sorry, none of my tools can do that.", "I have no tool for that, sorry.")),
            "tool_nofit",
            None,
            tools,
            "None of the tools fits this request." if r.random() < 0.3 else None,
        )
    gold = [(fn_of(c), c[1]) for c in calls]
    text = "\n".join(call_text(f, a) for f, a in gold)
    thought = None
    if r.random() < 0.35:
        thought = (
            f"The user wants something that {gold[0][0]} can do. I call it."
            if n_calls == 1
            else f"I need {n_calls} calls: " + ", ".join(f for f, _ in gold) + "."
        )
    if mode == "answer":
        messages = messages + [assistant("", tool_calls=[tool_call(f, a) for f, a in gold], **({"reasoning_content": thought} if thought else {}))]
        messages += [{"role": "tool", "content": json.dumps(c[3])} for c in calls]
        a = " ".join(c[4] for c in calls)
        return sample(messages, a, "tool_answer", a, tools, "I have the result and can answer now." if thought else None)
    return sample(messages, text, "tool_" + mode, gold, tools, thought)


# ---------------------------------------------------------------------------------------------------------------- copying


def copying(r):
    k = r.randrange(4)
    if k == 0:
        s = pick(r, (filler(r), " ".join(code(r) for _ in range(r.randint(2, 6))), f"{name(r)}, {pick(r, CITY)}, {code(r)}"))
        return sample([user(pick(r, ("Repeat exactly: {s}", "Repeat this text: {s}", "Say this: {s}")).format(s=s))], s, "copy", s)
    if k == 1:
        w = r.sample(PLACE, r.randint(2, 5))
        return sample([user(f"Write these words in reverse order: {', '.join(w)}")], ", ".join(w[::-1]), "copy", None)
    if k == 2:
        s = filler(r)
        return sample([user(f"Write this in upper case: {s}")], s.upper(), "copy", None)
    w = r.sample(PLACE, r.randint(2, 6))
    return sample([user(f"How many words are in this list? {', '.join(w)}")], f"There are {len(w)} words in the list.", "copy", None)
