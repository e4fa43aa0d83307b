"""Check lm-eval's ``local-completions`` on a made-up task: ``python check_lm_eval.py http://127.0.0.1:PORT FOLDER``.

FOLDER is the checkpoint of the server's model, for its tokenizer.  Nothing is downloaded.  If something is missing, the
script names it and checks nothing.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from checks import MODEL, Checks, finish

URL, FOLDER = sys.argv[1], sys.argv[2]
if not Path(FOLDER).is_dir():
    print(f"lm-eval: skipped, as {FOLDER} is missing")
    sys.exit()
try:
    import requests
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager
    from transformers import AutoTokenizer
except ImportError as error:
    print(f"lm-eval: skipped, as {error.name} is not installed")
    sys.exit()
_NAMES = ("Olga", "Paul", "Nils", "Stella", "Juan", "Anna")
_THINGS = ("hat", "stone", "key", "lamp", "kite", "basket")
_PLACES = ("in the kitchen", "near the pond", "under the bed", "in the barn", "by the stairs")

TASK = """\
task: quire_places
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: {kind}
doc_to_text: "{{{{question}}}}"
target_delimiter: ""
{more}
metadata:
  version: 1.0
"""
CHOICES = """\
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list:
  - metric: acc
  - metric: acc_norm
"""


def documents(n: int) -> list[dict[str, object]]:
    """Return questions about where somebody put something, which the text answers."""
    source, made = random.Random(9), []
    for _ in range(n):
        name, thing, places = source.choice(_NAMES), source.choice(_THINGS), source.sample(_PLACES, 3)
        question = f"{name} put a {thing} {places[0]}. The {thing} is"
        right = places[0]
        source.shuffle(places)
        choices = [f" {place}." for place in places]
        made.append({"question": question, "choices": choices, "answer": places.index(right)})
    return made


def log_prob(tokenizer: object, context: str, choice: str) -> tuple[float, bool]:
    """Return a choice's log-probability from a direct request, and whether it is the likeliest."""
    whole = tokenizer.encode(context + choice, add_special_tokens=False)  # type: ignore[attr-defined]
    n_context = len(tokenizer.encode(context, add_special_tokens=False))  # type: ignore[attr-defined]
    body = {"model": MODEL, "prompt": whole, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
    answer = requests.post(f"{URL}/v1/completions", json=body, timeout=120).json()["choices"][0]["logprobs"]
    own = answer["token_logprobs"][n_context:-1]
    tops = answer["top_logprobs"][n_context:-1]
    return sum(own), all(p == max(top.values()) for p, top in zip(own, tops, strict=True))


def main() -> None:
    checks, docs = Checks(), documents(24)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "places.jsonl"
        data.write_text("".join(json.dumps(doc) + "\n" for doc in docs), encoding="utf-8")
        (Path(folder) / "places.yaml").write_text(TASK.format(data=data, kind="multiple_choice", more=CHOICES))
        found = simple_evaluate(
            model="local-completions",
            model_args={
                "model": MODEL, "base_url": f"{URL}/v1/completions", "tokenizer": FOLDER,
                "tokenizer_backend": "huggingface", "num_concurrent": 4, "max_length": 512, "batch_size": 4,
            },
            tasks=["quire_places"], task_manager=TaskManager(include_path=folder), log_samples=True,
            bootstrap_iters=0,
        )  # fmt: skip
    results = found["results"]["quire_places"]
    n_right = 0
    for sample in found["samples"]["quire_places"]:
        doc = sample["doc"]
        expected = [log_prob(tokenizer, doc["question"], choice) for choice in doc["choices"]]
        for (own, greedy), ((its, its_greedy),) in zip(expected, sample["resps"], strict=True):
            checks.true(f"log-probability {its}, expected {own}", abs(float(its) - own) < 1e-3)
            checks.equal("greedy", str(its_greedy) == "True", greedy)
        n_right += max(range(3), key=lambda i: expected[i][0]) == doc["answer"]
    checks.equal("accuracy", round(results["acc,none"] * len(docs)), n_right)
    print(f"accuracy {results['acc,none']:.3f}, by length {results['acc_norm,none']:.3f}")
    finish(checks, f"lm-eval {version('lm_eval')}", 2 * 3 * 24 + 1)


if __name__ == "__main__":
    main()
