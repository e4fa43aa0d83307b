"""Drive the native decoder without the front end: token ids in, events out, on a thread of its own."""

from quire import EngineConfig, Tokenizer, open_decoder
from quire._native.engine import Request, SamplingParams
from quire.engine.loading.loader import packaged_model


def main() -> None:
    path = packaged_model()
    tokenizer = Tokenizer.from_gguf(path)
    decoder = open_decoder(path, EngineConfig(n_ctx=256))
    params = SamplingParams()
    params.max_tokens, params.temperature = 12, 0.0
    number = decoder.submit(Request(tokenizer.encode("Once upon a time"), params))
    ended = False
    while not ended:
        for event in decoder.wait(1.0):
            print(event.request_id == number, event.kind, event.token_ids, repr(event.text))
            ended = event.kind in ("finish", "error")
    decoder.close()


if __name__ == "__main__":
    main()
