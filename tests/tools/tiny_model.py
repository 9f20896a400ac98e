"""Makes a tiny random llama: ``python tests/tools/tiny_model.py DIR [LAYERS]``.

Two layers, a tokenizer of its own and a ChatML template: real vLLM serves it, at once, and says
nonsense, the same each time. Needs torch, transformers and tokenizers: run it with the Python of
the node's environment (scripts/env).
"""

from __future__ import annotations

import email
import sys
from pathlib import Path

VOCABULARY = 2048
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make(directory: Path, layers: int = 2) -> None:
    """Write config, weights (1 MB), tokenizer and template into ``directory``."""
    import tokenizers
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    # Text that is the same wherever this runs with the same Python.
    texts = (path.read_text("utf-8") for path in sorted(Path(email.__file__).parent.glob("*.py")))
    bpe.train_from_iterator(
        texts,
        tokenizers.trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=specials,
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=specials[0],
        eos_token=specials[2],
        pad_token=specials[0],
        chat_template=CHAT_TEMPLATE,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=layers,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=8192,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=True,
        )
    )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


if __name__ == "__main__":
    make(Path(sys.argv[1]), *map(int, sys.argv[2:3]))
