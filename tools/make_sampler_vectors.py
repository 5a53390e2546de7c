#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/vectors/sampler.json: what Hugging Face transformers leaves of a distribution after its processors and warpers.

Needs torch and transformers. Usage: tools/make_sampler_vectors.py > tests/vectors/sampler.json
"""
import json
import sys

import torch
import transformers
from transformers import (LogitsProcessorList, MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper,
                          TopPLogitsWarper, TypicalLogitsWarper)

SEED, N_VOCAB = 20261129, 48
CASES = [
    {}, {"temperature": 0.5}, {"temperature": 1.7}, {"top_k": 1}, {"top_k": 7}, {"top_p": 0.5}, {"top_p": 0.95}, {"min_p": 0.05}, {"typical_p": 0.4},
    {"typical_p": 0.9}, {"repetition_penalty": 1.5}, {"repetition_penalty": 0.7}, {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    {"temperature": 1.5, "top_p": 0.8, "min_p": 0.1}, {"top_k": 12, "top_p": 0.7, "typical_p": 0.8},
    {"temperature": 0.8, "top_k": 30, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.95, "repetition_penalty": 1.2},
]


def main():
    torch.manual_seed(SEED)
    rows = []
    for params in CASES:
        for spread in (1.0, 4.0):
            logits = (torch.randn(N_VOCAB) * spread).to(torch.float32)
            ids = torch.randint(0, N_VOCAB, (10,))
            chain = LogitsProcessorList()
            # The order of transformers' generation: processors first, then warpers in this order.
            if "repetition_penalty" in params:
                chain.append(RepetitionPenaltyLogitsProcessor(params["repetition_penalty"]))
            if "temperature" in params:
                chain.append(TemperatureLogitsWarper(params["temperature"]))
            if "top_k" in params:
                chain.append(TopKLogitsWarper(params["top_k"]))
            if "top_p" in params:
                chain.append(TopPLogitsWarper(params["top_p"]))
            if "min_p" in params:
                chain.append(MinPLogitsWarper(params["min_p"]))
            if "typical_p" in params:
                chain.append(TypicalLogitsWarper(params["typical_p"]))
            probs = torch.softmax(chain(ids[None], logits[None].clone())[0].double(), -1)
            rows.append({"params": params, "ids": ids.tolist(), "logits": [float(x) for x in logits],
                         "logprobs": [round(float(x), 7) for x in torch.log_softmax(logits.double(), -1)],
                         "probs": {str(i): float(p) for i, p in enumerate(probs) if p > 0}})
    sys.stdout.write('{"transformers": "%s", "torch": "%s", "seed": %d, "rows": [\n' % (transformers.__version__, torch.__version__, SEED))
    sys.stdout.write(",\n".join(json.dumps(r) for r in rows) + "\n]}\n")


main()
