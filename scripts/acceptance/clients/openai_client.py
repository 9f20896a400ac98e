"""The openai package against two deployments at once; prints what came back as JSON.

Argument: {"chat": {"base_url", "key_file", "model"}, "embed": {...}, "texts": [...]}.
"""

import json
import sys
import threading
from pathlib import Path

import openai


def client(target: dict) -> openai.OpenAI:
    key = Path(target["key_file"]).read_text().strip()
    return openai.OpenAI(base_url=target["base_url"], api_key=key, timeout=300, max_retries=0)


def main() -> None:
    given = json.loads(sys.argv[1])
    found: dict = {}

    def chat() -> None:
        api, model = client(given["chat"]), given["chat"]["model"]
        question = [{"role": "user", "content": "What is the capital of France?"}]
        options = {"model": model, "messages": question, "max_tokens": 32, "temperature": 0}
        plain = api.chat.completions.create(**options)
        found["plain"] = plain.choices[0].message.content
        pieces = [
            event.choices[0].delta.content or ""
            for event in api.chat.completions.create(stream=True, **options)
            if event.choices
        ]
        found["pieces"], found["streamed"] = len(pieces), "".join(pieces)
        found["models"] = [item.id for item in api.models.list()]

    def embed() -> None:
        api, model = client(given["embed"]), given["embed"]["model"]
        answer = api.embeddings.create(model=model, input=given["texts"], encoding_format="float")
        found["embeddings"] = [item.embedding for item in answer.data]

    threads = [threading.Thread(target=chat), threading.Thread(target=embed)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(found))


main()
