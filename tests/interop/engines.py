"""The engines that closed_loop.py compares with: each continues prompts greedily and says how far the second choice was.

An engine's answer for a prompt, a text or a list of tokens, is (the prompt's tokens, [(token, gap), ...]): the gap is the
largest logit less the second largest. Texts are read by the engine's own tokenizer, from what was exported.
"""
import json
import subprocess
import urllib.request


def follow(engine, prompt, lead, count):
    """The engine's answer. Where it chooses another token than `lead`, an answer of another engine, it goes on from that one's."""
    ids, tokens = engine.complete(prompt, count)
    logits, led = engine.logits, [token for token, _ in lead[1]]
    for at in range(min(len(led), len(tokens), count - 1)):
        if tokens[at][0] != led[at]:
            tokens[at + 1:] = engine.complete(ids + led[:at + 1], count - at - 1)[1]
            logits[at + 1:] = engine.logits
    engine.logits = logits
    return ids, tokens


class Fattn:
    """The program under test."""

    def __init__(self, program, model, *options):
        self.command = [program, "generate", "--model", model, "--greedy", "--ignore-eos", "--json", *options]

    def complete(self, prompt, count, top=2):
        given = ["--prompt", prompt] if isinstance(prompt, str) else ["--prompt-ids", ",".join(map(str, prompt))]
        command = [*self.command, *given, "--tokens", str(count), "--top-logits", str(top)]
        answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        self.logits = answer["top_logits"]
        return answer["prompt_ids"], [(token, rows[0][1] - rows[1][1]) for token, rows in zip(answer["tokens"], self.logits)]


class Transformers:
    """Qwen3ForCausalLM, computing in float32 whatever the type of the weights is."""

    name = "transformers"

    @staticmethod
    def missing():
        try:
            import torch  # noqa: F401
            import transformers  # noqa: F401
        except ImportError as error:
            return str(error)
        return None

    def __init__(self, folder):
        import torch
        import transformers
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self.folder = folder
        self.words = None
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        if type(self.model).__name__ != "Qwen3ForCausalLM":
            raise TypeError("AutoModelForCausalLM made a %s of %s" % (type(self.model).__name__, folder))

    def encode(self, text):
        import transformers
        self.words = self.words or transformers.AutoTokenizer.from_pretrained(self.folder)
        return self.words(text).input_ids

    def complete(self, prompt, count):
        import torch
        prompt = self.encode(prompt) if isinstance(prompt, str) else prompt
        answer = self.model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=count,
                                     min_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0,
                                     output_logits=True, return_dict_in_generate=True)
        self.logits = [row[0].tolist() for row in answer.logits]
        tops = [row[0].topk(2).values for row in answer.logits]
        return prompt, list(zip(answer.sequences[0, len(prompt):].tolist(), [float(top[0] - top[1]) for top in tops]))

    def close(self):
        pass


class Llama:
    """llama.cpp's server, in this process; the cache of keys and values is f32."""

    name = "llama.cpp"
    logits = []  # not told

    @staticmethod
    def missing():
        try:
            import xllamacpp  # noqa: F401
        except (ImportError, OSError) as error:
            return str(error)
        return None

    def __init__(self, path):
        import xllamacpp
        params = xllamacpp.CommonParams()
        params.model.path = path
        params.n_gpu_layers = 0
        params.warmup = False
        params.n_ctx = 512
        params.n_parallel = 1
        params.cpuparams.n_threads = 1
        params.verbosity = 0
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.server = xllamacpp.Server(params)

    def post(self, path, body):
        request = urllib.request.Request(self.server.listening_address + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def complete(self, prompt, count):
        ids = prompt
        if isinstance(prompt, str):
            ids = self.post("/tokenize", {"content": prompt, "add_special": True, "parse_special": True})["tokens"]
        body = {"prompt": prompt, "n_predict": count, "temperature": 0, "top_k": 1, "ignore_eos": True, "return_tokens": True,
                "cache_prompt": False, "n_probs": 2}
        answer = self.post("/completion", body)
        tops = [entry["top_logprobs"] for entry in answer["completion_probabilities"]]
        return ids, list(zip(answer["tokens"], [top[0]["logprob"] - top[1]["logprob"] for top in tops]))

    def close(self):
        del self.server
