# SPDX-License-Identifier: Apache-2.0
"""The mixture of synthetic chats that training draws from."""

import tasks
import toolchat
from toolgen import Gen

MIX = (
    ("dialogue", 16),
    ("unknown", 5),
    ("arithmetic", 14),
    ("needle", 9),
    ("json", 7),
    ("fields", 8),
    ("tools", 18),
    ("session", 80),
    ("copy", 5),
)
MAKERS = {
    "dialogue": lambda r, prose: tasks.dialogue(r),
    "unknown": lambda r, prose: tasks.unknown(r),
    "arithmetic": lambda r, prose: tasks.arithmetic(r),
    "needle": lambda r, prose: tasks.needle(r, prose),
    "json": lambda r, prose: tasks.extraction(r),
    "fields": lambda r, prose: toolchat.fields(Gen(r, prose)),
    "tools": lambda r, prose: tasks.tools_task(r),
    "session": lambda r, prose: toolchat.session(Gen(r, prose)),
    "copy": lambda r, prose: tasks.copying(r),
}


def make(r, kind=None, prose=None):
    kind = kind or r.choices([m[0] for m in MIX], [m[1] for m in MIX])[0]
    return MAKERS[kind](r, prose)


if __name__ == "__main__":
    import json
    import random

    rng = random.Random(1)
    for m, _ in MIX:
        for _ in range(3):
            x = make(rng, m)
            print(m, "|", json.dumps(x["messages"])[-300:], "=>", repr(x["target"])[:400])
